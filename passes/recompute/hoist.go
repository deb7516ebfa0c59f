package recompute

import (
	"slices"

	"fusec/graph"
	"fusec/graph/arena"
)

// hoisted is the order of launches in which each that frees more memory than it takes, or takes none, runs as soon as
// it can. That costs no work: the sum over a gradient's rows, say, need not wait while the gradient takes memory.
// Launches of the host keep their places, and what makes a new value for State or a Param stays after what reads the
// old one. The prepared part comes first.
func (t *timeline) hoisted() []int {
	n := len(t.launches)
	_, prepared := t.preparedFirst()
	readers := make([][]int, len(t.values))
	waits := make([]int, n) // for so many values that are not there yet, and readers of what it updates
	left := make([]int, len(t.values))
	for i, l := range t.launches {
		for _, v := range l.reads {
			readers[v] = append(readers[v], i)
			left[v]++
			waits[i]++
		}
		for _, by := range l.old {
			if by > i {
				waits[by]++
			}
		}
	}
	ran := make([]bool, n)
	order := make([]int, 0, n)
	gains := func(i int) bool {
		l := &t.launches[i]
		if _, ok := l.node.Op.(graph.Host); ok || ran[i] || waits[i] > 0 || len(order) < prepared && !t.prepared[i] {
			return false
		}
		var takes, frees int64
		for _, v := range l.makes {
			takes += t.inArena(v)
		}
		for _, v := range l.reads {
			if left[v] == 1 {
				frees += t.inArena(v)
			}
		}
		return takes == 0 || frees > takes
	}
	for next := range n {
		queue := []int{next}
		for len(queue) > 0 {
			i := queue[0]
			queue = queue[1:]
			if ran[i] || i != next && !gains(i) {
				continue
			}
			ran[i] = true
			order = append(order, i)
			l := &t.launches[i]
			for _, v := range l.reads {
				if left[v]--; left[v] == 1 {
					queue = append(queue, readers[v]...)
				}
			}
			wake := slices.DeleteFunc(slices.Clone(l.old), func(by int) bool { return by < i })
			for _, v := range l.makes {
				wake = append(wake, readers[v]...)
			}
			for _, u := range wake {
				if waits[u]--; waits[u] == 0 {
					queue = append(queue, u)
				}
			}
		}
	}
	return order
}

// inArena is the memory that value v takes in the arena.
func (t *timeline) inArena(v int) int64 {
	if t.values[v].kept {
		return 0
	}
	return arena.Align(t.values[v].bytes)
}

// hoist puts the graph's launches into the order of [timeline.hoisted] if that needs less memory than now. It returns
// the arena's size.
func (r *recomputer) hoist(t *timeline, now int64) (int64, error) {
	order := t.hoisted()
	bytes := arena.Place(t.lifetimes(order, t.nothing()))
	if bytes >= now {
		return now, nil
	}
	return bytes, r.reorder(t, order)
}

// reorder puts the graph's launches into an order in which they can run.
func (r *recomputer) reorder(t *timeline, order []int) error {
	g := r.c.Graph
	var nodes []*graph.Node
	for _, n := range g.Nodes {
		if graph.ClassOf(n.Op) == graph.ClassSource {
			nodes = append(nodes, n)
		}
	}
	for _, i := range order {
		nodes = append(nodes, t.launches[i].node)
	}
	for _, n := range g.Nodes {
		if _, launched := t.number[n]; !launched && graph.ClassOf(n.Op) != graph.ClassSource {
			nodes = append(nodes, n)
		}
	}
	g.Nodes = nodes
	return g.Tidy()
}
