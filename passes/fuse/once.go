package fuse

import (
	"slices"

	"fusec/graph"
)

// A onceness says which values follow from constants and frozen parameters alone, so that lowering computes them once:
//
//	γ, σ² ─► Mul(γ, Rsqrt(σ²)) ─► Mul ─►        γ, σ² ─► Fusion{elementwise} ─►          once
//	           x, w ─► MatMul ─────┘       to     x, w ─► Fusion{matmul, Mul} ─►         in each run
//
// They do not join launches that run each time. A value with more elements than what it is made of is the exception: a run
// reads less if it computes the value where it is read.
type onceness struct {
	can  []bool // it could be computed once
	does []bool // and it is
}

func newOnceness(g *graph.Graph, uses *graph.Uses, params bool, size int) onceness {
	o := onceness{make([]bool, size), make([]bool, size)}
	frozen := graph.Frozen(g, params)
	reads := make([]int64, size) // bytes that are read where the value is computed
	for _, n := range g.Nodes {
		can := frozen.Get(n)
		source := graph.ClassOf(n.Op) == graph.ClassSource
		var from int64
		for i, a := range n.Args {
			can = can && o.can[a.ID]
			if !slices.Contains(n.Args[:i], a) {
				from += reads[a.ID]
			}
		}
		if !source && uses.Escapes(n) || !can { // what is handed out is made in each run
			continue
		}
		o.can[n.ID] = true
		bytes := n.Type.Bytes()
		switch {
		case source:
			reads[n.ID] = bytes
		case graph.IsView(n.Op):
			o.does[n.ID], reads[n.ID] = o.does[n.Args[0].ID], min(from, bytes)
		case graph.Joins(n.Op) && from < bytes:
			reads[n.ID] = from
		default:
			o.does[n.ID], reads[n.ID] = true, bytes
		}
	}
	return o
}

// apart returns why n may not be in one launch with root, because one is computed once and the other in each run, or nil.
func (o *onceness) apart(root, n *graph.Node) why {
	switch {
	case o.does[root.ID] == o.does[n.ID], o.does[root.ID] && o.can[n.ID]:
		return nil
	case o.does[n.ID]:
		return because("it is computed once, from frozen parameters and constants")
	}
	return because("the launch is computed once, from frozen parameters and constants")
}
