package graph

import "slices"

// A PerNode holds a value for each node of one graph, by ID. A node for which nothing was set has the zero value. It
// takes less time and memory than a map.
type PerNode[T any] struct{ at []T }

// NewPerNode allocates space for all nodes that g has had so far.
func NewPerNode[T any](g *Graph) PerNode[T] { return PerNode[T]{make([]T, g.nextID)} }

// Get is what was set for n.
func (p *PerNode[T]) Get(n *Node) (v T) {
	if uint(n.ID) < uint(len(p.at)) {
		v = p.at[n.ID]
	}
	return v
}

// Set keeps v for n.
func (p *PerNode[T]) Set(n *Node, v T) {
	for n.ID >= len(p.at) {
		var none T
		p.at = append(p.at, none)
		p.at = p.at[:cap(p.at)]
	}
	p.at[n.ID] = v
}

// Uses lists the readers of each node of a graph. Code that rewrites the graph has to update it.
type Uses struct {
	readers PerNode[[]*Node]
	escapes PerNode[bool]
}

// Uses lists the readers of all nodes.
func (g *Graph) Uses() *Uses {
	u := &Uses{NewPerNode[[]*Node](g), NewPerNode[bool](g)}
	count, all := NewPerNode[int32](g), 0
	for _, n := range g.Nodes {
		for _, a := range n.Args {
			count.Set(a, count.Get(a)+1)
		}
		all += len(n.Args)
	}
	readers := make([]*Node, all)
	for _, n := range g.Nodes {
		if c := count.Get(n); c > 0 {
			u.readers.Set(n, readers[:0:c])
			readers = readers[c:]
		}
	}
	for _, n := range g.Nodes {
		for _, a := range n.Args {
			u.Add(a, n)
		}
	}
	for _, o := range g.Outputs {
		u.escapes.Set(o.Node, true)
	}
	for _, up := range g.Updates {
		u.escapes.Set(up.Target, true)
		u.escapes.Set(up.Value, true)
	}
	return u
}

// Of reports whether these are the uses of all nodes of g, as it is.
func (u *Uses) Of(g *Graph) bool {
	fresh := g.Uses()
	byID := func(a, b *Node) int { return a.ID - b.ID }
	sorted := func(list []*Node) []*Node { return slices.SortedFunc(slices.Values(list), byID) }
	for _, n := range g.Nodes {
		if u.Escapes(n) != fresh.Escapes(n) || !slices.Equal(sorted(u.Readers(n)), sorted(fresh.Readers(n))) {
			return false
		}
	}
	return true
}

// Readers lists the nodes that read n, in graph order until the graph is rewritten; a node that reads it twice is
// listed twice.
func (u *Uses) Readers(n *Node) []*Node { return u.readers.Get(n) }

// Escapes reports whether n is read from outside: it is an output or takes part in an update.
func (u *Uses) Escapes(n *Node) bool { return u.escapes.Get(n) }

// One reports whether exactly one operand of one node reads n, and nothing from outside.
func (u *Uses) One(n *Node) bool { return len(u.Readers(n)) == 1 && !u.Escapes(n) }

// None reports whether nothing reads n.
func (u *Uses) None(n *Node) bool { return len(u.Readers(n)) == 0 && !u.Escapes(n) }

// Add records that n is an operand of by.
func (u *Uses) Add(n, by *Node) { u.readers.Set(n, append(u.readers.Get(n), by)) }

// Remove removes n as an operand of by, once.
func (u *Uses) Remove(n, by *Node) {
	rs := u.readers.Get(n)
	switch i := slices.Index(rs, by); {
	case i == 0: // the common case: readers of a value are removed in the order of the graph
		u.readers.Set(n, rs[1:])
	case i > 0:
		u.readers.Set(n, slices.Delete(rs, i, i+1))
	}
}

// Move records that the readers of n read m.
func (u *Uses) Move(n, m *Node) {
	if u.None(m) {
		u.readers.Set(m, u.readers.Get(n))
	} else {
		u.readers.Set(m, append(u.readers.Get(m), u.readers.Get(n)...))
	}
	u.escapes.Set(m, u.escapes.Get(m) || u.escapes.Get(n))
	u.readers.Set(n, nil)
	u.escapes.Set(n, false)
}
