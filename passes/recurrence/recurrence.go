// Package recurrence recognises recurrent layers that are written out in steps, as Gorgonia programs have them, and makes
// all steps of one a Recurrence:
//
//	x₁ ──┐        x₂ ──┐                        x₁, x₂, … ─ product with their weights ─┐
//	h₀ ─ cell ─ h₁ ─ cell ─ h₂ ─ …    becomes                                      h₀ ─ recurrence ─ h₁, h₂, …
//
// A step is found by what its cell computes of the sums of products of the state before it; steps with the same weights that
// follow one another are a layer. What is added to a step's products of the state, such as the products of its input, is made
// for all steps at once where the steps do the same to different values: see [stacker.stack].
package recurrence

import (
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

const (
	// minSteps are made one at least.
	minSteps = 3
	// maxTerms is how many terms a gate's sum has at most.
	maxTerms = 16
	// maxDepth is how many operations on the way to a step's input are made for all steps at once.
	maxDepth = 8
	// maxVisits bounds the work of the pass, in visits of nodes: each layer takes one of every node.
	maxVisits = 1 << 26
)

// A step is one way to see nodes as a step of a recurrence.
type step struct {
	cell           graph.Cell
	h, c           *graph.Node // what it computes
	before, memory *graph.Node
	gates          []gate // in the order of the cell
	bias           *graph.Node
	inner          []*graph.Node // what it consists of, but for h and c
	next           *step
	follows        bool // another step
}

// A gate is the sum of the state before, times weights, and of other terms: columns from first on of one that may hold those
// of other gates, too.
type gate struct {
	product
	terms []*graph.Node // the others
	first int
}

// A product is one of a state with weights [H, C], state·weights or, turned, weights·state with a state that is a column.
type product struct {
	state, weights *graph.Node
	turned         bool
}

// productOf sees n as a product of a state of H elements in each row with a matrix, and gives the nodes between.
func productOf(n *graph.Node) (p product, inner []*graph.Node, ok bool) {
	inner = []*graph.Node{n}
	m := n
	if _, isReshape := n.Op.(graph.Reshape); isReshape { // to a vector
		m = n.Args[0]
		inner = append(inner, m)
	}
	op, ok := m.Op.(graph.MatMul)
	if !ok || op.TransA || m.Args[1].Type.Shape.Rank() > 2 && m == n {
		return p, nil, false
	}
	x, y := m.Args[0], m.Args[1]
	if m == n && (m.Type.Shape.Rank() > 2 || m.Type.Shape.At(1) > 1) {
		return product{x, y, op.TransB}, inner, true
	}
	if op.TransB || m.Type.Shape.Rank() != 2 || m.Type.Shape.At(1) != 1 || n.Type.Shape.Elems() != m.Type.Shape.Elems() {
		return p, nil, false
	}
	if m != n { // the vector as a column
		if _, isReshape := y.Op.(graph.Reshape); !isReshape {
			return p, nil, false
		}
		y = y.Args[0]
	}
	return product{y, x, true}, inner, true
}

// A part is columns of a value, from first on.
type part struct {
	of    *graph.Node
	first int
	inner []*graph.Node // the nodes that take them
}

// columnsOf follows slices of the last axis.
func (p part) columnsOf() part {
	for {
		op, ok := p.of.Op.(graph.Slice)
		if !ok || op.Axis != p.of.Type.Shape.Rank()-1 || op.Step != 1 {
			return p
		}
		start, ok := op.ConstStart(p.of)
		if !ok {
			return p
		}
		p = part{p.of.Args[0], p.first + start, append(slices.Clip(p.inner), p.of)}
	}
}

// active sees n as columns of f of a value, and gives the columns of that value.
func active(n *graph.Node, f graph.UnaryFn) (part, bool) {
	p := part{of: n}.columnsOf()
	if !is(p.of, f) {
		return p, false
	}
	return part{p.of.Args[0], p.first, append(slices.Clip(p.inner), p.of)}.columnsOf(), true
}

// Run is the pass.
func Run(c *rewrite.Context) error {
	g := c.Graph
	f := &finder{Context: c, uses: c.Uses(), at: map[*graph.Node][]*step{}}
	var order []*step
	for _, n := range g.Nodes {
		for _, s := range f.steps(n) {
			f.at[n] = append(f.at[n], s)
			order = append(order, s)
		}
	}
	for _, s := range order { // a step's states before it are computed before it
		for _, p := range f.at[s.before] {
			if p.next == nil && p.leads(s) {
				p.next, s.follows = s, true
				break
			}
		}
	}
	with := map[*graph.Node]*graph.Node{}
	for _, s := range order {
		if s.follows || with[s.h] != nil {
			continue
		}
		var layer []*step
		for ; s != nil; s = s.next {
			layer = append(layer, s)
		}
		if len(layer) >= minSteps && !slices.ContainsFunc(layer, func(s *step) bool { return with[s.h] != nil }) {
			if err := f.layer(layer, with); err != nil {
				return err
			}
		}
	}
	if len(with) == 0 {
		return nil
	}
	g.Replace(with)
	return g.Tidy()
}

// leads reports whether s is the step after p of the same layer.
func (p *step) leads(s *step) bool {
	if p.cell != s.cell || p.h != s.before || p.c != s.memory || p.bias != s.bias || p.h.Type != s.h.Type {
		return false
	}
	for i := range p.gates {
		p, s := p.gates[i], s.gates[i]
		if p.weights != s.weights || p.turned != s.turned || p.first != s.first || len(p.terms) != len(s.terms) {
			return false
		}
	}
	return true
}

type finder struct {
	*rewrite.Context
	uses   *graph.Uses
	visits int
	at     map[*graph.Node][]*step // by the state that they compute
}

// steps are the ways to see n as the state after a step.
func (f *finder) steps(n *graph.Node) []*step {
	if !n.Type.DType.IsFloat() || n.Type.Shape.Rank() == 0 || n.Type.Shape.Rank() > 3 || n.Type.Shape.Elems() == 0 {
		return nil
	}
	switch op := n.Op.(type) {
	case graph.Unary:
		switch {
		case op == graph.Unary{Fn: graph.Tanh}:
			return f.plain(graph.TanhCell, n)
		case op.Fn == graph.Relu:
			return f.plain(graph.ReluCell, n)
		}
	case graph.Binary:
		switch op.Fn {
		case graph.Mul:
			return f.lstm(n)
		case graph.Add:
			return f.gru(n)
		}
	}
	return nil
}

// plain finds f(x + h·r).
func (f *finder) plain(cell graph.Cell, n *graph.Node) []*step {
	var found []*step
	for _, g := range f.sums(part{of: n.Args[0]}, n) {
		s := &step{cell: cell, h: n, before: g.state, gates: []gate{g.gate}, inner: g.inner}
		found = f.consider(found, s)
	}
	return found
}

// lstm finds σ(o)⊙tanh(σ(f)⊙c + σ(i)⊙tanh(u)).
func (f *finder) lstm(n *graph.Node) []*step {
	var found []*step
	for side := range 2 {
		out, ok := active(n.Args[side], graph.Sigmoid)
		tanh := n.Args[1-side]
		if !ok || !is(tanh, graph.Tanh) || !isBinary(tanh.Args[0], graph.Add) {
			continue
		}
		c := tanh.Args[0]
		for k := range 8 {
			forgotten, added := c.Args[k&1], c.Args[1-k&1]
			if !isBinary(forgotten, graph.Mul) || !isBinary(added, graph.Mul) {
				continue
			}
			forget, isForget := active(forgotten.Args[k>>1&1], graph.Sigmoid)
			memory := forgotten.Args[1-k>>1&1]
			in, isIn := active(added.Args[k>>2], graph.Sigmoid)
			u, isU := active(added.Args[1-k>>2], graph.Tanh)
			if !isForget || !isIn || !isU {
				continue
			}
			inner := []*graph.Node{tanh, forgotten, added}
			for _, gates := range f.common(n, in, out, forget, u) {
				s := &step{cell: graph.LSTM, h: n, c: c, memory: memory, before: gates[0].state, inner: slices.Clone(inner)}
				for _, g := range gates {
					s.gates, s.inner = append(s.gates, g.gate), append(s.inner, g.inner...)
				}
				found = f.consider(found, s)
			}
		}
	}
	return found
}

// gru finds (1−σ(z))⊙tanh(u) + σ(z)⊙h.
func (f *finder) gru(n *graph.Node) []*step {
	var found []*step
	for k := range 8 {
		kept, taken := n.Args[k&1], n.Args[1-k&1]
		if !isBinary(kept, graph.Mul) || !isBinary(taken, graph.Mul) {
			continue
		}
		z, before := kept.Args[k>>1&1], kept.Args[1-k>>1&1]
		rest, u := taken.Args[k>>2], taken.Args[1-k>>2]
		more := complement(rest, z)
		open, ok := active(z, graph.Sigmoid)
		if more == nil || !ok || !is(u, graph.Tanh) {
			continue
		}
		inner := append([]*graph.Node{kept, taken, u}, more...)
		for _, zg := range f.sums(open, n) {
			if zg.state != before {
				continue
			}
			for _, s := range f.candidates(u.Args[0], before) {
				s.h, s.before = n, before
				s.gates = slices.Insert(s.gates, 0, zg.gate)
				s.inner = slices.Concat(s.inner, inner, zg.inner)
				found = f.consider(found, s)
			}
		}
	}
	return found
}

// candidates finds the gates s and u of a GRU in u, either way.
func (f *finder) candidates(u, before *graph.Node) []*step {
	var found []*step
	add := func(cell graph.Cell, s part, ug gate, bias *graph.Node, inner ...*graph.Node) {
		for _, sg := range f.sums(s, u) {
			if sg.state == before {
				found = append(found, &step{cell: cell, gates: []gate{sg.gate, ug}, bias: bias, inner: slices.Concat(inner, sg.inner)})
			}
		}
	}
	whole := part{of: u}.columnsOf()
	for _, g := range f.sums(whole, u) { // … + (s⊙h)·r
		if reset := g.state; isBinary(reset, graph.Mul) {
			for side := range 2 {
				if s, ok := active(reset.Args[side], graph.Sigmoid); ok && reset.Args[1-side] == before {
					add(graph.GRU, s, g.gate, nil, append(g.inner, reset)...)
				}
			}
		}
	}
	terms, inner := termsOf(u)
	for i, t := range terms { // … + s⊙(h·r + bias)
		if !isBinary(t, graph.Mul) {
			continue
		}
		for side := range 2 {
			s, ok := active(t.Args[side], graph.Sigmoid)
			if !ok {
				continue
			}
			for _, g := range f.sums(part{of: t.Args[1-side]}, u) {
				bias := biasOf(g.terms, before.Type.Shape.At(before.Type.Shape.Rank()-1))
				if g.state != before || bias == nil {
					continue
				}
				ug := gate{product: g.product, terms: slices.Delete(slices.Clone(terms), i, i+1)}
				add(graph.GRUAfter, s, ug, bias, slices.Concat(inner, g.inner, []*graph.Node{t})...)
			}
		}
	}
	return found
}

// biasOf is the vector that the only term is, or that it repeats for all sequences; or nil.
func biasOf(terms []*graph.Node, h int) *graph.Node {
	if len(terms) != 1 {
		return nil
	}
	v := terms[0]
	if _, ok := v.Op.(graph.Broadcast); ok {
		v = v.Args[0]
	}
	if v.Type.Shape.Elems() != h {
		return nil
	}
	return v
}

// complement reports whether rest is 1 − z, by the nodes that it consists of.
func complement(rest, z *graph.Node) []*graph.Node {
	one := func(n *graph.Node) bool {
		v, ok := n.ConstScalar()
		return ok && v == 1
	}
	switch {
	case isBinary(rest, graph.Sub) && rest.Args[1] == z && one(rest.Args[0]):
		return []*graph.Node{rest}
	case isBinary(rest, graph.Add):
		for side := range 2 {
			if neg := rest.Args[side]; is(neg, graph.Neg) && neg.Args[0] == z && one(rest.Args[1-side]) {
				return []*graph.Node{rest, neg}
			}
		}
	}
	return nil
}

func is(n *graph.Node, f graph.UnaryFn) bool { return n.Op == graph.Op(graph.Unary{Fn: f}) }

func isBinary(n *graph.Node, f graph.BinaryFn) bool { return n.Op == graph.Op(graph.Binary{Fn: f}) }

// termsOf are the terms of a sum of values of one shape, and the nodes that add them.
func termsOf(n *graph.Node) (terms, inner []*graph.Node) {
	terms = []*graph.Node{n}
	for i := 0; i < len(terms) && len(terms) < maxTerms; {
		t := terms[i]
		if !isBinary(t, graph.Add) || t.Args[0].Type != t.Type || t.Args[1].Type != t.Type {
			i++
			continue
		}
		inner = append(inner, t)
		terms = slices.Replace(terms, i, i+1, t.Args[0], t.Args[1])
	}
	return terms, inner
}

// A sum is a gate, with the nodes that it consists of.
type sum struct {
	gate
	inner []*graph.Node
}

// sums are the ways to see columns as a gate of a state like h: each product of such a state may be that of the state before.
func (f *finder) sums(p part, h *graph.Node) []sum {
	terms, inner := termsOf(p.of)
	size := rowOf(h)
	var r []sum
	for i, t := range terms {
		m, own, ok := productOf(t)
		if !ok || m.state.Type != h.Type {
			continue
		}
		w := m.weights.Type.Shape
		if from, to := w.At(0), w.At(1); m.turned {
			from, to = to, from
			if from != size || to < p.first+size {
				continue
			}
		} else if from != size || to < p.first+size {
			continue
		}
		rest := slices.Delete(slices.Clone(terms), i, i+1)
		r = append(r, sum{gate{m, rest, p.first}, slices.Concat(p.inner, inner, own)})
	}
	return r
}

// rowOf is how many elements of a state belong to one sequence: all of a vector or a column.
func rowOf(h *graph.Node) int {
	s := h.Type.Shape
	if s.Rank() == 2 && s.At(1) == 1 {
		return s.At(0)
	}
	return s.At(s.Rank() - 1)
}

// common are the ways to see columns as gates of one state like h.
func (f *finder) common(h *graph.Node, parts ...part) [][]sum {
	var found [][]sum
	for _, first := range f.sums(parts[0], h) {
		gates := []sum{first}
		for _, p := range parts[1:] {
			all := f.sums(p, h)
			i := slices.IndexFunc(all, func(s sum) bool { return s.state == first.state })
			if i < 0 {
				break
			}
			gates = append(gates, all[i])
		}
		if len(gates) == len(parts) {
			found = append(found, gates)
		}
	}
	return found
}

// consider adds a step whose inner values nothing else reads.
func (f *finder) consider(list []*step, s *step) []*step {
	for _, g := range s.gates {
		if len(g.terms) == 0 {
			return list
		}
	}
	if s.c != nil && s.c.Type != s.memory.Type || s.before.Type != s.h.Type {
		return list
	}
	for _, n := range s.inner {
		if f.uses.Escapes(n) {
			return list
		}
		for _, r := range f.uses.Readers(n) {
			if r != s.h && r != s.c && !slices.Contains(s.inner, r) {
				return list
			}
		}
	}
	return append(list, s)
}

// layer makes the steps of a layer one operation. What it reads beside the states must not follow from them.
func (f *finder) layer(steps []*step, with map[*graph.Node]*graph.Node) error {
	first := steps[0]
	if f.visits += len(f.Graph.Nodes); f.visits > maxVisits {
		f.Note(first.h, "the graph is too large to look at every recurrent layer")
		return nil
	}
	from := graph.PerNode[bool]{}
	for _, s := range steps {
		from.Set(s.h, true)
		if s.c != nil {
			from.Set(s.c, true)
		}
	}
	for _, n := range f.Graph.Nodes {
		if slices.ContainsFunc(n.Args, func(a *graph.Node) bool { return from.Get(a) }) {
			from.Set(n, true)
		}
	}
	for _, s := range steps {
		for i, g := range s.gates {
			if len(g.terms) != len(first.gates[i].terms) || from.Get(g.weights) {
				return nil
			}
			for _, t := range g.terms {
				if from.Get(t) {
					f.Note(s.h, "the input of this step of a recurrence follows from the steps before it, which stay apart")
					return nil
				}
			}
		}
	}
	h := rowOf(first.h)
	n := first.h.Type.Shape.Elems() / h
	var covered []*graph.Node
	for _, s := range steps {
		covered = append(append(covered, s.inner...), s.h)
	}
	b := graph.Extend(f.Graph).From(covered...)
	st := stacker{b, with}
	var xs, weights []*graph.Node
	var all *graph.Node // of the gate before, [T, N, C]
	for i, g := range first.gates {
		if i == 0 || !slices.Equal(g.terms, first.gates[i-1].terms) {
			all = nil
			for k, term := range g.terms {
				each := make([]*graph.Node, len(steps))
				for t, s := range steps {
					each[t] = s.gates[i].terms[k]
				}
				y := b.Reshape(st.stack(each, maxDepth), len(steps), n, term.Type.Shape.Elems()/n)
				if all == nil {
					all = y
				} else {
					all = b.Binary(graph.Add, all, y)
				}
			}
		}
		r := g.weights
		if g.turned {
			r = b.Transpose(r, 1, 0)
		}
		xs, weights = append(xs, b.Slice(all, 2, g.first, h, 1)), append(weights, b.Slice(r, 1, g.first, h, 1))
	}
	joined := func(axis int, nodes []*graph.Node) *graph.Node {
		if len(nodes) == 1 {
			return nodes[0]
		}
		return b.Add(graph.Concat{Axis: axis}, nodes...)
	}
	args := []*graph.Node{joined(2, xs), joined(1, weights), b.Reshape(first.before, n, h)}
	switch first.cell {
	case graph.LSTM:
		args = append(args, b.Reshape(first.memory, n, h))
	case graph.GRUAfter:
		args = append(args, b.Reshape(first.bias, h))
	}
	if err := b.Err(); err != nil {
		return err
	}
	op := graph.Recurrence{Cell: first.cell}
	if refusal := f.Accepts(op, args...); refusal != nil {
		return nil // its steps are as good there as they are
	}
	y := b.Add(op, args...)
	c := y
	if first.cell == graph.LSTM {
		c = b.Add(graph.Result{Index: 1}, y)
	}
	for t, s := range steps {
		part := func(of *graph.Node) *graph.Node { return b.Reshape(b.Slice(of, 0, t, 1, 1), s.h.Type.Shape.Slice()...) }
		with[s.h] = part(y)
		if s.c != nil {
			with[s.c] = part(c)
		}
	}
	if err := b.Err(); err != nil {
		return err
	}
	f.Match("recurrence", trace.Reassociated, graph.KindOf(op).String(), y, covered...)
	return nil
}

// A stacker makes the inputs of all steps.
type stacker struct {
	b    *graph.Builder
	with map[*graph.Node]*graph.Node // what takes the places of nodes
}

// stack puts values of one type beside each other, along a new first axis. Where all are computed alike, it computes the
// result at once, of what they are computed of:
//
//	x₁·w, x₂·w, …   becomes   [x₁, x₂, …]·w
func (s stacker) stack(nodes []*graph.Node, depth int) *graph.Node {
	b := s.b
	for t, n := range nodes { // states of another layer
		if s.with[n] != nil {
			nodes[t] = s.with[n]
		}
	}
	first := nodes[0]
	to := append([]int{len(nodes)}, first.Type.Shape.Slice()...)
	if !slices.ContainsFunc(nodes, func(n *graph.Node) bool { return n != first }) {
		return b.Broadcast(b.Reshape(first, append([]int{1}, to[1:]...)...), graph.ShapeOf(to...))
	}
	if whole := sliced(nodes); whole != nil {
		return b.Reshape(whole, to...)
	}
	alike := func(i int) bool { // all have one operand i
		return !slices.ContainsFunc(nodes, func(n *graph.Node) bool { return n.Args[i] != first.Args[i] })
	}
	operands := func(i int) []*graph.Node {
		r := make([]*graph.Node, len(nodes))
		for t, n := range nodes {
			r[t] = n.Args[i]
		}
		return r
	}
	same := !slices.ContainsFunc(nodes, func(n *graph.Node) bool {
		if n.Op != first.Op || len(n.Args) != len(first.Args) {
			return true
		}
		for i, a := range n.Args {
			if a.Type != first.Args[i].Type {
				return true
			}
		}
		return false
	})
	if same && depth > 0 {
		switch op := first.Op.(type) {
		case graph.MatMul:
			if x := first.Args[0].Type.Shape; !op.TransA && x.Rank() == 2 && first.Args[1].Type.Shape.Rank() == 2 && alike(1) {
				rows := b.Reshape(s.stack(operands(0), depth-1), len(nodes)*x.At(0), x.At(1))
				return b.Reshape(b.Add(op, rows, first.Args[1]), to...)
			}
			if y := first.Args[1].Type.Shape; y.Rank() == 2 && first.Args[0].Type.Shape.Rank() == 2 && first.Type.Shape.At(1) == 1 &&
				alike(0) {
				rows := b.Reshape(s.stack(operands(1), depth-1), len(nodes), y.Elems())
				return b.Reshape(b.MatMul(rows, first.Args[0], false, !op.TransA), to...)
			}
		case graph.Reshape:
			return b.Reshape(s.stack(operands(0), depth-1), to...)
		case graph.Unary:
			return b.Add(op, s.stack(operands(0), depth-1))
		case graph.Binary:
			if first.Args[0].Type == first.Type && first.Args[1].Type == first.Type {
				return b.Add(op, s.stack(operands(0), depth-1), s.stack(operands(1), depth-1))
			}
		}
	}
	parts := make([]*graph.Node, len(nodes))
	for t, n := range nodes {
		parts[t] = b.Reshape(n, append([]int{1}, to[1:]...)...)
	}
	return b.Add(graph.Concat{Axis: 0}, parts...)
}

// sliced is the value of whose first axis the nodes are all slices, in order and of one size, or nil.
func sliced(nodes []*graph.Node) *graph.Node {
	var whole *graph.Node
	for t, n := range nodes {
		op, ok := n.Op.(graph.Slice)
		if !ok || op.Axis != 0 || op.Step != 1 || t > 0 && n.Args[0] != whole {
			return nil
		}
		whole = n.Args[0]
		if start, ok := op.ConstStart(n); !ok || start != t*op.Size || op.Size*len(nodes) != whole.Type.Shape.At(0) {
			return nil
		}
	}
	return whole
}
