package simplify

import (
	"fusec/graph"
	"fusec/graph/trace"
)

// reduceRules shorten reductions:
//
//	x ─ Σ[1] ─ Σ[0] ─►      x ─ Σ[0,1] ─►
//
// Merging sums changes the order of addition, and so the last bits, as any kernel may.
var reduceRules = []Rule{
	{"reduce-nothing", "reduction over axes of size 1 → reshape", trace.Exact, []graph.Op{graph.Reduce{}}, reduceNothing},
	{"reduce-reduce", "reduction of the same reduction, read once → one", trace.Reassociated, []graph.Op{graph.Reduce{}},
		reduceReduce},
}

func reduceNothing(s *simplifier, n *graph.Node) *graph.Node {
	op, x := n.Op.(graph.Reduce), n.Args[0]
	for i := range op.Axes.Len() {
		if x.Type.Shape.At(op.Axes.At(i)) != 1 {
			return nil
		}
	}
	return s.b.Reshape(x, n.Type.Shape.Slice()...)
}

func reduceReduce(s *simplifier, n *graph.Node) *graph.Node {
	outer, x := n.Op.(graph.Reduce), n.Args[0]
	inner, ok := x.Op.(graph.Reduce)
	if !ok || inner.Fn != outer.Fn || !s.oneUse(x) || x.Args[0].Type.Shape.Elems() == 0 {
		return nil
	}
	// kept maps the axes of the inner result to those of its operand.
	var kept []int
	for d := range x.Args[0].Type.Shape.Rank() {
		if inner.Keep || !inner.Axes.Has(d) {
			kept = append(kept, d)
		}
	}
	all := map[int]bool{}
	for i := range inner.Axes.Len() {
		all[inner.Axes.At(i)] = true
	}
	for i := range outer.Axes.Len() {
		all[kept[outer.Axes.At(i)]] = true
	}
	var axes []int
	for d := range x.Args[0].Type.Shape.Rank() {
		if all[d] {
			axes = append(axes, d)
		}
	}
	return s.b.Reshape(s.b.Reduce(outer.Fn, x.Args[0], false, axes...), n.Type.Shape.Slice()...)
}
