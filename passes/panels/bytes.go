package panels

import (
	"errors"
	"fmt"

	"fusec/graph"
)

// bytes are integers q of U8 of which a value is (q − zero)·scale. A zero of nil is 0, a scale of nil is 1; both are scalars of
// F32.
type bytes struct{ q, zero, scale *graph.Node }

// bytes finds those that x is made of.
func (p *packer) bytes(x *graph.Node) (v bytes, err error) {
	if _, ok := x.Op.(graph.Dequantize); ok {
		return p.dequantized(x)
	}
	if op, ok := x.Op.(graph.Binary); ok && op.Fn == graph.Sub && isBytes(x.Args[0]) {
		if v.zero = p.scalar(x.Args[1]); v.zero == nil {
			return bytes{}, errors.New("it has several zero points")
		}
		x = x.Args[0]
	}
	if !isBytes(x) {
		return bytes{}, errors.New("it is not known to be integers of 8 bits")
	}
	if _, ok := x.Op.(graph.Cast); ok && x.Args[0].Type.DType == graph.U8 {
		v.q = x.Args[0]
	} else {
		v.q = p.b.CastTo(graph.U8, x)
	}
	return v, nil
}

// dequantized finds the integers of a value with one scale. Those of I8 get 128 more.
func (p *packer) dequantized(x *graph.Node) (v bytes, err error) {
	if v.scale = x.Args[1]; v.scale.Type.Shape.Rank() > 0 {
		return bytes{}, errors.New("it has several scales")
	}
	more := 0. // of U8 than what is stored
	switch v.q = x.Args[0]; v.q.Type.DType {
	case graph.U8:
	case graph.I8:
		more = 128
		v.q = p.b.CastTo(graph.U8, p.b.BinaryScalar(graph.Add, p.b.CastTo(graph.F32, v.q), more))
	default:
		return bytes{}, fmt.Errorf("it is of %v", v.q.Type.DType)
	}
	if len(x.Args) > 2 {
		if zero, ok := x.Args[2].ConstScalar(); ok {
			more += zero
		} else {
			v.zero = p.b.CastTo(graph.F32, x.Args[2])
		}
	}
	switch {
	case v.zero == nil && more != 0:
		v.zero = p.b.Scalar(graph.F32, more)
	case more != 0:
		v.zero = p.b.BinaryScalar(graph.Add, v.zero, more)
	}
	return v, nil
}

// scalar is the only element of n, or what all elements are views of; nil if there is none.
func (p *packer) scalar(n *graph.Node) *graph.Node {
	for n.Type.Shape.Rank() > 0 {
		if n.Type.Shape.Elems() == 1 {
			return p.b.Reshape(n)
		}
		if !graph.IsView(n.Op) {
			return nil
		}
		n = n.Args[0]
	}
	return n
}

// isBytes reports whether the numbers of n are integers from 0 to 255.
func isBytes(n *graph.Node) bool { return n.Type.DType == graph.F32 && n.IsWhole(graph.U8) }

// multiplied is the product of rows that are made of integers of 8 bits, with weights of I8 in panels that have a scale for each
// column or for all:
//
//	q ─► matmul_panels ─► − ─► × ─►
//	panels ─────┘         │    │
//	zero·Σw ──────────────┘    │
//	scale·scale ───────────────┘
//
// The sums over the columns of w and, where it is known, the product of the scales are made once.
func (p *packer) multiplied(x bytes, w *graph.Node, trans bool, scale *graph.Node, cols int) *graph.Node {
	b := p.b
	y := b.Add(graph.PanelMatMul{Columns: cols, Integers: true}, x.q, p.pack(w, trans, graph.Invalid, true))
	each := func(v *graph.Node) *graph.Node { return b.Broadcast(v, y.Type.Shape) }
	if x.zero != nil {
		inner := 0
		if trans {
			inner = 1
		}
		sums := b.Reduce(graph.Sum, b.CastTo(graph.F32, w), false, inner)
		y = b.Binary(graph.Sub, y, each(b.Binary(graph.Mul, sums, b.Broadcast(x.zero, sums.Type.Shape))))
	}
	if scale = scaled(b, scale, x.scale); scale != nil {
		y = b.Binary(graph.Mul, y, each(scale))
	}
	return y
}

// scaled is the product of the scales of weights and of a scale, nil if all are 1.
func scaled(b *graph.Builder, weights, one *graph.Node) *graph.Node {
	if v, ok := weights.Uniform(); ok && v.Float(0) == 1 {
		return one
	}
	if one == nil {
		return weights
	}
	return b.Binary(graph.Mul, weights, b.Broadcast(one, weights.Type.Shape))
}
