// Package constant computes values that follow from constants alone.
package constant

import (
	"strconv"

	"fusec/graph"
)

// maxElems is the most elements that Of computes.
const maxElems = 1 << 24

// maxNodes is the most nodes that Of looks at.
const maxNodes = 64

// Of computes what follows from constants alone by elementwise work and views, as masks do: 1 less a triangle
// of ones, times −1e9, or the indices of keys compared with those of queries. It returns nil for anything else.
// simplify folds the same as long as it is small; this value is only looked at.
func Of(n *graph.Node) *graph.Tensor {
	looks := maxNodes
	return within(n, &looks)
}

// within is Of with so many looks at nodes left.
func within(n *graph.Node, looks *int) *graph.Tensor {
	if *looks--; *looks < 0 || n.Type.Shape.Elems() > maxElems {
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
		if in[i] = within(a, looks); in[i] == nil {
			return nil
		}
	}
	if graph.IsView(n.Op) {
		return View(n, in[0])
	}
	return Evaluate(n, in)
}

// View reads a value through a view. It returns nil for a Slice that does not start at a constant, or not within x.
func View(n *graph.Node, x *graph.Tensor) *graph.Tensor {
	l, ok := graph.Contiguous(x.Type.Shape).View(n)
	if !ok {
		return nil
	}
	out := graph.NewTensor(n.Type)
	EachIndex(n.Type.Shape, func(i int, ix []int) {
		at := l.Offset
		for d, x := range ix {
			at += x * l.Stride[d]
		}
		out.SetElem(i, x, at)
	})
	return out
}

// Evaluate computes an elementwise operation of constants; it returns nil if it divides an integer by zero, which is an
// error at run time, and for a custom function, whose code runs only in programs.
func Evaluate(n *graph.Node, in []*graph.Tensor) *graph.Tensor {
	if _, custom := n.Op.(graph.Custom); custom {
		return nil
	}
	at := func(arg, i int) int {
		if in[arg].Type.Shape.Rank() == 0 {
			return 0
		}
		return i
	}
	out, real := graph.NewTensor(n.Type), in[0].Type.DType.IsReal()
	for i := range n.Type.Shape.Elems() {
		switch op := n.Op.(type) {
		case graph.Unary:
			if real {
				out.SetFloat(i, op.Fn.Eval(in[0].Float(i), op.Alpha))
			} else {
				out.SetInt(i, op.Fn.EvalInt(in[0].Type.DType, in[0].Int(i)))
			}
		case graph.Binary:
			j, k := at(0, i), at(1, i)
			if real {
				out.SetFloat(i, op.Fn.Eval(in[0].Float(j), in[1].Float(k)))
				continue
			}
			v, err := op.Fn.EvalInt(in[0].Type.DType, in[0].Int(j), in[1].Int(k))
			if err != nil {
				return nil
			}
			out.SetInt(i, v)
		case graph.Select:
			from := 2
			if in[0].Int(at(0, i)) != 0 {
				from = 1
			}
			out.SetElem(i, in[from], at(from, i))
		case graph.Cast:
			out.SetElem(i, in[0], i)
		}
	}
	return out
}

// EachIndex calls f for every element of a shape, in row-major order.
func EachIndex(s graph.Shape, f func(i int, index []int)) {
	ix := make([]int, s.Rank())
	for i := range s.Elems() {
		f(i, ix)
		for d := s.Rank() - 1; d >= 0; d-- {
			if ix[d]++; ix[d] < s.At(d) {
				break
			}
			ix[d] = 0
		}
	}
}

// Attribute is the value of a constant as an attribute: for an f32 the shortest decimal that rounds to it, which is what
// the user wrote, 1e-05 and not 9.999999747378752e-06.
func Attribute(n *graph.Node) float64 {
	v, _ := n.ConstScalar()
	if n.Type.DType == graph.F32 {
		if w, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', -1, 32), 64); err == nil {
			return w
		}
	}
	return v
}

// Factor is the constant c for which f(x, y) is c·x, for a product or quotient f.
func Factor(f graph.BinaryFn, y *graph.Node) (float64, bool) {
	if _, ok := y.ConstScalar(); !ok {
		return 0, false
	}
	if f == graph.Div {
		return 1 / Attribute(y), true
	}
	return Attribute(y), true
}

// Lowest is the greatest finite value that counts as masking. Scores are far above it.
const Lowest = -1e8
