// Package moves makes one launch of what a decoder does to queries, keys and values between their product and their attention:
//
//	x[q] ─► rope ─► cast ─► q                                  x, at, keys, values ─► Fusion{ … │ … │ … } ─► q, keys, values
//	x[k] ─► rope ─► cast ─► update_slice of keys
//	x[v] ─► cast ─► update_slice of values                to
//
// A chain is a rotation, a cast and a write of a part of a State, of which any may be missing, where nothing else reads what lies
// between. Chains are joined that read parts of one value, or of products of one value with frozen weights, and nothing else that
// launches make: so none depends on another.
package moves

import (
	"errors"
	"fmt"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

// A Joiner is a target that has kernels for fusions of [graph.AnchorMoves].
type Joiner interface{ JoinsMoves() bool }

// pattern is the name of the rewrite.
const pattern = "join-moves"

// Run is the pass join-moves.
func Run(c *rewrite.Context) error {
	if t, ok := c.Target.(Joiner); !ok || !t.JoinsMoves() {
		return nil
	}
	j := &joiner{c: c, uses: c.Uses(), frozen: c.FrozenNodes(), updates: map[*graph.Node]*graph.Node{}, taken: map[*graph.Node]bool{}}
	for _, u := range c.Graph.Updates {
		j.updates[u.Value] = u.Target
	}
	groups := map[key][]chain{}
	var order []key
	for _, n := range c.Graph.Nodes {
		l := j.from(n)
		if l == nil {
			continue
		}
		k := j.key(l)
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], l)
	}
	with := map[*graph.Node]*graph.Node{}
	for _, k := range order {
		if err := j.join(groups[k], with); err != nil {
			return err
		}
	}
	if len(with) == 0 {
		return nil
	}
	c.Graph.Replace(with)
	return c.Graph.Tidy()
}

// A chain is nodes each of which reads the one before it, with the reshapes between.
type chain []*graph.Node

// last is the node that makes the chain's result.
func (l chain) last() *graph.Node { return l[len(l)-1] }

// launches is how many launches the chain is by itself.
func (l chain) launches() (n int) {
	for _, m := range l {
		if !graph.IsView(m.Op) {
			n++
		}
	}
	return n
}

// A key is what chains that are joined have in common.
type key struct {
	operand *graph.Node // that all read, or that the products have whose parts they read
	phase   graph.Phase
}

type joiner struct {
	c       *rewrite.Context
	uses    *graph.Uses
	frozen  graph.PerNode[bool]
	updates map[*graph.Node]*graph.Node // by value: the State or Param
	taken   map[*graph.Node]bool        // nodes of chains
}

// from is the chain that begins with n, as far as the target has a kernel for it; nil if there is none.
func (j *joiner) from(n *graph.Node) chain {
	if j.taken[n] || place(n) == 0 || !j.serves(n) {
		return nil
	}
	l := chain{n}
	for path := (chain{}); ; {
		at := n
		if len(path) > 0 {
			at = path.last()
		}
		if !j.uses.One(at) {
			break
		}
		r := j.uses.Readers(at)[0]
		if _, ok := r.Op.(graph.Reshape); ok {
			path = append(path, r)
			continue
		}
		if place(r) <= place(l.last()) || !j.serves(r) || r.Args[operand(r)] != at {
			break
		}
		l, path, n = append(append(l, path...), r), nil, r
	}
	f, args, err := fusionOf([]chain{l})
	if err == nil {
		err = j.c.Accepts(f, args...)
	}
	if err != nil {
		j.c.Note(l[0], "is a launch of its own: %v", err)
		return nil
	}
	for _, m := range l {
		j.taken[m] = true
	}
	return l
}

// place is where in a chain a node may be: of nodes that follow one another it grows. It is 0 of those that may not.
func place(n *graph.Node) int {
	switch op := n.Op.(type) {
	case graph.RoPE:
		return 1
	case graph.Fusion:
		if casts(op) {
			return 2
		}
	case graph.UpdateSlice:
		return 3
	}
	return 0
}

// operand is which operand of a node of a chain the chain moves.
func operand(n *graph.Node) int {
	if _, ok := n.Op.(graph.UpdateSlice); ok {
		return 1
	}
	return 0
}

// casts reports whether a fusion casts one operand, seen through views, and stores the result as it is.
func casts(f graph.Fusion) bool {
	if f.Anchor != graph.AnchorNone || len(f.Body.Outputs) != 1 {
		return false
	}
	n := f.Body.Outputs[0].Node
	for {
		if _, ok := n.Op.(graph.Reshape); !ok {
			break
		}
		n = n.Args[0]
	}
	if _, ok := n.Op.(graph.Cast); !ok {
		return false
	}
	_, ok := rewrite.UnderViews(n.Args[0]).Op.(graph.Input)
	return ok
}

