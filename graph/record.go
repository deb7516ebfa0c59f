package graph

import (
	"reflect"
	"slices"
)

// A Recorder takes snapshots of a graph while passes rewrite it. Snapshots share everything unchanged: a node whose
// operation, operands, type, name, phase and origins are the same, the bodies of fusions, and the whole graph if nothing has
// changed. So a snapshot, and the body of a fusion once it is made, must not be changed. The zero Recorder is ready to
// use.
type Recorder struct {
	of   PerNode[*Node] // the last snapshot's node for each of the graph's
	last *Graph
}

// Snapshot is a copy of the current g. All calls must pass the same graph.
func (r *Recorder) Snapshot(g *Graph) *Graph {
	if r.last == nil {
		r.of, r.last = NewPerNode[*Node](g), New(g.Name)
	}
	s := &Graph{Name: g.Name, Mesh: g.Mesh, Parts: g.Parts, nextID: g.nextID, Nodes: make([]*Node, len(g.Nodes))}
	for i, n := range g.Nodes {
		k := r.of.Get(n)
		if k == nil || !r.same(n, k) {
			c := *n
			c.Args = make([]*Node, len(n.Args))
			for j, a := range n.Args {
				c.Args[j] = r.of.Get(a)
			}
			k = &c
			r.of.Set(n, k)
		}
		s.Nodes[i] = k
	}
	for _, o := range g.Outputs {
		s.Outputs = append(s.Outputs, Output{o.Name, r.of.Get(o.Node)})
	}
	for _, u := range g.Updates {
		s.Updates = append(s.Updates, Update{r.of.Get(u.Target), r.of.Get(u.Value)})
	}
	l := r.last
	if s.Name != l.Name || !slices.Equal(s.Mesh, l.Mesh) || s.Parts != l.Parts || s.nextID != l.nextID ||
		!slices.Equal(s.Nodes, l.Nodes) ||
		!slices.Equal(s.Outputs, l.Outputs) || !slices.Equal(s.Updates, l.Updates) {
		r.last = s
	}
	return r.last
}

// same reports whether n is unchanged since its snapshot k. Slices of origins are replaced, never written to.
func (r *Recorder) same(n, k *Node) bool {
	if n.ID != k.ID || n.Name != k.Name || n.Phase != k.Phase || n.Type != k.Type || n.Sharding != k.Sharding ||
		len(n.Args) != len(k.Args) || len(n.Origin) != len(k.Origin) ||
		len(n.Origin) > 0 && &n.Origin[0] != &k.Origin[0] {
		return false
	}
	for i, a := range n.Args {
		if r.of.Get(a) != k.Args[i] {
			return false
		}
	}
	if h, ok := n.Op.(Host); ok && !reflect.ValueOf(h.Impl).Comparable() {
		return false
	}
	return n.Op == k.Op
}
