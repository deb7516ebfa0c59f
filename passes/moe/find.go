package moe

import (
	"slices"

	"fusec/graph"
	"fusec/passes/constant"
	"fusec/passes/rewrite"
)

// A mixture is what has been found of a mixture of experts: a sum, and of its terms those that are experts' networks
// weighted by gates.
type mixture struct {
	rewrite.Cover
	sum    *graph.Node
	tokens int

	key    *graph.Node   // what the gates are slices of, if it is one tensor
	axis   int           // of key, along which the experts are
	terms  []term        // one for each expert, or for all of them if they are stacked
	stack  int           // experts along the first axis of all values; 0 if each has its own
	expert int           // along which axis of the sum's operand the experts are, if one Reduce sums them
	join   read          // if one Reduce sums experts of which each has a term: what joins their results
	inner  []*graph.Node // the sums within the sum
	nets   []network
}

// A term of a sum, split into its factors:
//
//	node = constant · (column ⊙ … ⊙ value)
type term struct {
	node, reader *graph.Node
	factor       float64 // with which the node counts in the sum
	constant     float64
	columns      []column
	value, by    *graph.Node // the expert's result, and what reads it
	path         []read      // the products and views between them and the node
}

// read is a node and what reads it on the way from the sum.
type read struct{ node, reader *graph.Node }

// column is a factor, or a divisor, that is the same for all elements of a token's result.
type column struct {
	node   *graph.Node
	divide bool
}

// oneSum reports whether one Reduce sums all experts.
func (m *mixture) oneSum() bool { return m.stack > 0 || m.join.node != nil }

// enter covers node n on the way from reader, which must be all that reads it. what names its value.
func (m *mixture) enter(n, reader *graph.Node, what string) error {
	if err := m.Alone(n, reader, what, "is"); err != nil {
		return err
	}
	m.Add(n)
	return nil
}

// addendStep follows one step of a sum's operand towards its terms: a view of rows, a sign or a constant factor.
func addendStep(n *graph.Node) (next *graph.Node, factor float64, ok bool) {
	switch op := n.Op.(type) {
	case graph.Reshape:
		if rewrite.KeepsRows(n) {
			return n.Args[0], 1, true
		}
	case graph.Unary:
		if op.Fn == graph.Neg {
			return n.Args[0], -1, true
		}
	case graph.Binary:
		if op.Fn == graph.Mul || op.Fn == graph.Div {
			if c, isConst := constant.Factor(op.Fn, n.Args[1]); isConst && n.Args[0].Type == n.Type {
				return n.Args[0], c, true
			}
		}
	}
	return nil, 0, false
}

// isSum reports whether n adds or subtracts two tensors.
func isSum(n *graph.Node) bool {
	op, ok := n.Op.(graph.Binary)
	return ok && (op.Fn == graph.Add || op.Fn == graph.Sub) && n.Args[0].Type == n.Type && n.Args[1].Type == n.Type
}

// inSum reports whether n is only part of a larger sum, which will be looked at.
func (f *fuser) inSum(n *graph.Node) bool {
	for f.Uses.One(n) {
		r := f.Uses.Readers(n)[0]
		if isSum(r) {
			return true
		}
		if _, _, ok := addendStep(r); !ok || r.Args[0] != n {
			return false
		}
		n = r
	}
	return false
}

// addends lists the terms of the sum n.
func (f *fuser) addends(n *graph.Node) (terms []term) {
	todo := []term{{node: n, factor: 1}}
next:
	for len(todo) > 0 {
		t := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if t.node != n && !f.Uses.One(t.node) {
			terms = append(terms, t)
			continue
		}
		if isSum(t.node) {
			if t.node != n {
				f.inner = append(f.inner, t.node)
			}
			x := term{node: t.node.Args[0], reader: t.node, factor: t.factor}
			y := term{node: t.node.Args[1], reader: t.node, factor: t.factor}
			if t.node.Op == (graph.Binary{Fn: graph.Sub}) {
				y.factor = -t.factor
			}
			todo = append(todo, y, x)
			continue
		}
		// A step belongs to the sum only if it leads to another; otherwise it is part of the term.
		for at, c := t.node, t.factor; f.Uses.One(at); {
			next, s, ok := addendStep(at)
			if !ok {
				break
			}
			if c *= s; isSum(next) && f.Uses.One(next) {
				todo = append(todo, term{node: next, reader: at, factor: c})
				continue next
			}
			at = next
		}
		terms = append(terms, t)
	}
	return terms
}

