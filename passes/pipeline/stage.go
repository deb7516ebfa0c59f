package pipeline

import (
	"cmp"
	"fmt"
	"slices"

	"fusec/graph"
)

// named is the name under which a value is handed over.
func named(n *graph.Node) string { return fmt.Sprintf("%svalue %d", prefix, n.ID) }

// sumName is the name of the state in which a value is summed over microbatches.
func sumName(n *graph.Node) string { return fmt.Sprintf("%ssum %d", prefix, n.ID) }

// A copier makes a graph of some nodes of another one.
type copier struct {
	c    *cutter
	b    *graph.Builder
	g    *graph.Graph
	made map[*graph.Node]*graph.Node
	// elsewhere is the name of a value that is computed elsewhere; empty for one that is computed here.
	elsewhere func(n *graph.Node) string
	done      map[string]bool // outputs
}

func (c *cutter) copier(s int, kind string, elsewhere func(n *graph.Node) string) *copier {
	g := graph.New(fmt.Sprintf("%s, stage %d, %s", c.g.Name, s+1, kind))
	if g.Mesh = c.g.Mesh[1:]; len(g.Mesh) > 0 {
		g.Parts = true
	} else {
		g.Mesh = nil
	}
	return &copier{c, graph.Extend(g), g, map[*graph.Node]*graph.Node{}, elsewhere, map[string]bool{}}
}

// get is a node in the copy.
func (p *copier) get(n *graph.Node) *graph.Node {
	if m, ok := p.made[n]; ok {
		return m
	}
	var m *graph.Node
	if name := p.elsewhere(n); name != "" {
		m = p.b.Input(name, n.Type)
		m.Origin = n.Origin
	} else if s := p.c.sinks[n]; s != nil {
		name := named(s.of)
		if s.join < 0 {
			name = sumName(s.of)
		}
		if m = p.g.Lookup(name); m == nil && s.join < 0 {
			m = p.b.State(name, s.of.Type)
		} else if m == nil {
			m = p.b.Input(name, n.Type)
		}
		m.Origin = n.Origin
	} else if part, ok := n.Op.(graph.Part); ok && over(n) { // of the microbatch
		p.b.From(n)
		size := n.Type.Shape.At(part.Axis)
		start := p.b.BinaryScalar(graph.Mul, p.index(), float64(size))
		m = p.b.Add(graph.Slice{Axis: part.Axis, Size: size, Step: 1}, p.get(n.Args[0]), start)
		m.Like(n)
	} else {
		args := make([]*graph.Node, len(n.Args))
		for i, a := range n.Args {
			args[i] = p.get(a)
		}
		m = p.b.Add(n.Op, args...)
		m.Like(n)
		if graph.IsSource(n.Op) {
			m.Sharding = n.Sharding
			for d := range m.Sharding.Split {
				m.Sharding.Split[d] >>= 1
			}
		}
	}
	p.made[n] = m
	return m
}

// index is the number of the microbatch.
func (p *copier) index() *graph.Node {
	if n := p.g.Lookup(Index); n != nil {
		return n
	}
	return p.b.Input(Index, graph.TypeOf(graph.I64))
}

// give hands a value over, once.
func (p *copier) give(n *graph.Node) {
	if name := named(n); !p.done[name] {
		p.done[name] = true
		p.b.Output(name, p.get(n))
	}
}

// keep hands over what all microbatches have together: a part, or a term of a sum.
func (p *copier) keep(s *sink) {
	if s.join >= 0 {
		p.give(s.of)
		return
	}
	x := p.get(s.of)
	p.b.From(s.of)
	if name := sumName(s.of); p.g.Lookup(name) == nil {
		sum := p.b.State(name, s.of.Type)
		p.b.Update(sum, p.b.Binary(graph.Add, sum, x))
	}
}

// graph is the copy, or nil if it does nothing.
func (p *copier) graph() (*graph.Graph, error) {
	if len(p.g.Outputs)+len(p.g.Updates) == 0 {
		return nil, p.b.Err()
	}
	g, err := p.b.Graph()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.g.Name, err)
	}
	return g, nil
}

