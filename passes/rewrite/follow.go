package rewrite

import (
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
)

// What a missed fusion costs is known when the last pass has run: by then another pattern may have found what this one
// missed. So its nodes are followed from pass to pass.

// An heir is the node that computes what another one did before it was replaced.
type heir struct {
	node *graph.Node // nil while the node itself is in the graph
	part bool        // it does the same to values that have nothing to do with it, in a merged launch
}

// followed is a missed fusion whose nodes are followed.
type followed struct {
	stage string
	index int         // in the stage's list
	at    *graph.Node // where matching stopped
	parts []*graph.Node
}

// Became records that m computes from now on what n did. A pass calls it for each node that it replaces or puts into a
// fusion, and may call it for nodes that no missed fusion has.
func (c *Context) Became(n, m *graph.Node) { c.inherit(n, m, false) }

// inherit is Became, where part is set if m has been merged from n and others.
func (c *Context) inherit(n, m *graph.Node, part bool) {
	if _, ok := c.heirs[n]; ok && n != m {
		c.heirs[n], c.heirs[m] = heir{m, part}, heir{}
	}
}

// Merged records that m is the launch n merged with others that do the same to other values.
func (c *Context) Merged(n, m *graph.Node) { c.inherit(n, m, true) }

// returned records that n, which was replaced, is in the graph again.
func (c *Context) returned(n *graph.Node) {
	if _, ok := c.heirs[n]; ok {
		c.heirs[n] = heir{}
	}
}

// follow follows the nodes of the stage's last miss.
func (c *Context) follow(at *graph.Node, parts []*graph.Node) {
	if c.heirs == nil {
		c.heirs = map[*graph.Node]heir{}
	}
	f := followed{stage: c.Stage.Name, index: len(c.Stage.Misses) - 1, at: at}
	for _, n := range append(slices.Clip(parts), at) {
		if n != nil && trace.NeedsLaunch(n.Op) {
			f.parts = append(f.parts, n)
			if _, ok := c.heirs[n]; !ok {
				c.heirs[n] = heir{}
			}
		}
	}
	c.followed = append(c.followed, f)
}

// heirOf is the node of the graph that computes n, or nil, and whether it is a merged launch of which n is a part.
func (c *Context) heirOf(n *graph.Node, live *graph.PerNode[bool]) (_ *graph.Node, part bool) {
	for h := c.heirs[n]; h.node != nil; h = c.heirs[n] {
		n, part = h.node, part || h.part
	}
	for len(n.Args) > 0 && !trace.NeedsLaunch(n.Op) { // a further result, or a view
		n = n.Args[0]
		for h := c.heirs[n]; h.node != nil; h = c.heirs[n] {
			n, part = h.node, part || h.part
		}
	}
	if !live.Get(n) || !trace.NeedsLaunch(n.Op) {
		return nil, false
	}
	return n, part
}

// Locate tells the missed fusions of the trace which nodes of the graph, as it now is, compute what they are about.
func (c *Context) Locate(tr *trace.Trace) {
	if len(c.followed) == 0 {
		return
	}
	live := graph.NewPerNode[bool](c.Graph)
	for _, n := range c.Graph.Nodes {
		live.Set(n, true)
	}
	stages := map[string]*trace.Stage{}
	for i := range tr.Stages {
		stages[tr.Stages[i].Name] = &tr.Stages[i]
	}
	for _, f := range c.followed {
		s := stages[f.stage]
		if s == nil {
			continue
		}
		m := &s.Misses[f.index]
		m.Became = -1
		if at, _ := c.heirOf(f.at, &live); at != nil {
			m.Became = at.ID
		}
		for _, n := range f.parts {
			now, part := c.heirOf(n, &live)
			if now == nil {
				continue
			}
			if !slices.Contains(m.Nodes, now.ID) {
				m.Nodes = append(m.Nodes, now.ID)
			}
			if whole := !graph.Joins(n.Op) || light(now.Op); whole && !part && !slices.Contains(m.Joins, now.ID) {
				m.Joins = append(m.Joins, now.ID)
			}
		}
	}
}

// light reports whether a launch is elementwise work alone, which another launch can take in as a whole.
func light(op graph.Op) bool {
	f, ok := op.(graph.Fusion)
	return ok && f.Anchor == graph.AnchorNone || graph.Joins(op)
}
