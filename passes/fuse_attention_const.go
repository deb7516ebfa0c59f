package passes

import (
	"math"

	"fusec/graph"
)

// maxConstant is the most elements that constantOf computes.
const maxConstant = 1 << 24

// constantOf computes what follows from constants alone by elementwise work and views, as masks do: 1 less a triangle
// of ones, times −1e9, or the indices of keys compared with those of queries. It returns nil for anything else.
// simplify folds the same as long as it is small; this value is only looked at.
func constantOf(n *graph.Node) *graph.Tensor {
	if n.Type.Shape.Elems() > maxConstant {
		return nil
	}
	if c, ok := n.Op.(graph.Const); ok {
		return c.Value
	}
	if !graph.Elementwise(n.Op) && !graph.IsView(n.Op) {
		return nil
	}
	in := make([]*graph.Tensor, len(n.Args))
	for i, a := range n.Args {
		if in[i] = constantOf(a); in[i] == nil {
			return nil
		}
	}
	if graph.IsView(n.Op) {
		return constantView(n, in[0])
	}
	at := func(arg, i int) float64 {
		if in[arg].Type.Shape.Rank() == 0 {
			i = 0
		}
		return in[arg].Float(i)
	}
	out := graph.NewTensor(n.Type)
	for i := range n.Type.Shape.Elems() {
		var v float64
		switch op := n.Op.(type) {
		case graph.Unary:
			v = op.Fn.Eval(at(0, i), op.Alpha)
		case graph.Binary:
			v = op.Fn.Eval(at(0, i), at(1, i))
		case graph.Select:
			if v = at(2, i); at(0, i) != 0 {
				v = at(1, i)
			}
		case graph.Cast:
			v = at(0, i)
		}
		if n.Type.DType.IsInt() {
			if v = math.Trunc(v); !exactInt(v, n.Type.DType) {
				return nil
			}
		}
		out.SetFloat(i, v)
	}
	return out
}

// constantView reads a value through a view.
func constantView(n *graph.Node, x *graph.Tensor) *graph.Tensor {
	l, ok := graph.Contiguous(x.Type.Shape).View(n)
	if !ok {
		return nil
	}
	out := graph.NewTensor(n.Type)
	eachIndex(n.Type.Shape, func(i int, ix []int) {
		at := l.Offset
		for d, x := range ix {
			at += x * l.Stride[d]
		}
		out.SetFloat(i, x.Float(at))
	})
	return out
}
