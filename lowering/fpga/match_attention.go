package fpga

import (
	"errors"
	"fmt"

	"fusec/graph"
)

// heads is an attention.
type heads struct {
	op           graph.Attention
	dims         graph.AttentionDims
	q, k, v, out headed
}

// headed is a value seen as [batch..., heads, rows, depth].
type headed struct {
	v      *value
	layout graph.Layout
	turned bool
}

// part is the matrix of a head: its rows, or if turned their transpose.
func (h headed) part(batch, head int) matrix {
	l := h.layout
	r := l.Shape.Rank()
	m := matrix{h.v, l.Offset, l.Stride[r-2], l.Shape.At(r - 2), l.Shape.At(r - 1), plain}
	if m.rows == 1 {
		m.step = h.v.cols
	}
	if r > 2 {
		m.start += head * l.Stride[r-3]
	}
	for i := r - 4; i >= 0; i-- {
		m.start += batch % l.Shape.At(i) * l.Stride[i]
		batch /= l.Shape.At(i)
	}
	if h.turned {
		return m.turn()
	}
	return m
}

// operands lists the matrices of the first head.
func (h *heads) operands() []matrix {
	return []matrix{h.q.part(0, 0), h.k.part(0, 0), h.v.part(0, 0)}
}

// matchAttention makes a task of an attention.
func (m *partition) matchAttention(i int, f graph.Fusion) ([]*task, error) {
	l, p, err := m.lowered(i, f)
	if err != nil {
		return nil, err
	}
	n := p.Anchor
	a := n.Op.(graph.Attention)
	switch {
	case !m.cfg.Attention():
		return nil, fmt.Errorf("the overlay %s has no attention", m.cfg.Name)
	case a.HasMask:
		return nil, errors.New("attention with a mask that is not causal: the overlay has none")
	case a.Window > 0:
		return nil, fmt.Errorf("attention with a window of %d keys: the overlay has none", a.Window)
	case a.HasLengths || a.Page > 0:
		return nil, errors.New("attention over a number of keys that is known only in a run: " +
			"the overlay's programs have it fixed")
	case a.Dropout > 0:
		return nil, errors.New("attention with dropout: the overlay draws no random numbers")
	case len(l.Results) > 1:
		return nil, errors.New("attention that hands out its log-sum-exp: the overlay keeps it")
	}
	types, err := floats("attention", n.Args)
	if err != nil {
		return nil, err
	}
	h := &heads{op: a, dims: a.DimsOf(types)}
	d := h.dims
	switch {
	case n.Type.Shape.Elems() == 0 || d.Keys == 0:
		return nil, errors.New("attention without elements")
	case d.Width != d.Depth:
		return nil, fmt.Errorf("attention with keys %d wide and values %d wide: the overlay takes one size", d.Depth,
			d.Width)
	case d.Depth%m.cfg.Cols != 0 || d.Depth%m.cfg.WordBytes != 0:
		return nil, fmt.Errorf("head size %d is not a multiple of %d", d.Depth, max(m.cfg.Cols, m.cfg.WordBytes))
	case d.Depth > m.cfg.HeadDim:
		return nil, fmt.Errorf("head size %d: the overlay %s takes %d", d.Depth, m.cfg.Name, m.cfg.HeadDim)
	}
	for j, to := range []*headed{&h.q, &h.k, &h.v} {
		*to = headed{m.value(l.Args[p.Operands[j].Arg].Buffer), p.Operands[j].Layout, j == 2}
	}
	if _, cast := p.ResultOf(&p.Stores[0]); cast != nil {
		return nil, fmt.Errorf("%s behind attention", cast.Op.OpName())
	}
	h.out = headed{m.value(l.Results[0].Buffer), p.Stores[0].Layout, false}
	for b := range d.Batch.Elems() {
		for q := range d.Heads {
			for _, x := range []matrix{h.q.part(b, q), h.k.part(b, q/d.Group), h.v.part(b, q/d.Group),
				h.out.part(b, q)} {
				if _, _, err := x.place(m.cfg.WordBytes); err != nil {
					return nil, err
				}
			}
		}
	}
	for _, x := range []headed{h.q, h.k, h.v, h.out} {
		if r := x.layout.Shape.Rank(); x.layout.Stride[r-1] != 1 {
			return nil, fmt.Errorf("the elements of a head of %s do not lie side by side", x.v.name)
		}
	}
	return []*task{{launch: i, kind: taskAttention, node: n, heads: h, x: h.q.part(0, 0), out: matrix{v: h.out.v},
		share: 1}}, nil
}

// floats are the types of an operation's operands, which have to be f32 or f64.
func floats(what string, args []*graph.Node) (types []graph.Type, err error) {
	for _, x := range args {
		if x.Type.DType != graph.F32 && x.Type.DType != graph.F64 {
			return nil, fmt.Errorf("%s of type %v: the overlay's numbers stand for f32 and f64", what, x.Type.DType)
		}
		types = append(types, x.Type)
	}
	return types, nil
}