// serves reports whether a node's other operands are there before the run's first launch, and whether a write of a part is an
// update of a State that nothing else reads before it: it can be made in place where it stands.
func (j *joiner) serves(n *graph.Node) bool {
	for i, a := range n.Args {
		if i != operand(n) && !graph.IsSource(rewrite.UnderViews(a).Op) {
			return false
		}
	}
	switch rewrite.UnderViews(n.Args[operand(n)]).Op.(type) {
	case graph.Param, graph.State, graph.Const:
		return false // is rounded once for all that reads it, or before the run
	}
	if j.frozen.Get(n) {
		return false
	}
	if _, ok := n.Op.(graph.UpdateSlice); ok {
		state := n.Args[0]
		_, held := state.Op.(graph.State)
		_, constant := n.Args[2].Op.(graph.Const) // which is checked when the launch is made
		return held && !constant && j.updates[n] == state && len(j.uses.Readers(state)) == 1
	}
	return true
}

// key is with which others a chain may be joined.
func (j *joiner) key(l chain) key {
	of := rewrite.UnderViews(l[0].Args[operand(l[0])])
	if f, ok := of.Op.(graph.Fusion); ok && f.Anchor == graph.AnchorMatMul && len(of.Args) > 0 {
		fixed := true
		for _, a := range of.Args[1:] {
			fixed = fixed && j.frozen.Get(rewrite.UnderViews(a))
		}
		if fixed {
			of = rewrite.UnderViews(of.Args[0])
		}
	}
	return key{of, l[0].Phase}
}

// join makes one launch of chains, if that saves some, and records what replaces their results.
func (j *joiner) join(group []chain, with map[*graph.Node]*graph.Node) error {
	launches, moves := 0, false
	var covered []*graph.Node
	for _, l := range group {
		launches += l.launches()
		for _, n := range l {
			moves = moves || place(n) == 1 || place(n) == 3
		}
		covered = append(covered, l...)
	}
	if launches < 2 || !moves {
		return nil
	}
	f, args, err := fusionOf(group)
	if err != nil {
		return fmt.Errorf("joining %d launches: %w", launches, err)
	}
	if err := j.c.Accepts(f, args...); err != nil && len(group) > 1 { // too many for one: each has been accepted by itself
		half := len(group) / 2
		return errors.Join(j.join(group[:half], with), j.join(group[half:], with))
	}
	b := graph.Extend(j.c.Graph).From(covered...)
	one := b.Add(f, args...)
	for i, l := range group {
		made := one
		if i > 0 {
			made = b.From(l.last()).Add(graph.Result{Index: i}, one)
		}
		made.Name = l.last().Name
		with[l.last()] = made
		for _, n := range l {
			j.c.Merged(n, one)
		}
	}
	j.c.Match(pattern, trace.Exact, f.Kind.String(), one, covered...)
	return b.Err()
}

// fusionOf is the fusion of chains, with its operands.
func fusionOf(group []chain) (f graph.Fusion, args []*graph.Node, err error) {
	f = graph.Fusion{Anchor: graph.AnchorMoves, Kind: graph.KindElementwise, Body: graph.New("")}
	b := graph.Extend(f.Body)
	inputs := map[*graph.Node]*graph.Node{} // by operand
	input := func(a *graph.Node) {
		if inputs[a] == nil {
			inputs[a] = b.Add(graph.Input{Type: a.Type})
			inputs[a].Name, inputs[a].Phase = a.Name, a.Phase
			args = append(args, a)
		}
	}
	for _, l := range group {
		for k, n := range l {
			for i, a := range n.Args {
				if k == 0 || i != operand(n) {
					input(a)
				}
			}
		}
	}
	for i, l := range group {
		x := inputs[l[0].Args[operand(l[0])]]
		for _, n := range l {
			in := make([]*graph.Node, len(n.Args))
			for k, a := range n.Args {
				if in[k] = inputs[a]; k == operand(n) {
					in[k] = x
				}
			}
			if op, ok := n.Op.(graph.Fusion); ok {
				x = b.From(n).Inline(op.Body, in)[0]
			} else {
				x = b.From(n).Add(n.Op, in...)
			}
			if b.Err() == nil {
				x.Name = n.Name
			}
		}
		b.Output(fmt.Sprint(i), x)
	}
	return f, args, b.Err()
}
