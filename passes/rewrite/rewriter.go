// Package rewrite holds what passes share: the [Context] with the graph, the target and the record; the [Rewriter], which
// replaces nodes one by one; the [Cover] of a search; and small facts about operations and shapes.
package rewrite

import (
	"fmt"
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/pattern"
)

// Rewriter replaces nodes one by one, from operands to users:
//
//	before   a ─► b ─► c ─► d          visit(c) = e, made of f and b
//	after    a ─► b ─► f ─► e ─► d     c is dropped if nothing else keeps it
//
// While it walks, it keeps [graph.Uses] up to date for the rewrites. A node made by a rewrite is visited before its
// reader.
type Rewriter struct {
	Context *Context
	Graph   *graph.Graph // the context's, from the first walk on
	Begin   func()       // called before each walk, unless nil
	// Visit returns the value to use in place of n, or n itself. It may add nodes to g.
	Visit func(n *graph.Node) (*graph.Node, error)

	Uses    *graph.Uses // of the graph during a walk
	with    graph.PerNode[*graph.Node]
	dead    graph.PerNode[bool]
	origins map[*graph.Node]originSet // of nodes that replace many
	changed int
	limit   int // rewrites until it is clear that the rules go in circles
	made    []rewrite
	missed  []missed // in this walk
}

// rewrite is a record for the trace, kept until it is known what became of the node it made.
type rewrite struct {
	rule, kind string
	numeric    trace.Numeric
	node       *graph.Node
	covered    []*graph.Node
}

// maxRounds bounds how often the graph is walked; each round costs one walk, and few graphs need more than three.
const maxRounds = 32

// Fixpoint walks the graph until a walk changes nothing.
func (r *Rewriter) Fixpoint() error {
	r.Graph = r.Context.Graph
	r.limit = 1000 + 50*len(r.Graph.Nodes)
	r.origins = map[*graph.Node]originSet{}
	r.Uses = r.Context.Uses()
	for range maxRounds {
		r.missed = nil
		if r.Begin != nil {
			r.Begin()
		}
		if err := r.walk(); err != nil {
			return err
		}
		if r.changed == 0 {
			break
		}
		r.Uses = r.Graph.Uses()
	}
	r.report()
	return nil
}

// report records the rewrites whose result is in the graph, since the others were steps on the way, and the missed fusions
// of the last walk.
func (r *Rewriter) report() {
	live := graph.NewPerNode[bool](r.Graph)
	for _, n := range r.Graph.Nodes {
		live.Set(n, true)
	}
	for _, m := range r.made {
		if live.Get(m.node) {
			r.Context.Match(m.rule, m.numeric, m.kind, m.node, m.covered...)
		} else {
			r.Context.allow(m.rule, m.numeric, m.node)
		}
	}
	r.reportMisses()
}

// reportMisses records for each pattern and key the miss that covered most, and of several patterns that stopped at one
// node for one reason the first.
func (r *Rewriter) reportMisses() {
	type spot struct {
		p   *pattern.Pattern
		key *graph.Node
	}
	best := map[spot]missed{}
	for _, m := range r.missed {
		k := spot{m.p, m.Key}
		if b, ok := best[k]; !ok || len(m.Covered) > len(b.Covered) {
			best[k] = m
		}
	}
	type cause struct {
		at     *graph.Node
		reason string
	}
	told := map[cause]bool{}
	for _, m := range r.missed {
		c := cause{m.At, m.Reason}
		if best[spot{m.p, m.Key}].Miss == m.Miss && !told[c] {
			told[c] = true
			r.Context.Miss(m.p.Name, m.At, m.Reason, m.Covered, m.Ahead...)
		}
	}
}

// missed is a missed fusion of a pattern.
type missed struct {
	p *pattern.Pattern
	*pattern.Miss
}

// Miss keeps a missed fusion.
func (r *Rewriter) Miss(p *pattern.Pattern, m *pattern.Miss) {
	r.missed = append(r.missed, missed{p, m})
}

// Record keeps a record of a rewrite.
func (r *Rewriter) Record(rule string, numeric trace.Numeric, kind string, made *graph.Node, covered ...*graph.Node) {
	r.made = append(r.made, rewrite{rule, kind, numeric, made, covered})
}

func (r *Rewriter) walk() error {
	g := r.Graph
	r.changed = 0
	r.with, r.dead = graph.NewPerNode[*graph.Node](g), graph.NewPerNode[bool](g)
	nodes := g.Nodes
	g.Nodes = make([]*graph.Node, 0, len(nodes)+len(nodes)/4)
	for _, n := range nodes {
		if err := r.emit(n); err != nil {
			return err
		}
	}
	if r.changed > 0 {
		g.Redirect(r.now)
	}
	for i := range r.made {
		r.made[i].node = r.now(r.made[i].node)
	}
	return g.Tidy()
}

