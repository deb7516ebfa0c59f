package fuse

import "fusec/graph"

// startWhole makes a region of an operation with special kernels, an Attention, a mixture of experts or the
// gradient of one, and its further results:
//
//	x ─ views ─ q ─┐
//	x ─ views ─ k ─ attention ─ views ─►        to    x, mask ─ Fusion{attention} ─►
//	x ─ views ─ v ─┘   │                                           └─ result[1] ─►
//	mask ──────────────┴─ result[1] ─►
//
// It takes views and no elementwise work but the rounding of a result to 16 bits: scale, masks and dropout of an attention
// are its own, and so are biases, activations and gates of a mixture.
func (f *fuser) startWhole(anchor graph.Anchor, n *graph.Node) {
	r := f.start(anchor, n, n.Type.Shape)
	for _, u := range f.uses.Readers(n) {
		if _, ok := u.Op.(graph.Result); ok {
			f.order.join(n, u)
			f.in[u.ID] = r
			r.nodes = append(r.nodes, u)
		}
	}
}

// roundsOnly reports whether n is the one reader of a result of region r, whose operands have 16 bits, and rounds it to as
// many: then that is how the result is written.
func (f *fuser) roundsOnly(r *region, n *graph.Node) bool {
	op, ok := n.Op.(graph.Cast)
	if !ok || !op.To.Is16() || r.root.Args[0].Type.DType != op.To {
		return false
	}
	of := n.Args[0]
	if f.in[of.ID] != r || of.Type.DType != graph.F32 || f.uses.Escapes(of) {
		return false
	}
	for _, u := range f.uses.Readers(of) {
		if _, further := u.Op.(graph.Result); !further && u != n {
			return false
		}
	}
	return true
}

// rounded reports whether the first result of region r is written in 16 bits only.
func (f *fuser) rounded(r *region) bool {
	for _, u := range f.uses.Readers(r.root) {
		if _, ok := u.Op.(graph.Cast); ok && f.in[u.ID] == r {
			return true
		}
	}
	return false
}
