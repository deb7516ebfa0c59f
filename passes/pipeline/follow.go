package pipeline

import (
	"cmp"
	"fmt"
	"slices"

	"fusec/graph"
)

// A piece is tensors that are computed together behind the microbatches, such as a parameter, its moments and its gradient.
// It is a tree of a union-find structure.
type piece struct {
	in    *piece
	stage int
	param *graph.Node // that the piece updates, if any
}

func (p *piece) root() *piece {
	for p.in != nil {
		if p.in.in != nil {
			p.in = p.in.in
		}
		p = p.in
	}
	return p
}

// placed reports whether a node has a place: constants and inputs are everywhere, and so are parameters that stay as they are.
func placed(n *graph.Node, updated map[*graph.Node]bool) bool {
	switch n.Op.(type) {
	case graph.Const, graph.Input:
		return false
	case graph.Param:
		return updated[n]
	}
	return true
}

// isNumber reports whether a value is one number, which stages can tell each other.
func isNumber(n *graph.Node) bool { return n.Type.Shape.Elems() == 1 }

// follows lists what is computed behind the microbatches, in order.
func (c *cutter) follows() (nodes []*graph.Node, updated map[*graph.Node]bool) {
	var roots []*graph.Node
	updated = map[*graph.Node]bool{}
	for _, o := range c.g.Outputs {
		roots = append(roots, o.Node)
	}
	for _, u := range c.g.Updates {
		roots = append(roots, u.Target, u.Value)
		updated[u.Target] = true
	}
	seen := map[*graph.Node]bool{}
	for len(roots) > 0 {
		n := roots[len(roots)-1]
		roots = roots[:len(roots)-1]
		if seen[n] {
			continue
		}
		seen[n] = true
		if c.sinks[n] == nil {
			roots = append(roots, n.Args...)
		}
	}
	for _, n := range c.g.Nodes {
		if seen[n] {
			nodes = append(nodes, n)
		}
	}
	return nodes, updated
}

// join finds the stages of the tensors that follow the microbatches: those that are computed of one another are of one stage,
// that of the parameter among them, or else of their sums.
func (c *cutter) join() error {
	nodes, updated := c.follows()
	c.piece = map[*graph.Node]*piece{}
	tensor := func(n *graph.Node) bool { return placed(n, updated) && !isNumber(n) }
	unite := func(n, m *graph.Node) {
		if p, q := c.piece[n].root(), c.piece[m].root(); p != q {
			q.in = p
		}
	}
	for _, n := range nodes {
		if !tensor(n) {
			continue
		}
		c.piece[n] = &piece{stage: everywhere}
		if c.sinks[n] != nil {
			continue
		}
		for _, a := range n.Args {
			if tensor(a) {
				unite(n, a)
			}
		}
	}
	for _, u := range c.g.Updates {
		if tensor(u.Target) && tensor(u.Value) {
			unite(u.Target, u.Value)
		}
	}
	for _, n := range nodes {
		if _, ok := n.Op.(graph.Part); ok && over(n) {
			return fmt.Errorf("%s belongs to a microbatch, and follows all of them", n.Where())
		}
		first, read := c.first[n]
		if !isKept(n) || !tensor(n) || !read {
			continue
		}
		p := c.piece[n].root()
		if p.param != nil && p.stage != first {
			return fmt.Errorf("%s and %s are of stages %d and %d, and their updates are computed together: cut the model elsewhere, or "+
				"update them apart", p.param.Where(), n.Where(), p.stage+1, first+1)
		}
		p.param, p.stage = n, first
	}
	readers := c.g.Users()
	sums := slices.DeleteFunc(slices.Clone(nodes), func(n *graph.Node) bool { return c.sinks[n] == nil })
	slices.SortStableFunc(sums, func(n, m *graph.Node) int { return cmp.Compare(m.Type.Bytes(), n.Type.Bytes()) })
	for _, n := range sums { // the largest first: what they need is there for the others
		s := c.sinks[n]
		s.stage = c.at[s.of]
		if c.piece[n] == nil {
			continue
		}
		p := c.piece[n].root()
		if p.stage != everywhere {
			c.descend(s.of, p.stage, readers)
			s.stage = c.at[s.of]
		}
		if p.stage == everywhere {
			p.stage = s.stage
		}
		if later := p.stage > s.stage; p.stage != s.stage && !c.free[s.of] && back(s.of) == later {
			return fmt.Errorf("%s is computed in stage %d, and is needed in stage %d: cut the model elsewhere", n.Where(), s.stage+1,
				p.stage+1)
		}
		s.stage = p.stage
	}
	return c.norms(nodes)
}

