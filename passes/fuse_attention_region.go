package passes

import "fusec/graph"

// startAttention makes a region of an Attention, or of its gradient, and its further results:
//
//	x ─ views ─ q ─┐
//	x ─ views ─ k ─ attention ─ views ─►        to    x, mask ─ Fusion{attention} ─►
//	x ─ views ─ v ─┘   │                                           └─ result[1] ─►
//	mask ──────────────┴─ result[1] ─►
//
// It takes views and no elementwise work: scale, masks and dropout are its own.
func (f *fuser) startAttention(n *graph.Node) {
	r := f.start(graph.AnchorAttention, n, n.Type.Shape)
	for _, u := range f.users[n.ID] {
		if _, ok := u.Op.(graph.Result); ok {
			f.order.join(n, u)
			f.in[u.ID] = r
			r.nodes = append(r.nodes, u)
		}
	}
}