// mixtures sorts the terms of a sum into mixtures of two experts or more, and the rest. Terms whose gates are slices of
// one tensor belong together; of the others those that are networks of one form and the same tokens.
func (f *fuser) mixtures(n *graph.Node) (found []*mixture, rest []term) {
	width := lastOf(n.Type.Shape)
	tokens := n.Type.Shape.Elems() / width
	type slicing struct {
		of   *graph.Node
		axis int
	}
	bySlices := map[slicing]*mixture{}
	var loose []term
	f.inner = nil
	for _, t := range f.addends(n) {
		if !t.split(width, true) {
			rest = append(rest, t)
			continue
		}
		s, ok := t.slice(tokens)
		if !ok {
			loose = append(loose, t)
			continue
		}
		k := slicing{s.of, s.axis}
		m := bySlices[k]
		if m == nil {
			m = &mixture{Cover: rewrite.Cover{Uses: f.Uses}, sum: n, tokens: tokens, key: s.of, axis: s.axis,
				inner: f.inner}
			bySlices[k] = m
			found = append(found, m)
		}
		m.terms = append(m.terms, t)
	}
	found = slices.DeleteFunc(found, func(m *mixture) bool {
		if len(m.terms) == 1 {
			loose = append(loose, m.terms[0])
		}
		return len(m.terms) == 1
	})
	var other []*mixture
	for _, t := range loose {
		m := &mixture{Cover: rewrite.Cover{Uses: f.Uses}, sum: n, tokens: tokens, terms: []term{t}, inner: f.inner}
		if m.check() != nil {
			rest = append(rest, t)
			continue
		}
		i := slices.IndexFunc(other, func(o *mixture) bool {
			return o.nets[0].differs(m.nets[0]) == "" && o.nets[0].x == m.nets[0].x
		})
		if i < 0 {
			other = append(other, m)
			continue
		}
		other[i].terms = append(other[i].terms, t)
	}
	for _, m := range other {
		if len(m.terms) > 1 {
			found = append(found, m)
		} else {
			rest = append(rest, m.terms...)
		}
	}
	return found, rest
}

// maxFactors bounds how far a product is split.
const maxFactors = 16

// split splits a term into its factors, and reports whether it is a value with at least one column. With rows it looks
// through views that keep the rows.
func (t *term) split(width int, rows bool) bool {
	var values []read
	t.constant = 1
	var walk func(n, reader *graph.Node, divide bool) bool
	walk = func(n, reader *graph.Node, divide bool) bool {
		if len(t.path)+len(values)+len(t.columns) > maxFactors {
			return false
		}
		if isColumn(n, width) {
			t.columns = append(t.columns, column{n, divide})
			return true
		}
		if divide {
			return false
		}
		op, isBinary := n.Op.(graph.Binary)
		switch next, c, ok := addendStep(n); {
		case ok && (rows || next.Type == n.Type):
			t.constant *= c
			t.path = append(t.path, read{n, reader})
			return walk(next, n, false)
		case isBinary && (op.Fn == graph.Mul || op.Fn == graph.Div):
			t.path = append(t.path, read{n, reader})
			return walk(n.Args[0], n, false) && walk(n.Args[1], n, op.Fn == graph.Div)
		}
		values = append(values, read{n, reader})
		return true
	}
	if !walk(t.node, t.reader, false) {
		return false
	}
	if width == 1 && len(values) == 2 { // of two columns the one that a linear layer makes is the value
		if isLinear(rewrite.UnderViews(values[1].node)) {
			values[0], values[1] = values[1], values[0]
		}
		t.columns = append(t.columns, column{node: values[1].node})
		values = values[:1]
	}
	if len(values) != 1 || len(t.columns) == 0 {
		return false
	}
	t.value, t.by = values[0].node, values[0].reader
	return true
}

// isColumn reports whether n is one value for each token, repeated over the width.
func isColumn(n *graph.Node, width int) bool {
	if n.Type.Shape.Rank() == 0 {
		_, isConst := n.Uniform()
		return !isConst
	}
	n = underRows(n)
	_, ok := n.Op.(graph.Broadcast)
	if !ok || width == 1 {
		return false
	}
	from := n.Args[0].Type.Shape
	return from.Rank() == 0 || lastOf(from) == 1
}

