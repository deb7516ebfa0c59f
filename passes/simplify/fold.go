package simplify

import (
	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/constant"
)

// foldRules compute what depends on small constants only:
//
//	const 2 ─┐
//	const 3 ─ ⊙ ─►        const 6 ─►
//
// The arithmetic is that of the operation table: in float64 and rounded once to the element type, that of integers exact.
var foldRules = []Rule{
	{"fold", "elementwise of constants → constant", trace.Reassociated,
		[]graph.Op{graph.Unary{}, graph.Binary{}, graph.Select{}, graph.Cast{}}, foldElementwise},
	{"fold-reshape", "reshape of a constant → constant", trace.Exact, []graph.Op{graph.Reshape{}}, foldReshape},
	{"fold-move", "transpose, slice and concat of small constants → constant", trace.Exact,
		[]graph.Op{graph.Transpose{}, graph.Slice{}, graph.Concat{}}, foldMove},
	{"fold-reduce", "reduction of a small constant → constant", trace.Reassociated, []graph.Op{graph.Reduce{}}, foldReduce},
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
	if v := constant.Evaluate(n, in); v != nil {
		return s.b.Const(v)
	}
	return nil
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
	op, ok := n.Op.(graph.Concat)
	if !ok {
		if v := constant.View(n, in[0]); v != nil { // else an error at run time, with the user's line
			return s.b.Const(v)
		}
		return nil
	}
	out, st, base := graph.NewTensor(n.Type), shape.Strides(), 0
	for _, t := range in {
		constant.EachIndex(t.Type.Shape, func(i int, ix []int) {
			k := base * st[op.Axis]
			for d, x := range ix {
				k += x * st[d]
			}
			out.SetElem(k, t, i)
		})
		base += t.Type.Shape.At(op.Axis)
	}
	return s.b.Const(out)
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
	acc, row := make([]float64, n.Type.Shape.Elems()), op.Fn.Info()
	for i := range acc {
		acc[i] = row.Identity
	}
	join := row.Join.Info().Eval
	constant.EachIndex(from, func(i int, ix []int) {
		k, v := 0, in[0].Float(i)
		for d, x := range ix {
			k += x * st[d]
		}
		acc[k] = join(acc[k], v)
	})
	out := graph.NewTensor(n.Type)
	for i, v := range acc {
		if row.Averages {
			v /= float64(from.Elems() / len(acc))
		}
		out.SetFloat(i, v)
	}
	return s.b.Const(out)
}
