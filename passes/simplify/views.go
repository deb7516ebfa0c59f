package simplify

import (
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

// viewRules give chains of views their shortest form:
//
//	x ─ reshape ─ reshape ─►              x ─ reshape ─►
//	x ─ transpose[1,0] ─ transpose[1,0] ─►        x ─►
//	x ─ reshape[1,n] ─ broadcast[m,n] ─►  x ─ broadcast[m,n] ─►
var viewRules = []Rule{
	{"identity-view", "a view that changes nothing → its operand", trace.Exact,
		[]graph.Op{graph.Reshape{}, graph.Transpose{}, graph.Broadcast{}, graph.Slice{}}, identityView},
	{"reshape-reshape", "reshape of a reshape → one", trace.Exact, []graph.Op{graph.Reshape{}}, reshapeReshape},
	{"transpose-transpose", "transpose of a transpose → one", trace.Exact, []graph.Op{graph.Transpose{}}, transposeTranspose},
	{"transpose-reshape", "transpose that moves only axes of size 1 → reshape", trace.Exact, []graph.Op{graph.Transpose{}},
		transposeReshape},
	{"broadcast-broadcast", "broadcast of a broadcast → one", trace.Exact, []graph.Op{graph.Broadcast{}}, broadcastBroadcast},
	{"broadcast-reshape", "broadcast after a reshape that only adds or drops leading axes of size 1 → broadcast", trace.Exact,
		[]graph.Op{graph.Broadcast{}}, broadcastReshape},
	{"view-of-single", "any view of one value repeated → the value repeated", trace.Exact,
		[]graph.Op{graph.Reshape{}, graph.Transpose{}, graph.Slice{}}, viewOfSingle},
	{"slice-slice", "slice of a slice of the same axis, constant starts → one", trace.Exact, []graph.Op{graph.Slice{}}, sliceSlice},
	{"slice-concat", "slice that takes from one operand of a concat → slice of the operand", trace.Exact,
		[]graph.Op{graph.Slice{}}, sliceConcat},
}

func identityView(_ *simplifier, n *graph.Node) *graph.Node {
	x := n.Args[0]
	if x.Type != n.Type {
		return nil
	}
	switch op := n.Op.(type) {
	case graph.Transpose:
		for i := range op.Perm.Len() {
			if op.Perm.At(i) != i {
				return nil
			}
		}
	case graph.Slice:
		if start, ok := n.Args[1].ConstScalar(); !ok || start != 0 {
			return nil // any other start is an error at run time
		}
	}
	return x
}

func reshapeReshape(s *simplifier, n *graph.Node) *graph.Node {
	if _, ok := n.Args[0].Op.(graph.Reshape); !ok {
		return nil
	}
	return s.b.Add(n.Op, n.Args[0].Args[0])
}

func transposeTranspose(s *simplifier, n *graph.Node) *graph.Node {
	inner, ok := n.Args[0].Op.(graph.Transpose)
	if !ok {
		return nil
	}
	outer := n.Op.(graph.Transpose)
	perm := make([]int, outer.Perm.Len())
	for i := range perm {
		perm[i] = inner.Perm.At(outer.Perm.At(i))
	}
	return s.b.Transpose(n.Args[0].Args[0], perm...)
}

func transposeReshape(s *simplifier, n *graph.Node) *graph.Node {
	perm, last := n.Op.(graph.Transpose).Perm, -1
	for i := range perm.Len() {
		if n.Type.Shape.At(i) == 1 {
			continue
		}
		if perm.At(i) < last {
			return nil
		}
		last = perm.At(i)
	}
	return s.b.Reshape(n.Args[0], n.Type.Shape.Slice()...)
}

func broadcastBroadcast(s *simplifier, n *graph.Node) *graph.Node {
	if _, ok := n.Args[0].Op.(graph.Broadcast); !ok {
		return nil
	}
	return s.b.Add(n.Op, n.Args[0].Args[0])
}

func broadcastReshape(s *simplifier, n *graph.Node) *graph.Node {
	r := n.Args[0]
	if _, ok := r.Op.(graph.Reshape); !ok {
		return nil
	}
	x := r.Args[0]
	if !slices.Equal(rewrite.Trimmed(x.Type.Shape), rewrite.Trimmed(r.Type.Shape)) || x.Type.Shape.Rank() > n.Type.Shape.Rank() {
		return nil
	}
	return s.b.Add(n.Op, x)
}

func viewOfSingle(s *simplifier, n *graph.Node) *graph.Node {
	x := n.Args[0]
	if _, ok := x.Op.(graph.Broadcast); !ok || x.Args[0].Type.Shape.Elems() != 1 {
		return nil
	}
	if op, ok := n.Op.(graph.Slice); ok {
		if _, fits := op.ConstStart(n); !fits {
			return nil
		}
	}
	return s.b.Broadcast(s.b.Reshape(x.Args[0]), n.Type.Shape)
}

func sliceSlice(s *simplifier, n *graph.Node) *graph.Node {
	outer, x := n.Op.(graph.Slice), n.Args[0]
	inner, ok := x.Op.(graph.Slice)
	if !ok || inner.Axis != outer.Axis || outer.Size == 0 {
		return nil
	}
	a, aFits := inner.ConstStart(x)
	b, bFits := outer.ConstStart(n)
	if !aFits || !bFits {
		return nil
	}
	step := 1 // which is as good as any for one element, and the product might overflow
	if outer.Size > 1 {
		step = inner.Step * outer.Step
	}
	return s.b.Slice(x.Args[0], outer.Axis, a+b*inner.Step, outer.Size, step)
}

func sliceConcat(s *simplifier, n *graph.Node) *graph.Node {
	op, x := n.Op.(graph.Slice), n.Args[0]
	cat, ok := x.Op.(graph.Concat)
	first, fits := op.ConstStart(n)
	if !ok || cat.Axis != op.Axis || op.Size == 0 || !fits {
		return nil
	}
	last := first + (op.Size-1)*op.Step
	for _, a := range x.Args {
		d := a.Type.Shape.At(op.Axis)
		if first < d {
			if last >= d {
				return nil
			}
			return s.b.Slice(a, op.Axis, first, op.Size, op.Step)
		}
		first, last = first-d, last-d
	}
	return nil
}