// maxBiases bounds how many sums are looked through for a product.
const maxBiases = 64

// isLinear reports whether n is a product, with biases perhaps.
func isLinear(n *graph.Node) bool {
	todo := []*graph.Node{n}
	for i := 0; i < len(todo) && i < maxBiases; i++ {
		switch n := underRows(todo[i]); op := n.Op.(type) {
		case graph.MatMul:
			return true
		case graph.Binary:
			if op.Fn == graph.Add {
				todo = append(todo, n.Args...)
			}
		}
	}
	return false
}

// gateSlice is one index along an axis of a tensor.
type gateSlice struct {
	of       *graph.Node
	axis, at int
}

// slice finds the one column that is a slice of a tensor of gates, if the term has no other.
func (t *term) slice(tokens int) (gateSlice, bool) {
	if len(t.columns) != 1 || t.columns[0].divide {
		return gateSlice{}, false
	}
	n := t.columns[0].node
	for {
		switch op := n.Op.(type) {
		case graph.Reshape, graph.Broadcast:
			n = n.Args[0]
			if n.Type.Shape.Elems() >= tokens {
				continue
			}
		case graph.Slice:
			if start, ok := op.ConstStart(n); ok && op.Size == 1 && n.Type.Shape.Elems() == tokens {
				return gateSlice{n.Args[0], op.Axis, start}, true
			}
		}
		return gateSlice{}, false
	}
}

// stacked finds a mixture whose sum is one Reduce over an axis of experts.
func (f *fuser) stacked(n *graph.Node, op graph.Reduce) *mixture {
	x := n.Args[0]
	s := x.Type.Shape
	if op.Fn != graph.Sum && op.Fn != graph.Mean || op.Axes.Len() != 1 || s.Rank() < 2 || op.Axes.At(0) == s.Rank()-1 {
		return nil
	}
	width, experts := lastOf(s), s.At(op.Axes.At(0))
	m := &mixture{Cover: rewrite.Cover{Uses: f.Uses}, sum: n, tokens: s.Elems() / max(width*experts, 1),
		expert: op.Axes.At(0)}
	t := term{node: x, reader: n, factor: 1}
	if experts < 2 || s.Elems() == 0 || !t.split(width, false) {
		return nil
	}
	if op.Fn == graph.Mean {
		t.factor = 1 / float64(experts)
	}
	// The experts' results in the order in which they were made, and the layout in which the sum reads them.
	base, views := t.value, []*graph.Node(nil)
	for {
		if _, isSlice := base.Op.(graph.Slice); isSlice || !graph.IsView(base.Op) {
			break
		}
		views = append(views, base)
		base = base.Args[0]
	}
	at := graph.Contiguous(base.Type.Shape)
	for _, v := range slices.Backward(views) {
		var ok bool
		if at, ok = at.View(v); !ok {
			return nil
		}
	}
	reader := t.by
	for _, v := range views {
		t.path = append(t.path, read{v, reader})
		reader = v
	}
	t.value, t.by = base, reader
	one := at.Slice(m.expert, 0, 1, 1)
	inOrder := at.Shape == s && base.Type.Shape.Elems() == s.Elems() && one.IsContiguous() &&
		at.Stride[m.expert] == m.tokens*width
	m.terms, m.stack = []term{t}, experts
	if gate := t.gate(); rewrite.SoftmaxUnder(gate) != nil {
		m.key = gate
	}
	if c, ok := base.Op.(graph.Concat); ok {
		equal := len(base.Args) == experts
		for _, a := range base.Args {
			equal = equal && a.Type == base.Args[0].Type && lastOf(a.Type.Shape) == width
		}
		first := len(rewrite.Trimmed(base.Type.Shape)) == base.Type.Shape.Rank()-c.Axis
		if !equal || !(inOrder && first || at == graph.Contiguous(s) && c.Axis == m.expert) {
			return nil
		}
		m.join, m.stack = read{base, reader}, 0
		m.terms = nil
		for _, a := range base.Args {
			e := t
			e.value, e.by = a, base
			m.terms = append(m.terms, e)
		}
		return m
	}
	if !inOrder || !isLinear(base) {
		return nil
	}
	return m
}

// gate is the value under the views of the first column.
func (t *term) gate() *graph.Node {
	return rewrite.UnderViews(t.columns[0].node)
}

// lastOf is the size of the last axis.
func lastOf(s graph.Shape) int { return s.At(s.Rank() - 1) }
