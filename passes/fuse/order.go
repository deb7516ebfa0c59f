package fuse

import (
	"cmp"
	"slices"

	"fusec/graph"
)

// A launchOrder keeps nodes that are to become one launch together, as units, and the units in an order in which they
// can run. Two units may join if no path leads from one to the other through a third. Only units between the
// two in the order can be on such a path. So only they are looked at, and of them only those move that the later one
// depends on, or those that depend on the earlier one (after D. Pearce and P. Kelly, "A Dynamic Topological Sort
// Algorithm for Directed Acyclic Graphs", JEA 11, 2007).
//
// The order is a list with labels that increase along it, so that a move costs no more than what moves (P. Dietz and
// D. Sleator, "Two Algorithms for Maintaining Order in a List", STOC 1987, as simplified by M. Bender et al., ESA 2002).
type launchOrder struct {
	of    graph.PerNode[*unit]
	uses  *graph.Uses
	first unit // the list's two ends, which hold no nodes
	last  unit

	// The last walk: between which units, what it visited from either end, and whether the walks from the two ends met.
	walk   int
	lo, hi *unit
	back   []*unit
	ahead  []*unit
	met    bool
	apart  [2]*unit // between which it found no way
}

// A unit is nodes that are one launch. Every other node comes before all of them or after all of them.
type unit struct {
	nodes       []*graph.Node
	label       uint64
	prev, next  *unit
	back, ahead int // the last walks that came by from either side
}

// labelGap is how far apart labels are at first.
const labelGap = 1 << 32

// newLaunchOrder makes a unit of every node.
func newLaunchOrder(g *graph.Graph, uses *graph.Uses) *launchOrder {
	o := &launchOrder{of: graph.NewPerNode[*unit](g), uses: uses}
	units := make([]unit, len(g.Nodes))
	last := &o.first
	for i, n := range g.Nodes {
		u := &units[i]
		u.nodes = g.Nodes[i : i+1 : i+1]
		u.label = last.label + labelGap
		last.next, u.prev = u, last
		o.of.Set(n, u)
		last = u
	}
	last.next, o.last.prev = &o.last, last
	o.last.label = last.label + labelGap
	return o
}

// between reports whether one of the units of a and b depends on the other through a third.
func (o *launchOrder) between(a, b *graph.Node) bool {
	lo, hi := o.sorted(a, b)
	o.begin(lo, hi)
	for _, n := range hi.nodes {
		for _, x := range n.Args {
			o.goBack(o.of.Get(x))
		}
	}
	if o.meet() {
		return true
	}
	o.apart = [2]*unit{lo, hi}
	return false
}

// way returns the first operand of one of the units of a and b through which it depends on the other indirectly, or nil.
func (o *launchOrder) way(a, b *graph.Node) *graph.Node {
	lo, hi := o.sorted(a, b)
	for _, n := range hi.nodes {
		for _, x := range n.Args {
			if u := o.of.Get(x); u.label > lo.label && u != hi {
				if o.begin(lo, hi); o.goBack(u) || o.meet() {
					return x
				}
			}
		}
	}
	return nil
}

// sorted are the units of a and b, the earlier one first.
func (o *launchOrder) sorted(a, b *graph.Node) (lo, hi *unit) {
	lo, hi = o.of.Get(a), o.of.Get(b)
	if lo.label > hi.label {
		return hi, lo
	}
	return lo, hi
}

// begin starts a walk between two units, at all that reads the first.
func (o *launchOrder) begin(lo, hi *unit) {
	o.walk++
	o.lo, o.hi, o.apart = lo, hi, [2]*unit{}
	o.back, o.ahead, o.met = o.back[:0], o.ahead[:0], false
	for _, n := range lo.nodes {
		for _, r := range o.uses.Readers(n) {
			o.goAhead(o.of.Get(r))
		}
	}
}