// The places among [Kinds].
const (
	before = iota
	forward
	backward
	norms
	update
)

// pass is the place among [Kinds] of what computes a node of a microbatch.
func pass(n *graph.Node) int {
	if back(n) {
		return backward
	}
	return forward
}

// stages makes the graphs. What one of them needs of another is known when all are copied.
func (c *cutter) stages() ([]Stage, error) {
	wanted := map[*graph.Node]bool{}
	want := func(n *graph.Node) string {
		wanted[n] = true
		return named(n)
	}
	list, copies := make([]Stage, c.n), make([][len(Kinds)]*copier, c.n)
	for s := range c.n {
		of := &copies[s]
		here := func(*graph.Node) string { return "" }
		of[before] = c.copier(s, Kinds[before], here)
		of[forward] = c.copier(s, Kinds[forward], func(n *graph.Node) string {
			if c.free[n] || c.at[n] == s {
				return ""
			}
			return want(n)
		})
		of[backward] = c.copier(s, Kinds[backward], func(n *graph.Node) string {
			if c.free[n] || back(n) && c.at[n] == s || c.again(n, s) {
				return ""
			}
			return want(n)
		})
		of[norms] = c.copier(s, Kinds[norms], here)
		of[update] = c.copier(s, Kinds[update], func(n *graph.Node) string {
			if c.told[n] {
				return named(n)
			}
			if _, exchange := n.Op.(graph.Collective); exchange && c.sinks[n] == nil && of[norms].made[n] != nil {
				of[norms].give(n) // which is not exchanged twice
				return named(n)
			}
			return ""
		})
		for _, n := range c.order {
			if c.at[n] == s {
				of[pass(n)].get(n)
			}
		}
		for _, n := range c.g.Nodes {
			if k := c.sinks[n]; k != nil && !k.early && k.stage == s {
				of[pass(k.of)].keep(k)
			}
			if c.told[n] && c.place[n] == s {
				of[norms].give(n)
			}
		}
		for _, o := range c.g.Outputs {
			if max(0, c.where(o.Node)) == s {
				of[update].b.Output(o.Name, of[update].get(o.Node))
			}
		}
		for _, u := range c.g.Updates {
			if at := c.where(u.Target); at == s || at == everywhere {
				of[update].b.Update(of[update].get(u.Target), of[update].get(u.Value))
			}
		}
	}
	for _, n := range c.order {
		if wanted[n] {
			copies[c.at[n]][pass(n)].give(n)
		}
	}
	for _, n := range c.g.Nodes {
		if k := c.sinks[n]; k != nil && k.early {
			for s := range copies {
				if slices.ContainsFunc(copies[s][forward:], func(p *copier) bool { return p.made[n] != nil }) {
					copies[s][before].keep(k)
				}
			}
		}
	}
	var scopes graph.Scopes
	for _, n := range c.order {
		if name := cmp.Or(n.Name, scopes.Of(n)); name != "" && !back(n) {
			list[c.at[n]].Ends = name
		}
	}
	for s, of := range copies {
		for i, to := range []**graph.Graph{&list[s].Before, &list[s].Forward, &list[s].Backward, &list[s].Norms, &list[s].Update} {
			var err error
			if *to, err = of[i].graph(); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}

// where is the place of what follows the microbatches. Told numbers are everywhere.
func (c *cutter) where(n *graph.Node) int {
	if at, ok := c.place[n]; ok && !c.told[n] {
		return at
	}
	return everywhere
}

// again reports whether the backward pass of a stage makes a view again, of a value that is there, in place of keeping it.
func (c *cutter) again(n *graph.Node, s int) bool {
	switch n.Op.(type) {
	case graph.Reshape, graph.Transpose, graph.Broadcast:
		a := n.Args[0]
		return !back(n) && !back(a) && (c.free[a] || c.at[a] <= s && s <= c.last[a])
	}
	return false
}
