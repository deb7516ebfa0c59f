package passes

import "fusec/graph"

// startWhole makes a region of an operation that has kernels of its own, an Attention, a mixture of experts or the
// gradient of one, and its further results:
//
//	x ─ views ─ q ─┐
//	x ─ views ─ k ─ attention ─ views ─►        to    x, mask ─ Fusion{attention} ─►
//	x ─ views ─ v ─┘   │                                           └─ result[1] ─►
//	mask ──────────────┴─ result[1] ─►
//
// It takes views and no elementwise work: scale, masks and dropout of an attention are its own, and so are biases,
// activations and gates of a mixture.
func (f *fuser) startWhole(anchor graph.Anchor, n *graph.Node) {
	r := f.start(anchor, n, n.Type.Shape)
	for _, u := range f.users[n.ID] {
		if _, ok := u.Op.(graph.Result); ok {
			f.order.join(n, u)
			f.in[u.ID] = r
			r.nodes = append(r.nodes, u)
		}
	}
}
