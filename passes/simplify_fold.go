package passes

import (
	"math"

	"fusec/graph"
)

// foldRules compute what depends on small constants only:
//
//	const 2 ─┐
//	const 3 ─ ⊙ ─►        const 6 ─►
//
// The arithmetic is that of the operation table, in float64 and rounded once to the element type; integers are folded
// where float64 holds them and the result exactly.
var foldRules = []Rule{
	{"fold", "elementwise of constants → constant", []graph.Op{graph.Unary{}, graph.Binary{}, graph.Select{}, graph.Cast{}}, foldElementwise},
	{"fold-reshape", "reshape of a constant → constant", []graph.Op{graph.Reshape{}}, foldReshape},
	{"fold-move", "transpose, slice and concat of small constants → constant",
		[]graph.Op{graph.Transpose{}, graph.Slice{}, graph.Concat{}}, foldMove},
	{"fold-reduce", "reduction of a small constant → constant", []graph.Op{graph.Reduce{}}, foldReduce},
}

// foldLimit is the most elements that folding computes.
const foldLimit = 4096

// constants returns the values of n's operands if all are constants.
func constants(n *graph.Node) ([]*graph.Tensor, bool) {
	ts := make([]*graph.Tensor, len(n.Args))
	for i, a := range n.Args {
		c, ok := a.Op.(graph.Const)
		if !ok {
			return nil, false
		}
		ts[i] = c.Value
	}
	return ts, true
}

func foldElementwise(s *simplifier, n *graph.Node) *graph.Node {
	e := n.Type.Shape.Elems()
	if e > foldLimit {
		return nil
	}
	in, ok := constants(n)
	if !ok {
		return nil
	}
	at := func(arg, i int) float64 {
		if in[arg].Type.Shape.Rank() == 0 {
			i = 0
		}
		return in[arg].Float(i)
	}
	out := graph.NewTensor(n.Type)
	for i := range e {
		for _, t := range in {
			if t.Type.DType.IsInt() && t.Type.Shape.Elems() > 0 && !exactInt(t.Float(min(i, t.Type.Shape.Elems()-1)), graph.I64) {
				return nil
			}
		}
		var v float64
		switch op := n.Op.(type) {
		case graph.Unary:
			v = op.Fn.Eval(at(0, i), op.Alpha)
		case graph.Binary:
			v = op.Fn.Eval(at(0, i), at(1, i))
			if op.Fn == graph.Div && n.Type.DType.IsInt() {
				v = math.Trunc(v)
			}
		case graph.Select:
			if v = at(2, i); at(0, i) != 0 {
				v = at(1, i)
			}
		case graph.Cast:
			if v = at(0, i); n.Type.DType.IsInt() {
				v = math.Trunc(v)
			}
		}
		if n.Type.DType.IsInt() && !exactInt(v, n.Type.DType) {
			return nil
		}
		out.SetFloat(i, v)
	}
	return s.b.Const(out)
}

// exactInt reports whether v is an integer that the type d and float64 arithmetic hold exactly.
func exactInt(v float64, d graph.DType) bool {
	limit := float64(1 << 52)
	if d == graph.I32 {
		limit = math.MaxInt32
	}
	return v == math.Trunc(v) && math.Abs(v) <= limit
}

func foldReshape(s *simplifier, n *graph.Node) *graph.Node {
	c, ok := n.Args[0].Op.(graph.Const)
	if !ok {
		return nil
	}
	return s.b.Const(&graph.Tensor{Type: n.Type, Data: c.Value.Data})
}

func foldMove(s *simplifier, n *graph.Node) *graph.Node {
	shape := n.Type.Shape
	if shape.Elems() > foldLimit {
		return nil
	}
	in, ok := constants(n)
	if !ok {
		return nil
	}
	out := graph.NewTensor(n.Type)
	switch op := n.Op.(type) {
	case graph.Transpose:
		st := in[0].Type.Shape.Strides()
		eachIndex(shape, func(i int, ix []int) {
			from := 0
			for d, x := range ix {
				from += x * st[op.Perm.At(d)]
			}
			out.SetFloat(i, in[0].Float(from))
		})
	case graph.Slice:
		from := in[0].Type.Shape
		start := int(in[1].Float(0))
		if start < 0 || start+(max(op.Size, 1)-1)*op.Step >= max(from.At(op.Axis), 1) {
			return nil // an error at run time, with the user's line
		}
		st := from.Strides()
		eachIndex(shape, func(i int, ix []int) {
			k := start * st[op.Axis]
			for d, x := range ix {
				if d == op.Axis {
					x *= op.Step
				}
				k += x * st[d]
			}
			out.SetFloat(i, in[0].Float(k))
		})
	case graph.Concat:
		st, base := shape.Strides(), 0
		for _, t := range in {
			eachIndex(t.Type.Shape, func(i int, ix []int) {
				k := base * st[op.Axis]
				for d, x := range ix {
					k += x * st[d]
				}
				out.SetFloat(k, t.Float(i))
			})
			base += t.Type.Shape.At(op.Axis)
		}
	}
	if n.Type.DType == graph.I64 {
		for i := range out.Type.Shape.Elems() {
			if !exactInt(out.Float(i), graph.I64) {
				return nil
			}
		}
	}
	return s.b.Const(out)
}

// eachIndex calls f for every element of a shape, in row-major order.
func eachIndex(s graph.Shape, f func(i int, index []int)) {
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

func foldReduce(s *simplifier, n *graph.Node) *graph.Node {
	op := n.Op.(graph.Reduce)
	in, ok := constants(n)
	if !ok || in[0].Type.Shape.Elems() > foldLimit || !n.Type.DType.IsFloat() || in[0].Type.Shape.Elems() == 0 {
		return nil
	}
	from := in[0].Type.Shape
	st := make([]int, from.Rank()) // strides of the result, 0 along reduced axes
	for d, k := from.Rank()-1, 1; d >= 0; d-- {
		if !op.Axes.Has(d) {
			st[d] = k
			k *= from.At(d)
		}
	}
	acc := make([]float64, n.Type.Shape.Elems())
	for i := range acc {
		acc[i] = map[graph.ReduceFn]float64{graph.Prod: 1, graph.MaxOf: math.Inf(-1), graph.MinOf: math.Inf(1)}[op.Fn]
	}
	eachIndex(from, func(i int, ix []int) {
		k, v := 0, in[0].Float(i)
		for d, x := range ix {
			k += x * st[d]
		}
		switch op.Fn {
		case graph.Sum, graph.Mean:
			acc[k] += v
		case graph.Prod:
			acc[k] *= v
		case graph.MaxOf:
			acc[k] = max(acc[k], v)
		case graph.MinOf:
			acc[k] = min(acc[k], v)
		}
	})
	out := graph.NewTensor(n.Type)
	for i, v := range acc {
		if op.Fn == graph.Mean {
			v /= float64(from.Elems() / len(acc))
		}
		out.SetFloat(i, v)
	}
	return s.b.Const(out)
}
