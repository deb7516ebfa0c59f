package passes

import (
	"fmt"
	"slices"

	"fusec/graph"
)

// rewriter replaces nodes one by one, from operands to users:
//
//	before   a ─► b ─► c ─► d          visit(c) = e, made of f and b
//	after    a ─► b ─► f ─► e ─► d     c is dropped if nothing else keeps it
//
// While it walks, it keeps count of who reads what, so that a rewrite can ask. A node made by a rewrite is visited in
// its turn before its reader.
type rewriter struct {
	ctx *Context
	g   *graph.Graph
	// visit returns the value to use in place of n, or n itself. It may add nodes to g.
	visit func(n *graph.Node) (*graph.Node, error)

	uses    *graph.Uses
	with    graph.PerNode[*graph.Node]
	dead    graph.PerNode[bool]
	origins map[*graph.Node]originSet // of nodes that stand for many
	changed int
	limit   int // rewrites until it is clear that the rules go in circles
	made    []rewrite
}

// rewrite is a record for the trace, kept until it is known what became of the node it made.
type rewrite struct {
	rule, kind string
	node       *graph.Node
	covered    []*graph.Node
}

// maxRounds bounds how often the graph is walked; each round costs one walk, and few graphs need more than three.
const maxRounds = 32

// fixpoint walks the graph until a walk changes nothing. begin is called before each walk.
func (r *rewriter) fixpoint(begin func()) error {
	r.g = r.ctx.Graph
	r.limit = 1000 + 50*len(r.g.Nodes)
	r.origins = map[*graph.Node]originSet{}
	for range maxRounds {
		begin()
		if err := r.walk(); err != nil {
			return err
		}
		if r.changed == 0 {
			break
		}
	}
	r.report()
	return nil
}

// report records the rewrites whose result is in the graph; the others were steps on the way.
func (r *rewriter) report() {
	live := graph.NewPerNode[bool](r.g)
	for _, n := range r.g.Nodes {
		live.Set(n, true)
	}
	for _, m := range r.made {
		if live.Get(m.node) {
			r.ctx.Match(m.rule, m.kind, m.node, m.covered...)
		}
	}
}

// note keeps a record of a rewrite.
func (r *rewriter) note(rule, kind string, made *graph.Node, covered ...*graph.Node) {
	r.made = append(r.made, rewrite{rule, kind, made, covered})
}

func (r *rewriter) walk() error {
	g := r.g
	r.uses, r.changed = g.Uses(), 0
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
func (r *rewriter) now(n *graph.Node) *graph.Node {
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
func (r *rewriter) emit(n *graph.Node) error {
	g := r.g
	var open []replacement
	for {
		for i, a := range n.Args {
			n.Args[i] = r.now(a)
		}
		mark := len(g.Nodes)
		m, err := r.visit(n)
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
			r.uses.Add(a, n)
		}
	}
}

// A replacement of a node waits until the nodes that were made for it are emitted.
type replacement struct {
	n, by *graph.Node
	made  []*graph.Node
}

// replace leads the readers of n to m.
func (r *rewriter) replace(n, m *graph.Node) {
	if m == n {
		return
	}
	r.with.Set(n, m)
	if m.Name == "" && !graph.IsSource(m.Op) {
		m.Name = n.Name
	}
	if _, isConst := m.Op.(graph.Const); !graph.IsSource(m.Op) && !isConst {
		r.stand(m, n)
	}
	if r.dead.Get(m) {
		r.revive(m)
	}
	r.uses.Move(n, m)
	r.release(n)
}

// stand makes m stand for what n stands for, too. Where m stands for many, it is remembered which.
func (r *rewriter) stand(m, n *graph.Node) {
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

// release marks n as dead and takes it off its operands' readers, and so on for those that nothing reads any more.
func (r *rewriter) release(n *graph.Node) {
	for todo := []*graph.Node{n}; len(todo) > 0; {
		n, todo = todo[len(todo)-1], todo[:len(todo)-1]
		if r.dead.Get(n) || graph.IsSource(n.Op) {
			continue
		}
		r.dead.Set(n, true)
		for _, a := range n.Args {
			r.uses.Remove(a, n)
			if r.uses.None(a) {
				todo = append(todo, a)
			}
		}
	}
}

// revive undoes release for a node that a rewrite found use for.
func (r *rewriter) revive(n *graph.Node) {
	r.dead.Set(n, false)
	for todo := []*graph.Node{n}; len(todo) > 0; {
		n, todo = todo[len(todo)-1], todo[:len(todo)-1]
		for _, a := range n.Args {
			if r.dead.Get(a) {
				r.dead.Set(a, false)
				todo = append(todo, a)
			}
			r.uses.Add(a, n)
		}
	}
}

// builder returns a builder that appends to the graph nodes standing for the given ones.
func (r *rewriter) builder(from ...*graph.Node) *graph.Builder {
	return graph.Extend(r.g).From(from...)
}
