// Package recompute trades work for memory until the values in the arena fit the budget, if there is one. A value that is
// made before the moment at which most memory is in use, and read after it, is made again:
//
//	x ─► f ─► h ─► … loss …           x ─► f ─► … loss …
//	          └───────────► ∇f   to   └──────────► f ─► h ─► ∇f
//
// What the second launch reads is there by then: a source, a value that is kept, or one that is itself made again. The
// same kernel on the same operands gives the same bits, and random operations replay the same counter. Launches of the
// host, those that read what has a new value by then, and those of the prepared part are not repeated.
//
// First, and after every change, launches that free memory are moved forward (see hoist), which costs nothing. A round
// then plans for one such moment; where that is not enough, the next one starts from what it has left, so that what
// is made again can be dropped and made again once more. No value is computed in place
// here: lowering decides that, on the graph that this pass leaves.
package recompute

import (
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

// Run is the pass recompute for a budget in bytes; 0 is no limit.
func Run(c *rewrite.Context, budget int64) error {
	if budget == 0 {
		return nil
	}
	r := recomputer{c: c, first: map[int]int{}}
	t := newTimeline(c.Graph, c.Frozen)
	if order, n := t.preparedFirst(); n > 0 { // as lowering will order them
		if err := r.reorder(t, order); err != nil {
			return err
		}
		t = newTimeline(c.Graph, c.Frozen)
	}
	before := t.arena(t.nothing())
	now := before
	for round := 0; now > budget && round < maxReplans; round++ {
		if bytes, err := r.hoist(t, now); err != nil || bytes < now {
			if err != nil {
				return err
			}
			now, t = bytes, newTimeline(c.Graph, c.Frozen)
			continue
		}
		again, bytes := t.choose(t.replays(), budget, now)
		if again == nil {
			break
		}
		if err := r.rewrite(t, again); err != nil {
			return err
		}
		now, t = bytes, newTimeline(c.Graph, c.Frozen)
	}
	c.Stage.Recompute = &trace.Recompute{Budget: budget, Before: before, After: now, Launches: r.repeated(t)}
	if now > budget {
		c.Note(nil, "the memory budget of %d bytes is not met: "+
			"the fewest that were found are %d, without recomputation %d", budget, now, before)
		r.refusals(t)
	}
	return nil
}

// maxReplans bounds how often plans are made.
const maxReplans = 12

// A recomputer rewrites the graph by plans.
type recomputer struct {
	c     *rewrite.Context
	first map[int]int // by the ID of a launch that repeats another: the ID of the one in the original graph
}

// rewrite makes the graph's launches those of a plan.
func (r *recomputer) rewrite(t *timeline, again []bool) error {
	g := r.c.Graph
	n := len(t.launches)
	old := slices.Clone(g.Nodes)
	var nodes []*graph.Node
	replaced := map[*graph.Node]*graph.Node{} // of what is read after the peak
	add := func(op graph.Op, like *graph.Node, args []*graph.Node) (*graph.Node, error) {
		k, err := g.Add(op, args...)
		if err != nil {
			return nil, err
		}
		k.Like(like)
		nodes = append(nodes, k)
		return k, nil
	}
	// late is the value to read in place of a after the peak. What runs again has its node already, a Result or view of
	// it gets one.
	late := func(a *graph.Node) (*graph.Node, error) {
		if v, ok := t.holds[a]; !ok || !t.replayed(n, v, again) {
			return a, nil
		}
		var missing []*graph.Node
		for m := a; replaced[m] == nil; m = m.Args[0] {
			missing = append(missing, m)
			if _, isResult := m.Op.(graph.Result); isResult {
				break // its operand runs again, though its own value, result 0, may be one that is kept
			}
		}
		for _, m := range slices.Backward(missing) {
			args := slices.Clone(m.Args)
			args[0] = replaced[args[0]]
			k, err := add(m.Op, m, args)
			if err != nil {
				return nil, err
			}
			replaced[m] = k
		}
		return replaced[a], nil
	}
	lateArgs := func(n *graph.Node) ([]*graph.Node, error) {
		args := make([]*graph.Node, len(n.Args))
		for i, a := range n.Args {
			var err error
			if args[i], err = late(a); err != nil {
				return nil, err
			}
		}
		return args, nil
	}
	order := t.order(again)
	at := 0 // in the order, the first step after the peak
	for at < len(order) && order[at] <= t.peak {
		at++
	}
	for _, node := range old {
		i, launched := t.number[node]
		if !launched || i <= t.peak {
			nodes = append(nodes, node) // if nothing reads it any more, Tidy drops it
			continue
		}
		for ; order[at] != i; at++ {
			l := &t.launches[order[at]-n]
			args, err := lateArgs(l.node)
			if err != nil {
				return err
			}
			if replaced[l.node], err = add(l.node.Op, l.node, args); err != nil {
				return err
			}
			r.repeat(replaced[l.node], l.node)
		}
		at++
		args, err := lateArgs(node)
		if err != nil {
			return err
		}
		node.Args = args
		nodes = append(nodes, node)
	}
	g.Nodes = nodes
	if err := g.Tidy(); err != nil {
		return err
	}
	r.phases()
	return nil
}

// phases makes what is computed again for the backward pass a part of it.
func (r *recomputer) phases() {
	first := map[*graph.Node]graph.Phase{}
	for _, n := range slices.Backward(r.c.Graph.Nodes) {
		if p, ok := first[n]; ok && r.again(n) {
			n.Phase = max(n.Phase, min(p, graph.Backward))
		}
		for _, a := range n.Args {
			if p, ok := first[a]; !ok || n.Phase < p {
				first[a] = n.Phase
			}
		}
	}
}

// again reports whether n runs again what another has run, or is a result of it or a view.
func (r *recomputer) again(n *graph.Node) bool {
	for {
		if _, ok := r.first[n.ID]; ok {
			return true
		}
		if _, further := n.Op.(graph.Result); !further && !graph.IsView(n.Op) {
			return false
		}
		n = n.Args[0]
	}
}

// repeat notes that k runs what n ran.
func (r *recomputer) repeat(k, n *graph.Node) {
	first, ok := r.first[n.ID]
	if !ok {
		first = n.ID
	}
	r.first[k.ID] = first
}

// repeated lists the launches that run again what another has run, and matches them.
func (r *recomputer) repeated(t *timeline) []trace.Repeated {
	var list []trace.Repeated
	by := map[int]*graph.Node{} // of the launch in the original graph, the first that runs it now
	for _, l := range t.launches {
		n := l.node
		first, ok := r.first[n.ID]
		if !ok {
			first = n.ID
		}
		if by[first] == nil {
			by[first] = n
			continue
		}
		kind := n.Op.OpName()
		if f, ok := n.Op.(graph.Fusion); ok {
			kind = f.Kind.String()
		}
		r.c.Match("recompute", trace.Exact, kind, n)
		list = append(list, trace.Repeated{Node: n.ID, Of: by[first].ID, FLOPs: l.flops, Bytes: l.bytes})
	}
	return list
}

// refusals notes what keeps memory from before the peak until after it and could not be made again.
func (r *recomputer) refusals(t *timeline) {
	far, _ := t.spans()
	for i, bytes := range far {
		if l := &t.launches[i]; bytes > 0 && l.refusal != "" {
			r.c.Note(l.node, "%s keeps %d bytes and is not computed again: %s", l.node.Where(), bytes, l.refusal)
		}
	}
}
