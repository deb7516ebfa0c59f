package rewrite

import "fusec/graph"

// Groups is a union-find forest of nodes. A node that is not in it is a group of one.
type Groups map[*graph.Node]*graph.Node

// Find returns the representative of n's group.
func (g Groups) Find(n *graph.Node) *graph.Node {
	for g[n] != nil {
		if up := g[g[n]]; up != nil {
			g[n] = up
		}
		n = g[n]
	}
	return n
}

// Join makes one group of those of a and b.
func (g Groups) Join(a, b *graph.Node) {
	if x, y := g.Find(a), g.Find(b); x != y {
		g[x] = y
	}
}