// descend has an earlier stage compute a value of the backward pass, which it alone needs, where less has to be sent then: the
// gradient of a weight is a product of values that are smaller.
func (c *cutter) descend(n *graph.Node, stage int, readers map[*graph.Node][]*graph.Node) {
	if _, result := n.Op.(graph.Result); result || c.free[n] || !back(n) || c.at[n] <= stage {
		return
	}
	for _, r := range readers[n] {
		if c.sinks[r] == nil && c.at[r] > stage {
			return
		}
	}
	sent := int64(0)
	for _, a := range n.Args {
		switch {
		case c.free[a]:
			if c.keeps(a) {
				return
			}
		case !back(a) && c.at[a] > stage:
			return
		case !back(a) && c.last[a] < stage:
			sent += a.Type.Bytes()
		case back(a) && c.at[a] > stage && !slices.ContainsFunc(readers[a], func(r *graph.Node) bool {
			return r != n && c.sinks[r] == nil && c.at[r] <= stage
		}):
			sent += a.Type.Bytes()
		}
	}
	if sent > n.Type.Bytes() {
		return
	}
	c.at[n] = stage
	for _, a := range n.Args {
		c.descend(a, stage, readers)
	}
}

// keeps reports whether a free value depends on a parameter or a state.
func (c *cutter) keeps(n *graph.Node) bool { return isKept(n) || slices.ContainsFunc(n.Args, c.keeps) }

// norms takes norms of tensors of several stages apart.
func (c *cutter) norms(nodes []*graph.Node) error {
	with := map[*graph.Node]*graph.Node{}
	b := graph.Extend(c.g)
	for _, n := range nodes {
		if _, ok := n.Op.(graph.SquaredNorm); !ok {
			continue
		}
		parts := make([][]*graph.Node, c.n+1) // by stage, those everywhere first
		for _, a := range n.Args {
			at := everywhere
			if p := c.piece[a]; p != nil {
				at = p.root().stage
			} else if s := c.sinks[a]; s != nil {
				at = s.stage
			}
			parts[at+1] = append(parts[at+1], a)
		}
		b.From(n)
		var sum *graph.Node
		for _, args := range parts {
			if len(args) == 0 {
				continue
			}
			x := b.Add(graph.SquaredNorm{}, args...)
			if sum == nil {
				sum = x
			} else {
				sum = b.Binary(graph.Add, sum, x)
			}
		}
		with[n] = sum
	}
	c.g.Replace(with)
	return c.g.Tidy()
}

// numbers finds the places of single numbers that follow the microbatches, and which of them stages tell each other.
func (c *cutter) numbers() error {
	nodes, updated := c.follows()
	c.place, c.late, c.told = map[*graph.Node]int{}, map[*graph.Node]bool{}, map[*graph.Node]bool{}
	tell := func(n *graph.Node) error {
		if c.late[n] {
			return fmt.Errorf("%s needs numbers of other stages, and other stages need it: stages tell each other numbers once in a step",
				n.Where())
		}
		c.told[n] = true
		return nil
	}
	// local is the stage that alone has a value, or everywhere.
	local := func(n *graph.Node) int {
		if at, ok := c.place[n]; ok {
			return at
		}
		return everywhere
	}
	for _, n := range nodes {
		switch p := c.piece[n]; {
		case p != nil:
			c.place[n] = p.root().stage
		case !placed(n, updated):
			continue
		case c.sinks[n] != nil:
			c.place[n] = c.sinks[n].stage
			continue
		default:
			c.place[n] = everywhere
		}
		if c.sinks[n] != nil {
			continue
		}
		at, several := everywhere, false // of tensors that a number is computed of
		for _, a := range n.Args {
			if isNumber(a) || local(a) == everywhere {
				continue
			}
			several = several || at != everywhere && at != local(a)
			at = local(a)
		}
		if c.piece[n] != nil {
			at = c.place[n]
		} else if several {
			return fmt.Errorf("%s is computed of tensors of several stages: cut the model elsewhere", n.Where())
		}
		if at == everywhere && c.piece[n] == nil {
			same := true // numbers of one stage give another one
			for _, a := range n.Args {
				if l := local(a); l != everywhere {
					same = same && (at == everywhere || at == l)
					at = l
				}
				c.late[n] = c.late[n] || c.late[a]
			}
			if !same || c.late[n] {
				at = everywhere
			}
		}
		for _, a := range n.Args {
			c.late[n] = c.late[n] || c.late[a]
			if l := local(a); isNumber(a) && l != everywhere && l != at {
				if err := tell(a); err != nil {
					return err
				}
				c.late[n] = true
			}
		}
		c.place[n] = at
	}
	for _, u := range c.g.Updates {
		if t, v := local(u.Target), local(u.Value); isNumber(u.Value) && v != everywhere && v != t {
			if err := tell(u.Value); err != nil {
				return err
			}
		}
	}
	return nil
}
