package graph

import (
	"fmt"
	"reflect"
	"slices"
)

// A Recorder takes snapshots of a graph while passes rewrite it. Snapshots share everything unchanged: a node whose
// operation, operands, type, name, phase and origins are the same, the bodies of fusions, and the whole graph if nothing has
// changed. So a snapshot, and the body of a fusion once it is made, must not be changed. The zero Recorder is ready to
// use.
type Recorder struct {
	of   PerNode[*Node] // the last snapshot's node for each of the graph's
	last *Graph         // the last snapshot
}

// Snapshot is a copy of the current g. All calls must pass the same graph. Where no node was made since the last call, and the
// nodes, outputs and updates are the same and in the same order, it is the same copy, without a look at each node: who changes a
// node in place adds, drops or moves one, too. [Recorder.Check] finds a change of which that is not so.
func (r *Recorder) Snapshot(g *Graph) *Graph {
	if r.last == nil {
		r.of = NewPerNode[*Node](g)
	} else if r.unchanged(g) {
		return r.last
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
	if r.last == nil || !r.unchanged(g) {
		r.last = s
	}
	return r.last
}

// Check reports a node of g that is not as the last snapshot has it.
func (r *Recorder) Check(g *Graph) error {
	for _, n := range g.Nodes {
		if k := r.of.Get(n); k == nil || !r.same(n, k) && comparesOp(n.Op) {
			return fmt.Errorf("%s was changed in place, and no node was added, dropped or moved", n.Where())
		}
	}
	return nil
}

// unchanged reports whether g has the nodes, outputs and updates of the last snapshot, and none was added and dropped.
func (r *Recorder) unchanged(g *Graph) bool {
	l := r.last
	return l.nextID == g.nextID && l.Name == g.Name && l.Parts == g.Parts && slices.Equal(l.Mesh, g.Mesh) &&
		slices.EqualFunc(l.Nodes, g.Nodes, func(k, n *Node) bool { return k == r.of.Get(n) }) &&
		slices.EqualFunc(l.Outputs, g.Outputs, func(k, o Output) bool { return k == Output{o.Name, r.of.Get(o.Node)} }) &&
		slices.EqualFunc(l.Updates, g.Updates, func(k, u Update) bool { return k == Update{r.of.Get(u.Target), r.of.Get(u.Value)} })
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
	return comparesOp(n.Op) && n.Op == k.Op
}

// comparesOp reports whether == can compare op: a user's operation may hold what it cannot.
func comparesOp(op Op) bool {
	h, ok := op.(Host)
	return !ok || reflect.ValueOf(h.Impl).Comparable()
}
