package passes

import "fusec/graph"

// A launchOrder keeps nodes that are to become one launch together, as units, and the units in an order in which they
// can run. Two units may join if no path leads from one to the other through a third. Only units that stand between
// the two can be on such a path, so only they are looked at, and only they move (the idea is that of D. Pearce and
// P. Kelly, "A Dynamic Topological Sort Algorithm for Directed Acyclic Graphs", JEA 11, 2007).
type launchOrder struct {
	pos   []int           // by node ID: the place of the node's unit
	units [][]*graph.Node // by place; nil where a unit has joined another
	seen  []int           // by place: the walk that came by
	walk  int
	stack []int
}

// newLaunchOrder makes a unit of every node; size is more than the greatest ID.
func newLaunchOrder(g *graph.Graph, size int) launchOrder {
	o := launchOrder{pos: make([]int, size), units: make([][]*graph.Node, len(g.Nodes)), seen: make([]int, len(g.Nodes))}
	for i, n := range g.Nodes {
		o.pos[n.ID] = i
		o.units[i] = g.Nodes[i : i+1 : i+1]
	}
	return o
}

// between returns an operand of one of the units of a and b through which it depends on the other unit indirectly, or
// nil. What the later unit depends on, of the units between them, is then marked as seen.
func (o *launchOrder) between(a, b *graph.Node) *graph.Node {
	lo, hi := min(o.pos[a.ID], o.pos[b.ID]), max(o.pos[a.ID], o.pos[b.ID])
	o.walk++
	for _, n := range o.units[hi] {
		for _, x := range n.Args {
			if p := o.pos[x.ID]; p > lo && p < hi && o.reaches(p, lo) {
				return x
			}
		}
	}
	return nil
}

// reaches reports whether the unit at place from depends on the one at place lo.
func (o *launchOrder) reaches(from, lo int) bool {
	o.stack = append(o.stack[:0], from)
	for len(o.stack) > 0 {
		p := o.stack[len(o.stack)-1]
		o.stack = o.stack[:len(o.stack)-1]
		if o.seen[p] == o.walk {
			continue
		}
		o.seen[p] = o.walk
		for _, n := range o.units[p] {
			for _, x := range n.Args {
				switch q := o.pos[x.ID]; {
				case q == lo:
					return true
				case q > lo && q != p:
					o.stack = append(o.stack, q)
				}
			}
		}
	}
	return false
}

// join makes one unit of those of a and b, between which nothing is: it stands after what either depends on, and
// before the rest.
func (o *launchOrder) join(a, b *graph.Node) {
	if o.pos[a.ID] == o.pos[b.ID] || o.between(a, b) != nil {
		return
	}
	lo, hi := min(o.pos[a.ID], o.pos[b.ID]), max(o.pos[a.ID], o.pos[b.ID])
	joined := append(o.units[lo], o.units[hi]...)
	var before, after [][]*graph.Node
	for p := lo + 1; p < hi; p++ {
		switch {
		case o.units[p] == nil:
		case o.seen[p] == o.walk:
			before = append(before, o.units[p])
		default:
			after = append(after, o.units[p])
		}
	}
	clear(o.units[lo : hi+1])
	p := lo
	for _, list := range [][][]*graph.Node{before, {joined}, after} {
		for _, u := range list {
			o.units[p] = u
			for _, n := range u {
				o.pos[n.ID] = p
			}
			p++
		}
	}
}