// now follows replacements.
func (r *Rewriter) now(n *graph.Node) *graph.Node {
	for {
		m := r.with.Get(n)
		if m == nil {
			return n
		}
		n = m
	}
}

// emit brings n's operands up to date, visits it, and appends it or what replaces it to the graph. Nodes that a rewrite
// made are emitted in their turn, which may make further ones.
func (r *Rewriter) emit(n *graph.Node) error {
	g := r.Graph
	var open []replacement
	for {
		for i, a := range n.Args {
			n.Args[i] = r.now(a)
		}
		mark := len(g.Nodes)
		m, err := r.Visit(n)
		if err != nil {
			return err
		}
		if m == n {
			g.Nodes = append(g.Nodes[:mark], n)
		} else {
			if r.changed++; r.changed > r.limit {
				return fmt.Errorf("the rules do not settle; the last rewrite was of %s", n.Where())
			}
			open = append(open, replacement{n, m, slices.Clone(g.Nodes[mark:])})
			g.Nodes = g.Nodes[:mark]
		}
		for len(open) > 0 && len(open[len(open)-1].made) == 0 {
			done := open[len(open)-1]
			open = open[:len(open)-1]
			r.replace(done.n, r.now(done.by))
		}
		if len(open) == 0 {
			return nil
		}
		last := &open[len(open)-1]
		n, last.made = last.made[0], last.made[1:]
		for _, a := range n.Args {
			r.Uses.Add(a, n)
		}
	}
}

// A replacement of a node waits until the nodes that were made for it are emitted.
type replacement struct {
	n, by *graph.Node
	made  []*graph.Node
}

// replace leads the readers of n to m.
func (r *Rewriter) replace(n, m *graph.Node) {
	if m == n {
		return
	}
	r.with.Set(n, m)
	if m.Name == "" && !graph.IsSource(m.Op) {
		m.Name = n.Name
	}
	if _, isConst := m.Op.(graph.Const); !graph.IsSource(m.Op) && !isConst {
		r.inherit(m, n)
	}
	if r.dead.Get(m) {
		r.revive(m)
	}
	r.Uses.Move(n, m)
	r.release(n, m)
}

// inherit adds the origins of n to those of m. Where m has many, the set of them is kept.
func (r *Rewriter) inherit(m, n *graph.Node) {
	if len(m.Origin) <= manyOrigins {
		m.Origin = graph.MergeOrigins(m, n)
		return
	}
	of, ok := r.origins[m]
	if !ok || len(of.list) != len(m.Origin) || &of.list[0] != &m.Origin[0] {
		of = originSet{in: make(map[graph.Origin]bool, 2*len(m.Origin))}
		of.add(m.Origin)
	}
	of.add(n.Origin)
	m.Origin = of.list
	r.origins[m] = of
}

// An originSet is a list of origins that none is twice in.
type originSet struct {
	list []graph.Origin
	in   map[graph.Origin]bool
}

func (s *originSet) add(origins []graph.Origin) {
	for _, o := range origins {
		if !s.in[o] {
			s.in[o] = true
			s.list = append(s.list, o)
		}
	}
}

// release marks n as dead, which m computes now, and takes it off its operands' readers, and so on for those that nothing
// reads any more.
func (r *Rewriter) release(n, m *graph.Node) {
	for todo := []*graph.Node{n}; len(todo) > 0; {
		n, todo = todo[len(todo)-1], todo[:len(todo)-1]
		if r.dead.Get(n) || graph.IsSource(n.Op) {
			continue
		}
		r.dead.Set(n, true)
		r.Context.Became(n, m)
		for _, a := range n.Args {
			r.Uses.Remove(a, n)
			if r.Uses.None(a) {
				todo = append(todo, a)
			}
		}
	}
}

// revive undoes release for a node that a rewrite found use for.
func (r *Rewriter) revive(n *graph.Node) {
	r.dead.Set(n, false)
	for todo := []*graph.Node{n}; len(todo) > 0; {
		n, todo = todo[len(todo)-1], todo[:len(todo)-1]
		r.Context.returned(n)
		for _, a := range n.Args {
			if r.dead.Get(a) {
				r.dead.Set(a, false)
				todo = append(todo, a)
			}
			r.Uses.Add(a, n)
		}
	}
}

// Builder returns a builder that appends nodes to the graph that have the origins of the given ones.
func (r *Rewriter) Builder(from ...*graph.Node) *graph.Builder {
	return graph.Extend(r.Graph).From(from...)
}
