package recompute

import (
	"fmt"
	"slices"

	"fusec/graph"
	"fusec/graph/arena"
)

// A timeline is a lowered graph as memory sees it: launches in the order in which they run, and the values that they
// make and read. For a plan, which says what is computed again, it gives the order of launches and the memory that
// this takes, as lowering will lay it out.
type timeline struct {
	launches []timedLaunch
	values   []timedValue
	number   map[*graph.Node]int // of the launch of a node
	holds    map[*graph.Node]int // the value in whose memory a node is stored; sources and constants have none
	peak     int                 // the first launch at which most memory is in use
	prepared []bool              // by launch: lowering makes it a part of the prepared part
	once     []bool              // by launch: so it would, if the launch handed nothing out
}

type timedLaunch struct {
	node         *graph.Node
	makes, reads []int // values
	flops, bytes int64
	old          []int  // the launches that make the new values of State and Param nodes which it reads
	refusal      string // why it cannot run again, or ""
}

type timedValue struct {
	by    int   // the launch that makes it
	bytes int64 // in memory
	kept  bool  // handed out, written to state or prepared: it has memory outside the arena until the run is over
}

// newTimeline reads a graph that pass place has prepared. If frozen is set, parameters without an update are frozen.
func newTimeline(g *graph.Graph, frozen bool) *timeline {
	t := &timeline{number: map[*graph.Node]int{}, holds: map[*graph.Node]int{}}
	first := map[*graph.Node]int{} // of a launch's values
	for _, n := range g.Nodes {
		if _, isConst := n.Op.(graph.Const); isConst || graph.IsSource(n.Op) {
			continue
		}
		if r, ok := n.Op.(graph.Result); ok {
			t.holds[n] = first[n.Args[0]] + r.Index
			continue
		}
		if isStrides(n) {
			if v, ok := t.holds[n.Args[0]]; ok {
				t.holds[n] = v
			}
			continue
		}
		cost := graph.CostOf(n)
		l := timedLaunch{node: n, flops: cost.FLOPs, bytes: cost.Bytes()}
		for _, a := range n.Args {
			if v, ok := t.holds[a]; ok && !slices.Contains(l.reads, v) {
				l.reads = append(l.reads, v)
			}
		}
		first[n], t.holds[n] = len(t.values), len(t.values)
		types, _ := graph.ResultTypes(n.Op, n.Args) // which Add has checked
		for _, ty := range types {
			l.makes = append(l.makes, len(t.values))
			t.values = append(t.values, timedValue{by: len(t.launches), bytes: ty.Bytes()})
		}
		t.number[n] = len(t.launches)
		t.launches = append(t.launches, l)
	}
	for n := range g.Escapes() {
		if v, ok := t.holds[n]; ok {
			t.values[v].kept = true
		}
	}
	if len(t.launches) == 0 {
		return t
	}
	t.prepare(graph.Frozen(g, frozen))
	t.readOld(g)
	t.peak = len(t.launches) - 1 // so that the order is that of the graph
	order := t.order(t.nothing())
	_, t.peak = arena.Peak(t.lifetimes(order, t.nothing()), len(order))
	t.refuse()
	return t
}

// prepare marks the launches of the prepared part. What the run reads of their results has memory of its own.
func (t *timeline) prepare(frozen graph.PerNode[bool]) {
	t.prepared, t.once = make([]bool, len(t.launches)), make([]bool, len(t.launches))
	for i, l := range t.launches {
		t.once[i] = frozen.Get(l.node) && !slices.ContainsFunc(l.reads, func(v int) bool { return !t.prepared[t.values[v].by] })
		t.prepared[i] = t.once[i] && !slices.ContainsFunc(l.makes, func(v int) bool { return t.values[v].kept })
	}
	for i, l := range t.launches {
		for _, v := range l.reads {
			t.values[v].kept = t.values[v].kept || t.prepared[t.values[v].by] && !t.prepared[i]
		}
	}
}

// preparedFirst is the order of the launches in which the prepared part comes first, and how many launches it has.
func (t *timeline) preparedFirst() (order []int, prepared int) {
	var rest []int
	for i, first := range t.prepared {
		if first {
			order = append(order, i)
		} else {
			rest = append(rest, i)
		}
	}
	return append(order, rest...), len(order)
}

// isStrides reports whether a node is a view that is no launch: in a graph that has been placed, every one but a Slice
// from where an operand says.
func isStrides(n *graph.Node) bool {
	if !graph.IsView(n.Op) {
		return false
	}
	if _, ok := n.Op.(graph.Slice); !ok {
		return true
	}
	_, ok := graph.Contiguous(n.Args[0].Type.Shape).View(n)
	return ok
}

