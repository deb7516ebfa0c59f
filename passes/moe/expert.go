package moe

import (
	"fmt"
	"slices"

	"fusec/graph"
	"fusec/passes/pattern"
	"fusec/passes/rewrite"
)

// A network is an expert's feed-forward network, read from its result back to the tokens:
//
//	x ─ in ─ act ─ out ─►        or      x ─ in ─ act ─ ⊙ ─ out ─►
//	                                     x ─── gate ────┘
//
// where in, gate and out are linear layers. With stacked experts each of these has a leading axis for them.
type network struct {
	x             *graph.Node // without the views that keep rows
	act           graph.Unary
	in, gate, out layer // gate without a weight if there is none
}

// A layer is x·w + bias.
type layer struct {
	w     *graph.Node
	trans bool        // w is transposed
	bias  *graph.Node // what the bias repeats: nil for none, else one element, one vector, or one for each expert
	from  int         // elements of a row of x
	to    int         // and of the result
}

// layers lists a network's layers in the order of a MoE's weights.
func (n *network) layers() []*layer {
	if n.gate.w == nil {
		return []*layer{&n.in, &n.out}
	}
	return []*layer{&n.in, &n.gate, &n.out}
}

// check follows every expert from the sum to the tokens, and compares them.
func (m *mixture) check() error {
	m.Covered, m.nets = append([]*graph.Node{m.sum}, m.inner...), nil
	m.sort()
	for i, t := range m.terms {
		if i == 0 || m.join.node == nil {
			for _, p := range t.path {
				if err := m.enter(p.node, p.reader, "the weighted result of an expert"); err != nil {
					return err
				}
			}
		}
		if i == 0 && m.join.node != nil {
			if err := m.enter(m.join.node, m.join.reader, "what the experts' results are joined to"); err != nil {
				return err
			}
		}
		net, err := m.network(t.value, t.by)
		if err != nil {
			return err
		}
		if i > 0 {
			if how := m.nets[0].differs(net); how != "" {
				return m.Stop(t.value, "expert %d, %s, %s", i, pattern.Describe(t.value), how)
			}
			if net.x != m.nets[0].x {
				return m.Stop(t.value, "expert %d, %s, is computed from %s, and expert 0 from %s", i, pattern.Describe(t.value),
					pattern.Named(net.x), pattern.Named(m.nets[0].x))
			}
		}
		m.nets = append(m.nets, net)
	}
	return nil
}

// sort puts the experts in the order of their gates.
func (m *mixture) sort() {
	if m.key == nil || m.oneSum() {
		return
	}
	at := func(t term) int {
		s, _ := t.slice(m.tokens)
		return s.at
	}
	slices.SortStableFunc(m.terms, func(a, b term) int { return at(a) - at(b) })
}

// differs says how the form of expert o differs from that of n, or "".
func (n *network) differs(o network) string {
	switch {
	case (n.gate.w == nil) != (o.gate.w == nil):
		with := map[bool]string{true: "no second factor", false: "a second factor"}
		return fmt.Sprintf("has %s in its hidden values, and expert 0 %s", with[o.gate.w == nil], with[n.gate.w == nil])
	case n.act != o.act:
		return fmt.Sprintf("has the activation %s, and expert 0 %s", activation(o.act), activation(n.act))
	case n.in.to != o.in.to:
		return fmt.Sprintf("has %d hidden values, and expert 0 has %d", o.in.to, n.in.to)
	case n.in.from != o.in.from:
		return fmt.Sprintf("has tokens of %d elements, and expert 0 of %d", o.in.from, n.in.from)
	}
	return ""
}

func activation(u graph.Unary) string {
	if u.Alpha != 0 {
		return fmt.Sprintf("%v(%.4g)", u.Fn, u.Alpha)
	}
	return u.Fn.String()
}

// network reads an expert from its result n.
func (m *mixture) network(n, reader *graph.Node) (network, error) {
	var r network
	h, by, out, err := m.linear(n, reader, "the result of an expert")
	if err != nil {
		return r, err
	}
	r.out = out
	if h, by, err = m.rows(h, by, "a hidden value of an expert"); err != nil {
		return r, err
	}
	first := h
	switch op := h.Op.(type) {
	case graph.Unary:
		r.act = op
		if err := m.enter(h, by, "a hidden value of an expert"); err != nil {
			return r, err
		}
	case graph.Binary:
		side := slices.IndexFunc(h.Args, func(a *graph.Node) bool { _, ok := underRows(a).Op.(graph.Unary); return ok })
		if op.Fn != graph.Mul || side < 0 || h.Args[0].Type != h.Args[1].Type {
			return r, m.noActivation(h)
		}
		if err := m.enter(h, by, "a hidden value of an expert"); err != nil {
			return r, err
		}
		var x *graph.Node
		if x, _, r.gate, err = m.linear(h.Args[1-side], h, "the second factor of an expert's hidden values"); err != nil {
			return r, err
		}
		r.x = m.tokensUnder(x, r.gate.from)
		if first, by, err = m.rows(h.Args[side], h, "the activation of an expert"); err != nil {
			return r, err
		}
		r.act = first.Op.(graph.Unary)
		if err := m.enter(first, by, "the activation of an expert"); err != nil {
			return r, err
		}
	default:
		return r, m.noActivation(h)
	}
	x, _, in, err := m.linear(first.Args[0], first, "a hidden value of an expert")
	if err != nil {
		return r, err
	}
	r.in = in
	second := r.x
	if r.x = m.tokensUnder(x, in.from); r.x == nil {
		return r, m.Stop(x, "%s has tokens of its own for each expert, or not %d of them", pattern.Describe(x), m.tokens)
	}
	if r.gate.w != nil && (second != r.x || r.gate.to != in.to) {
		return r, m.Stop(h, "the factors of the hidden values are not computed from the same tokens")
	}
	return r, nil
}

