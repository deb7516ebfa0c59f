package passes

import (
	"cmp"
	"slices"

	"fusec/graph"
)

// A launchOrder keeps nodes that are to become one launch together, as units, and the units in an order in which they
// can run. Two units may join if no path leads from one to the other through a third. Only units that stand between
// the two can be on such a path, so only they are looked at, and only those of them that the later one depends on move
// (the idea is that of D. Pearce and P. Kelly, "A Dynamic Topological Sort Algorithm for Directed Acyclic Graphs", JEA
// 11, 2007).
//
// The order is a list with labels that increase along it, so that a move costs no more than what moves (P. Dietz and
// D. Sleator, "Two Algorithms for Maintaining Order in a List", STOC 1987, as simplified by M. Bender et al., ESA 2002).
type launchOrder struct {
	of      []*unit // by node ID
	first   unit    // the list's two ends, which hold no nodes
	last    unit
	walk    int
	visited []*unit  // by the last walk
	apart   [2]*unit // between which the last walk found nothing; what it visited moves before the first if they join
}

// A unit is nodes that are one launch. Whatever else the order holds comes either before all of them or after.
type unit struct {
	nodes      []*graph.Node
	label      uint64
	prev, next *unit
	seen       int // the last walk that came by
}

// labelGap is how far apart labels are at first.
const labelGap = 1 << 32

// newLaunchOrder makes a unit of every node; size is more than the greatest ID.
func newLaunchOrder(g *graph.Graph, size int) *launchOrder {
	o := &launchOrder{of: make([]*unit, size)}
	units := make([]unit, len(g.Nodes))
	last := &o.first
	for i, n := range g.Nodes {
		u := &units[i]
		u.nodes = g.Nodes[i : i+1 : i+1]
		u.label = last.label + labelGap
		last.next, u.prev = u, last
		o.of[n.ID] = u
		last = u
	}
	last.next, o.last.prev = &o.last, last
	o.last.label = last.label + labelGap
	return o
}

// between reports whether one of the units of a and b depends on the other through a third. If not, the units between
// them that the later one depends on have been visited.
func (o *launchOrder) between(a, b *graph.Node) bool {
	lo, hi := o.sorted(a, b)
	o.begin()
	for _, n := range hi.nodes {
		for _, x := range n.Args {
			if u := o.of[x.ID]; u.label > lo.label && u != hi {
				o.meet(u)
			}
		}
	}
	if o.reaches(lo, 0) {
		return true
	}
	o.apart = [2]*unit{lo, hi}
	return false
}

// way returns the first operand of one of the units of a and b through which it depends on the other indirectly, or nil.
func (o *launchOrder) way(a, b *graph.Node) *graph.Node {
	lo, hi := o.sorted(a, b)
	o.begin()
	for _, n := range hi.nodes {
		for _, x := range n.Args {
			had := len(o.visited)
			if u := o.of[x.ID]; u.label > lo.label && u != hi {
				if o.meet(u); o.reaches(lo, had) {
					return x
				}
			}
		}
	}
	return nil
}

// sorted are the units of a and b, the earlier one first.
func (o *launchOrder) sorted(a, b *graph.Node) (lo, hi *unit) {
	lo, hi = o.of[a.ID], o.of[b.ID]
	if lo.label > hi.label {
		return hi, lo
	}
	return lo, hi
}

// begin starts a walk.
func (o *launchOrder) begin() {
	o.walk++
	o.visited, o.apart = o.visited[:0], [2]*unit{}
}

// meet visits a unit, if the walk has not.
func (o *launchOrder) meet(u *unit) {
	if u.seen != o.walk {
		u.seen = o.walk
		o.visited = append(o.visited, u)
	}
}

// reaches reports whether a visited unit, from number first on, depends on unit lo. It goes from them in breadth: where
// a gradient reads what the forward has computed, there is a short way, and a long one along the whole graph.
func (o *launchOrder) reaches(lo *unit, first int) bool {
	for ; first < len(o.visited); first++ {
		for _, n := range o.visited[first].nodes {
			for _, x := range n.Args {
				v := o.of[x.ID]
				if v == lo {
					return true
				}
				if v.label > lo.label {
					o.meet(v)
				}
			}
		}
	}
	return false
}

// join makes one unit of those of a and b, if nothing is between them: it stands after what either depends on, and
// before the rest.
func (o *launchOrder) join(a, b *graph.Node) {
	lo, hi := o.sorted(a, b)
	if lo == hi || o.apart != [2]*unit{lo, hi} && o.between(a, b) {
		return
	}
	o.apart = [2]*unit{}
	lo.nodes = append(lo.nodes, hi.nodes...)
	for _, n := range hi.nodes {
		o.of[n.ID] = lo
	}
	hi.unlink()
	slices.SortFunc(o.visited, func(u, v *unit) int { return cmp.Compare(u.label, v.label) })
	for _, u := range o.visited {
		u.unlink()
	}
	o.insert(o.visited, lo)
}

// split takes nodes out of the unit of root, none of which the rest depends on, and makes each a unit of its own. They
// are given in an order in which they can run.
func (o *launchOrder) split(root *graph.Node, out []*graph.Node) {
	from := o.of[root.ID]
	units := make([]*unit, len(out))
	for i, n := range out {
		units[i] = &unit{nodes: out[i : i+1 : i+1]}
		o.of[n.ID] = units[i]
	}
	o.apart = [2]*unit{}
	from.nodes = slices.DeleteFunc(slices.Clone(from.nodes), func(n *graph.Node) bool { return o.of[n.ID] != from })
	o.insert(units, from.next)
}

func (u *unit) unlink() { u.prev.next, u.next.prev = u.next, u.prev }

// insert puts units, in their order, right before another. They share the first quarter of the gap that is there: more
// may well come to the same place.
func (o *launchOrder) insert(units []*unit, before *unit) {
	if len(units) == 0 {
		return
	}
	after := before.prev
	step := (before.label - after.label) / uint64(4*len(units))
	last := after
	for _, u := range units {
		u.label = last.label + step
		u.prev, last.next = last, u
		last = u
	}
	last.next, before.prev = before, last
	if step == 0 {
		o.relabel(after, before)
	}
}

// relabel spaces the labels from one unit to another evenly, together with as many of those around them as it takes to
// make room: the more units there are, the more room for each.
func (o *launchOrder) relabel(from, to *unit) {
	n := uint64(0)
	for u := from; u != to; u = u.next {
		n++
	}
	for grow := n; (to.label-from.label)/n < 64+n; grow = n {
		for ; grow > 0 && from.prev != nil; grow-- {
			from = from.prev
			n++
		}
		for grow = n; grow > 0 && to.next != nil; grow-- {
			to = to.next
			n++
		}
	}
	step := (to.label - from.label) / n
	for u := from; u.next != to; u = u.next {
		u.next.label = u.label + step
	}
}