// goBack visits a unit that the later one depends on, if it is between the two, and reports whether the earlier one
// is known to be on a way to it.
func (o *launchOrder) goBack(u *unit) bool {
	if u.label > o.lo.label && u != o.hi && u.back != o.walk {
		u.back = o.walk
		o.back = append(o.back, u)
		o.met = o.met || u.ahead == o.walk
	}
	return o.met
}

// goAhead visits a unit that depends on the earlier one, if it is between the two.
func (o *launchOrder) goAhead(u *unit) {
	if u.label < o.hi.label && u != o.lo && u.ahead != o.walk {
		u.ahead = o.walk
		o.ahead = append(o.ahead, u)
		o.met = o.met || u.back == o.walk
	}
}

// meet goes on from both ends in turn, in breadth, and reports whether they meet. If they do not, one of back and ahead
// is then all that the later unit depends on, or all that depends on the earlier one, of what is between them.
// Where a gradient reads what the forward has computed, one walk is short and the other would go along the whole graph.
func (o *launchOrder) meet() bool {
	for i := 0; !o.met && i < len(o.back) && i < len(o.ahead); i++ {
		for _, n := range o.back[i].nodes {
			for _, x := range n.Args {
				o.goBack(o.of.Get(x))
			}
		}
		for _, n := range o.ahead[i].nodes {
			for _, r := range o.uses.Readers(n) {
				o.goAhead(o.of.Get(r))
			}
		}
	}
	return o.met
}

// join makes one unit of those of a and b, if nothing is between them. Either what the later one depends on moves before
// the earlier, and the new unit takes the earlier place, or what depends on the earlier one moves behind the later.
func (o *launchOrder) join(a, b *graph.Node) {
	lo, hi := o.sorted(a, b)
	if lo == hi || o.apart != [2]*unit{lo, hi} && o.between(a, b) {
		return
	}
	o.apart = [2]*unit{}
	moved, into, from := o.back, lo, hi
	if len(o.ahead) < len(o.back) {
		moved, into, from = o.ahead, hi, lo
	}
	into.nodes = append(into.nodes, from.nodes...)
	for _, n := range from.nodes {
		o.of.Set(n, into)
	}
	from.unlink()
	slices.SortFunc(moved, func(u, v *unit) int { return cmp.Compare(u.label, v.label) })
	for _, u := range moved {
		u.unlink()
	}
	if into == lo {
		o.insert(moved, lo.prev, lo, 0)
	} else {
		o.insert(moved, hi, hi.next, 3)
	}
}

// split takes nodes out of the unit of root, none of which the rest depends on, and makes each a separate unit. They
// are given in an order in which they can run.
func (o *launchOrder) split(root *graph.Node, out []*graph.Node) {
	from := o.of.Get(root)
	units := make([]*unit, len(out))
	for i, n := range out {
		units[i] = &unit{nodes: out[i : i+1 : i+1]}
		o.of.Set(n, units[i])
	}
	o.apart = [2]*unit{}
	from.nodes = slices.DeleteFunc(slices.Clone(from.nodes), func(n *graph.Node) bool { return o.of.Get(n) != from })
	o.insert(units, from, from.next, 1)
}

func (u *unit) unlink() { u.prev.next, u.next.prev = u.next, u.prev }

// insert puts units, in their order, between two neighbours. They share one quarter of the gap that is there, of the
// given number, since more units may be put in the same place.
func (o *launchOrder) insert(units []*unit, after, before *unit, quarter uint64) {
	if len(units) == 0 {
		return
	}
	gap := before.label - after.label
	step := gap / uint64(4*len(units)+4)
	last, label := after, after.label+gap/4*quarter
	for _, u := range units {
		label += step
		u.label, u.prev, last.next = label, last, u
		last = u
	}
	last.next, before.prev = before, last
	if step == 0 {
		o.relabel(after, before)
	}
}

// relabel spaces the labels from one unit to another evenly, together with as many of those around them as are
// needed for gaps. The more units there are, the larger the gap for each.
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
