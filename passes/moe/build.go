package moe

import (
	"slices"

	"fusec/graph"
)

// build makes the MoE y and the value of the experts' part of the sum. Where the tokens have the axes of
// the sum they keep them, so that views of either still need no copy.
func (m *mixture) build(b *graph.Builder, f *fuser) (y, to *graph.Node) {
	net := &m.nets[0]
	op := graph.MoE{Experts: max(m.stack, len(m.terms)), Activation: net.act.Fn, Alpha: net.act.Alpha, AtZero: net.act.AtZero,
		Gated: net.gate.w != nil}
	for i := range m.nets {
		for _, l := range m.nets[i].layers() {
			op.Bias = op.Bias || l.bias != nil
		}
	}
	scale, even := m.scale()
	gates := m.gates(b, even)
	f.looks = maxLooks
	closed, k := f.closes(gates)
	op.Dense = !closed
	if k < op.Experts {
		op.TopK = k
	}
	op.Stacked = m.stack > 0 || m.sliced()
	lead := m.sum.Type.Shape.Slice()
	lead = lead[:len(lead)-1]
	x := net.x.Type.Shape
	if !slices.Equal(lead, x.Slice()[:x.Rank()-1]) {
		lead = []int{m.tokens}
	}
	tokens := func(n *graph.Node, width int) *graph.Node { return b.Reshape(n, append(slices.Clone(lead), width)...) }
	args := []*graph.Node{tokens(net.x, net.in.from), tokens(gates, op.Experts)}
	for i := range net.layers() {
		for _, bias := range []bool{false, true} {
			switch {
			case bias && !op.Bias:
			case op.Stacked:
				args = append(args, m.whole(b, i, bias))
			default:
				for e := range m.nets {
					args = append(args, m.weight(b, e, i, bias))
				}
			}
		}
	}
	y = b.Add(op, args...)
	if even && scale != 1 {
		return y, b.BinaryScalar(graph.Mul, y, scale)
	}
	return y, y
}

// scale is the constant factor of all terms, if they have the same.
func (m *mixture) scale() (c float64, even bool) {
	c = m.terms[0].factor * m.terms[0].constant
	for _, t := range m.terms {
		if t.factor*t.constant != c {
			return 1, false
		}
	}
	return c, true
}

// weight is one expert's weight, or its bias, of layer i.
func (m *mixture) weight(b *graph.Builder, e, i int, bias bool) *graph.Node {
	l := m.nets[e].layers()[i]
	if bias {
		return m.vector(b, l, l.to)
	}
	return l.matrix(b, l.w)
}

// vector is a layer's bias in the given dimensions.
func (m *mixture) vector(b *graph.Builder, l *layer, dims ...int) *graph.Node {
	s := graph.ShapeOf(dims...)
	switch {
	case l.bias == nil:
		return b.Const(graph.NewTensor(graph.Type{DType: m.sum.Type.DType, Shape: s}))
	case l.bias.Type.Shape.Elems() == s.Elems():
		return b.Reshape(l.bias, dims...)
	case l.bias.Type.Shape.Elems() == 1:
		return b.Broadcast(b.Reshape(l.bias), s)
	}
	return b.Broadcast(b.Reshape(l.bias, l.to), s)
}

// matrix is w as [lead, from, to].
func (l *layer) matrix(b *graph.Builder, w *graph.Node, lead ...int) *graph.Node {
	if !l.trans {
		return b.Reshape(w, append(lead, l.from, l.to)...)
	}
	w = b.Reshape(w, append(lead, l.to, l.from)...)
	if len(lead) == 0 {
		return b.Transpose(w, 1, 0)
	}
	return b.Transpose(w, 0, 2, 1)
}

// sliced reports whether all weights are slices of tensors that stack them, in the order of the experts.
func (m *mixture) sliced() bool {
	for i := range m.nets[0].layers() {
		for _, bias := range []bool{false, true} {
			if !m.slicedLayer(i, bias) {
				return false
			}
		}
	}
	return true
}

func (m *mixture) slicedLayer(i int, bias bool) bool {
	first := m.nets[0].layers()[i]
	var stack *graph.Node
	for e := range m.nets {
		l := m.nets[e].layers()[i]
		n, size := l.w, l.from*l.to
		if bias {
			n, size = l.bias, l.to
		}
		if l.trans != first.trans || bias && (n == nil) != (first.bias == nil) {
			return false
		}
		if n == nil {
			continue
		}
		of, at := sliceUnder(n)
		if of == nil || at != e || e > 0 && of != stack || of.Type.Shape != of.Type.Shape.With(0, len(m.nets)) ||
			of.Type.Shape.Elems() != len(m.nets)*size {
			return false
		}
		stack = of
	}
	return true
}