func (m *mixture) noActivation(h *graph.Node) error {
	return m.Stop(h, "%s stands before the last linear layer of an expert; wanted an activation of another linear layer",
		pattern.Describe(h))
}

// underRows is the value under views that keep the rows.
func underRows(n *graph.Node) *graph.Node {
	for rewrite.KeepsRows(n) {
		n = n.Args[0]
	}
	return n
}

// rows enters the views that keep the rows of n, and returns the value under them and what reads it.
func (m *mixture) rows(n, reader *graph.Node, what string) (under, by *graph.Node, err error) {
	for rewrite.KeepsRows(n) {
		if err := m.enter(n, reader, what); err != nil {
			return nil, nil, err
		}
		n, reader = n.Args[0], n
	}
	return n, reader, nil
}

// linear reads a linear layer from its result n. It returns its operand, and what reads that.
func (m *mixture) linear(n, reader *graph.Node, what string) (x, by *graph.Node, l layer, err error) {
	if n, reader, err = m.rows(n, reader, what); err != nil {
		return nil, nil, l, err
	}
	if op, ok := n.Op.(graph.Binary); ok && op.Fn == graph.Add {
		side := slices.IndexFunc(n.Args, isLinear)
		if side < 0 {
			return nil, nil, l, m.Stop(n, "%s, %s, adds nothing to a linear layer", what, pattern.Describe(n))
		}
		if l.bias = m.biasUnder(n.Args[1-side], lastOf(n.Type.Shape)); l.bias == nil {
			return nil, nil, l, m.Stop(n, "to %s is added %s, which is no bias: it is not the same for all tokens", what,
				pattern.Named(n.Args[1-side]))
		}
		if err := m.enter(n, reader, what); err != nil {
			return nil, nil, l, err
		}
		if n, reader, err = m.rows(n.Args[side], n, what); err != nil {
			return nil, nil, l, err
		}
	}
	op, ok := n.Op.(graph.MatMul)
	if !ok {
		return nil, nil, l, m.Stop(n, "%s, %s, is no linear layer", what, pattern.Describe(n))
	}
	if err := m.enter(n, reader, what); err != nil {
		return nil, nil, l, err
	}
	l.w, l.trans = n.Args[1], op.TransB
	s := l.w.Type.Shape
	l.from, l.to = s.At(s.Rank()-2), lastOf(s)
	if l.trans {
		l.from, l.to = l.to, l.from
	}
	switch lead := rewrite.Leading(s); {
	case op.TransA:
		return nil, nil, l, m.Stop(n, "%s reads its tokens as columns", pattern.Describe(n))
	case n.Type.Shape.Elems() != max(m.stack, 1)*m.tokens*l.to:
		return nil, nil, l, m.Stop(n, "%s has the shape %v, which is not that of %d tokens", pattern.Describe(n),
			n.Type.Shape, m.tokens)
	case m.stack == 0 && s.Elems() != l.from*l.to:
		return nil, nil, l, m.Stop(n, "the weights %s are %v, not one matrix", pattern.Named(l.w), l.w.Type)
	case m.stack > 0 && (s.Elems() != m.stack*l.from*l.to || s.Rank() != n.Type.Shape.Rank() ||
		len(lead) == 0 || lead[0] != m.stack):
		return nil, nil, l, m.Stop(n, "the weights %s are %v, not one matrix for each of %d experts", pattern.Named(l.w),
			l.w.Type, m.stack)
	}
	return n.Args[0], n, l, nil
}

// tokensUnder is the tokens that x is a view of, or nil if it holds anything else.
func (m *mixture) tokensUnder(x *graph.Node, width int) *graph.Node {
	for {
		repeats := false // for each of the stacked experts
		switch op := x.Op.(type) {
		case graph.Broadcast:
			s := x.Type.Shape
			repeats = s.At(0) == m.stack && slices.Equal(rewrite.Trimmed(s.Drop(graph.IntsOf(0))),
				rewrite.Trimmed(x.Args[0].Type.Shape))
		case graph.Concat:
			other := func(a *graph.Node) bool { return a != x.Args[0] }
			repeats = len(rewrite.Trimmed(x.Type.Shape)) == x.Type.Shape.Rank()-op.Axis && !slices.ContainsFunc(x.Args, other)
		}
		if !rewrite.KeepsRows(x) && !(m.stack > 0 && repeats && x.Args[0].Type.Shape.Elems() == m.tokens*width) {
			break
		}
		x = x.Args[0]
	}
	if x.Type.Shape.Elems() != m.tokens*width {
		return nil
	}
	return x
}

// biasUnder is what a bias of the given width repeats: one element, one vector, or one vector for each stacked expert.
// It is nil if n is not the same for all tokens.
func (m *mixture) biasUnder(n *graph.Node, width int) *graph.Node {
	experts := max(m.stack, 1)
	vector := func(s graph.Shape) bool {
		return s.Rank() > 0 && lastOf(s) == width && s.Elems() == width || m.stack > 0 && s.Elems() == experts*width &&
			lastOf(s) == width && s.At(0) == experts
	}
	for {
		s := n.Type.Shape
		if s.Elems() == 1 && (s.Rank() == 0 || width == 1) || m.tokens == 1 && vector(s) {
			return n
		}
		switch n.Op.(type) {
		case graph.Broadcast:
			from := n.Args[0].Type.Shape
			aligned := from.Elems() == width || from.Rank() == s.Rank()
			if from.Elems() == 1 || vector(from) && aligned {
				return n.Args[0]
			}
			return nil
		case graph.Reshape:
			if !rewrite.KeepsRows(n) {
				return nil
			}
			n = n.Args[0]
		default:
			return nil
		}
	}
}