// readOld notes which launches read what the run updates. A new value may be written in place, so what reads the old
// one has to come first.
func (t *timeline) readOld(g *graph.Graph) {
	updated := map[*graph.Node]int{}
	for _, u := range g.Updates {
		if v, ok := t.holds[u.Value]; ok {
			updated[u.Target] = t.values[v].by
		}
	}
	for i := range t.launches {
		l := &t.launches[i]
		for _, a := range l.node.Args {
			for isStrides(a) {
				a = a.Args[0]
			}
			if by, ok := updated[a]; ok && !slices.Contains(l.old, by) {
				l.old = append(l.old, by)
			}
		}
	}
}

// refuse marks the launches up to the peak that cannot run again after it: those that are in the prepared part, or that would be
// there the second time, those of the host, which may keep private state, and those that would read State or a Param after its
// new value is made.
func (t *timeline) refuse() {
	need := make([]int, t.peak+1) // the last launch for which it may have to run again
	for i := len(t.launches) - 1; i >= 0; i-- {
		at := i
		if i <= t.peak {
			at = need[i]
		}
		for _, v := range t.launches[i].reads {
			if by := t.values[v].by; by <= t.peak {
				need[by] = max(need[by], at)
			}
		}
	}
	for i := range need {
		l := &t.launches[i]
		switch {
		case t.prepared[i]:
			l.refusal = "it runs when parameters are set, not in each run"
		case t.once[i]:
			l.refusal = "a second time it would run when parameters are set, and what it makes would be kept"
		}
		if h, ok := l.node.Op.(graph.Host); ok {
			l.refusal = fmt.Sprintf("%s runs by its own code, which may keep state", h.Name)
		}
		for _, by := range l.old {
			if need[i] > by {
				l.refusal = fmt.Sprintf("it reads a state or parameter, and %s has made the new value by then",
					t.launches[by].node.Where())
			}
		}
	}
}

// order lists the launches of a plan: i for launch i, and i plus their number where launch i runs again. Launches up to
// the peak that are marked run again right before what first needs them after it; what reads them up to the peak, or
// hands them out, gets them from the first time, and if nothing does, there is no first time.
func (t *timeline) order(again []bool) []int {
	n := len(t.launches)
	order := make([]int, 0, n+n/4)
	near := make([]bool, n)
	for i := min(t.peak, n-1); i >= 0; i-- {
		l := &t.launches[i]
		near[i] = near[i] || !again[i]
		for _, v := range l.makes {
			near[i] = near[i] || t.values[v].kept
		}
		for _, v := range l.reads {
			near[t.values[v].by] = near[t.values[v].by] || near[i]
		}
	}
	for i := range min(t.peak+1, n) {
		if near[i] {
			order = append(order, i)
		}
	}
	done := make([]bool, n)
	type running struct{ i, reads int }
	var stack []running
	prepare := func(i int) {
		for stack = append(stack[:0], running{i, 0}); len(stack) > 0; {
			at := &stack[len(stack)-1]
			reads := t.launches[at.i].reads
			if at.reads == len(reads) {
				if stack = stack[:len(stack)-1]; len(stack) > 0 {
					order = append(order, at.i+n)
				}
				continue
			}
			v := reads[at.reads]
			at.reads++
			if by := t.values[v].by; again[by] && !t.values[v].kept && !done[by] {
				done[by] = true
				stack = append(stack, running{by, 0})
			}
		}
	}
	for i := t.peak + 1; i < n; i++ {
		prepare(i)
		order = append(order, i)
	}
	return order
}

// replayed reports whether step, an entry of an order, reads value v from where it is made again.
func (t *timeline) replayed(step, v int, again []bool) bool {
	return step > t.peak && again[t.values[v].by] && !t.values[v].kept
}

// lifetimes lists the values of an order that are stored in the arena, in the order in which they are made.
func (t *timeline) lifetimes(order []int, again []bool) []arena.Value {
	n := len(t.launches)
	list := make([]arena.Value, 0, len(t.values)+len(t.values)/4)
	slot := make([]int, 2*len(t.values)) // in list, from 1, of a value and of the one made again
	for at, step := range order {
		l, second := &t.launches[step%n], 0
		for _, v := range l.reads {
			from := v
			if t.replayed(step, v, again) {
				from += len(t.values)
			}
			if s := slot[from]; s > 0 {
				list[s-1].Last = at
			}
		}
		if step >= n {
			second = len(t.values)
		}
		for _, v := range l.makes {
			if t.values[v].kept && step < n {
				continue
			}
			list = append(list, arena.Value{Bytes: t.values[v].bytes, First: at, Last: at})
			slot[v+second] = len(list)
		}
	}
	return list
}

// arena is the size in bytes of the arena that the launches need as planned.
func (t *timeline) arena(again []bool) int64 { return arena.Place(t.lifetimes(t.order(again), again)) }

// nothing is the plan in which nothing runs again.
func (t *timeline) nothing() []bool { return make([]bool, len(t.launches)) }