// sliceUnder finds the tensor of which n is, under Reshapes, one index along the first axis.
func sliceUnder(n *graph.Node) (of *graph.Node, at int) {
	for {
		switch op := n.Op.(type) {
		case graph.Reshape:
			n = n.Args[0]
			continue
		case graph.Slice:
			if start, ok := op.ConstStart(n); ok && op.Axis == 0 && op.Size == 1 {
				return n.Args[0], start
			}
		}
		return nil, 0
	}
}

// whole is the weight, or the bias, of layer i of all experts.
func (m *mixture) whole(b *graph.Builder, i int, bias bool) *graph.Node {
	l := *m.nets[0].layers()[i]
	experts := max(m.stack, len(m.nets))
	if m.stack == 0 {
		l.w, _ = sliceUnder(l.w)
		if l.bias != nil {
			l.bias, _ = sliceUnder(l.bias)
		}
	}
	if bias {
		return m.vector(b, &l, experts, l.to)
	}
	return l.matrix(b, l.w, experts)
}

// gates makes the gates [tokens, experts]. If the terms' constants are uneven, they become part of them.
func (m *mixture) gates(b *graph.Builder, even bool) *graph.Node {
	if m.oneSum() {
		c := m.column(b, m.terms[0])
		s := m.sum.Args[0].Type.Shape
		c = b.Reshape(b.Broadcast(c, s.With(s.Rank()-1, 1)), s.Slice()[:s.Rank()-1]...)
		return b.Reshape(b.Transpose(c, axisLast(s.Rank()-1, m.expert)...), m.tokens, s.At(m.expert))
	}
	if m.key != nil && even {
		experts := m.key.Type.Shape.At(m.axis)
		g := b.Reshape(b.Transpose(m.key, axisLast(m.key.Type.Shape.Rank(), m.axis)...), m.tokens, experts)
		first, row := 0, true
		for i, t := range m.terms {
			s, _ := t.slice(m.tokens)
			if i == 0 {
				first = s.at
			}
			row = row && s.at == first+i
		}
		switch {
		case row && len(m.terms) == experts:
			return g
		case row:
			return b.Slice(g, 1, first, len(m.terms), 1)
		}
	}
	var columns []*graph.Node
	for _, t := range m.terms {
		c := b.Reshape(b.Broadcast(m.column(b, t), graph.ShapeOf(m.tokens, 1)), m.tokens, 1)
		if k := t.factor * t.constant; !even && k != 1 {
			c = b.BinaryScalar(graph.Mul, c, k)
		}
		columns = append(columns, c)
	}
	return b.Add(graph.Concat{Axis: 1}, columns...)
}

// axisLast is the permutation of rank axes that moves one to the end.
func axisLast(rank, axis int) []int {
	var perm []int
	for i := range rank {
		if i != axis {
			perm = append(perm, i)
		}
	}
	return append(perm, axis)
}

// column is the product of a term's columns: of the shape [tokens, 1], for stacked experts that of the sum's operand
// with a last axis of 1, or a scalar.
func (m *mixture) column(b *graph.Builder, t term) *graph.Node {
	full := graph.ShapeOf(m.tokens, 1)
	if m.oneSum() {
		s := m.sum.Args[0].Type.Shape
		full = s.With(s.Rank()-1, 1)
	}
	var product *graph.Node
	for _, c := range t.columns {
		x := unrepeated(b, c.node)
		if x.Type.Shape.Rank() > 0 {
			x = b.Reshape(x, full.Slice()...)
		}
		switch {
		case product == nil && c.divide:
			product = b.Unary(graph.Recip, x)
		case product == nil:
			product = x
		case c.divide:
			product = b.Binary(graph.Div, product, x)
		default:
			product = b.Binary(graph.Mul, product, x)
		}
	}
	return product
}

// unrepeated is a column without its repetition along the last axis: a scalar, or of its shape with a last axis of 1.
func unrepeated(b *graph.Builder, n *graph.Node) *graph.Node {
	s := n.Type.Shape
	if s.Rank() == 0 || lastOf(s) == 1 {
		return n
	}
	under := underRows(n)
	c := b.Broadcast(under.Args[0], under.Type.Shape.With(under.Type.Shape.Rank()-1, 1))
	if under == n || c.Type.Shape.Rank() == 0 {
		return c
	}
	return b.Reshape(c, s.With(s.Rank()-1, 1).Slice()...)
}
