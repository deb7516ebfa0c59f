package passes

import (
	"errors"
	"fmt"
	"slices"

	"fusec/graph"
)

// stripGrad puts a request in the place of each gradient that is read, so that the backward nodes that computed
// it are dropped:
//
//	x ─ forward ─ cost                    x ─ forward ─ cost ─┐
//	│      │                              │                   │
//	└── backward ─ d(cost)/d(x) ─ sgd     └─────────── gradient of cost by x ─ sgd
//
// A request is an ordinary node with the cost and what to differentiate by as its operands, so that it follows them
// through every rewrite; differentiate answers it. It must be a value that still exists then: if it is computed within
// the graph, a Copy is put behind it, which no pass removes or merges with another. Further results of an operation
// are read from the operation itself and not through the Copy of its first.
//
// Where the cost is unknown, or something on the way to it has no gradient, the gradients stay as the graph computes
// them, and a note says why. Opaque operations are asked for the rule that they bring. A note also tells of backward
// nodes that stay because something else reads them.
func stripGrad(c *Context) error {
	if len(c.gradients) == 0 {
		return nil
	}
	s := &stripper{c: c, kept: map[*graph.Node]string{}, opaque: map[*graph.Node]bool{},
		asked: map[[3]*graph.Node]*graph.Node{}, uses: c.Uses(),
		ancestors: map[*graph.Node]map[*graph.Node]bool{}, walks: map[*graph.Node]walk{}}
	if err := s.choose(); err != nil {
		return err
	}
	forward := s.forward()
	if err := s.ask(); err != nil {
		return err
	}
	if err := c.Graph.Tidy(); err != nil {
		return err
	}
	s.tellKept(forward)
	return nil
}

type stripper struct {
	c      *Context
	kept   map[*graph.Node]string         // costs whose backward stays, with the reason
	opaque map[*graph.Node]bool           // operations that are differentiated by their own rule
	chosen []Gradient                     // gradients to request
	asked  map[[3]*graph.Node]*graph.Node // by cost, what to differentiate by, and seed

	outputs   map[string]int // places of outputs by name; nil until one is asked for
	uses      *graph.Uses
	ancestors map[*graph.Node]map[*graph.Node]bool // of costs and seeds, as the graph came
	walks     map[*graph.Node]walk                 // by cost
}

// A walk towards a cost, from all that its gradients are taken by.
type walk struct {
	passed map[*graph.Node]bool // nodes that gradients flow through
	behind map[*graph.Node]bool // nodes all of whose readers on the way to the cost are among the passed
}

// before lists what a cost or seed is computed from, itself included. The copies that ask puts into the graph change
// nothing about it.
func (s *stripper) before(n *graph.Node) map[*graph.Node]bool {
	if s.ancestors[n] == nil {
		s.ancestors[n] = graph.Ancestors(n)
	}
	return s.ancestors[n]
}

// choose sorts the gradients into those that can be made again and are read, and those whose backward stays. One that the
// graph does not compute and that cannot be made is an error.
func (s *stripper) choose() error {
	all := slices.DeleteFunc(slices.Clone(s.c.gradients), outside)
	for _, r := range all {
		if r.Cost == nil {
			s.c.Note(r.Value, "the gradient with respect to %v stays as the graph computes it: it is not known of what", r.Of)
			continue
		}
		if s.kept[r.Cost] != "" {
			continue
		}
		if why := s.obstacle(r); why != "" {
			s.kept[r.Cost] = why
			s.c.Note(r.Cost, "the backward pass of %v stays as the graph computes it: %s", r.Cost, why)
		}
	}
	for _, r := range all {
		why := s.kept[r.Cost]
		switch {
		case why == "" || r.Output == "":
		case r.Value == nil || !fits(r):
			return fmt.Errorf("the gradient of %s by %s: %s", r.Cost.Where(), r.Of.Where(), why)
		default:
			s.output(r.Output, r.Value)
		}
	}
	// A node may be the gradient with respect to several: that of a sum is that of its terms too. Who reads it needs one
	// request, best by a source, which no Copy keeps apart from what reads it.
	ofValue := map[*graph.Node]Gradient{}
	for _, r := range all {
		if r.Cost == nil || s.kept[r.Cost] != "" || r.Value == nil {
			continue
		}
		if have, ok := ofValue[r.Value]; !ok || graph.IsSource(r.Of.Op) && !graph.IsSource(have.Of.Op) {
			ofValue[r.Value] = r
		}
	}
	read := s.read(ofValue)
	for _, r := range all {
		if r.Cost == nil || s.kept[r.Cost] != "" {
			continue
		}
		if r.Output != "" || read[r.Value] && ofValue[r.Value] == r {
			s.chosen = append(s.chosen, r)
		}
	}
	return nil
}

// outside reports whether a gradient is a constant or comes from outside, as that of a cost by itself, and nothing asks
// for it by name: there is nothing to make again.
func outside(r Gradient) bool { return r.Value != nil && graph.IsSource(r.Value.Op) && r.Output == "" }

// read finds the gradients that something other than a dropped backward pass reads.
func (s *stripper) read(ofValue map[*graph.Node]Gradient) map[*graph.Node]bool {
	read, seen := map[*graph.Node]bool{}, map[*graph.Node]bool{}
	var stack []*graph.Node
	push := func(nodes ...*graph.Node) {
		for _, n := range nodes {
			if n != nil && !seen[n] {
				seen[n] = true
				stack = append(stack, n)
			}
		}
	}
	for n := range s.c.Graph.Escapes() {
		push(n)
	}
	for _, r := range s.c.gradients {
		if r.Output != "" {
			push(r.Cost, r.Of, r.Seed)
		}
	}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if r, ok := ofValue[n]; ok {
			read[n] = true
			push(r.Cost, r.Of, r.Seed)
		} else {
			push(n.Args...)
		}
	}
	return read
}

// obstacle says why the gradient cannot be made again; it is empty if it can.
func (s *stripper) obstacle(r Gradient) string {
	cost := r.Cost
	if r.Seed != nil {
		if r.Seed.Type != cost.Type {
			return fmt.Sprintf("it is seeded with %v of type %v, not %v", r.Seed, r.Seed.Type, cost.Type)
		}
	} else if cost.Type.Shape.Elems() != 1 {
		return fmt.Sprintf("it is %v and not a scalar", cost.Type)
	}
	if !cost.Type.DType.IsFloat() || !r.Of.Type.DType.IsReal() {
		return fmt.Sprintf("%v is %v and %v is %v", cost, cost.Type, r.Of, r.Of.Type)
	}
	if r.Value != nil && !fits(r) {
		return fmt.Sprintf("the gradient with respect to %v is %v, which does not fit %v", r.Of, r.Value.Type, r.Of.Type)
	}
	before := s.before(cost)
	if !before[r.Of] {
		return "" // no way from one to the other: the gradient is zero
	}
	// Walk from Of towards the cost, up to where another gradient's walk has been.
	w := s.walks[cost]
	if w.passed == nil {
		w = walk{passed: map[*graph.Node]bool{}, behind: map[*graph.Node]bool{}}
		s.walks[cost] = w
	}
	stack := []*graph.Node{r.Of}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if w.behind[n] {
			continue
		}
		w.behind[n] = true
		for _, u := range s.uses.Readers(n) {
			if w.passed[u] || !before[u] || !u.Type.DType.IsReal() {
				continue
			}
			w.passed[u] = true
			if err := differentiable(u); err != nil {
				return fmt.Sprintf("%s, between %v and it, has no gradient: %v", u.Where(), r.Of, err)
			}
			if _, ok := u.Op.(graph.Host); ok && !s.opaque[u] {
				s.opaque[u] = true
				s.c.Note(u, "%s is differentiated by the rule that it brings", u.Where())
			}
			stack = append(stack, u)
		}
	}
	return ""
}

// fits reports whether the gradient that the graph computes has the element type and the number of elements of what it
// is taken by.
func fits(r Gradient) bool {
	v, of := r.Value.Type, r.Of.Type
	return v.DType == of.DType && v.Shape.Elems() == of.Shape.Elems()
}

// differentiable reports, as an error that carries the reason, that no gradient can be taken through n.
func differentiable(n *graph.Node) error {
	if _, ok := n.Op.(graph.Result); ok {
		n = n.Args[0]
	}
	switch n.Op.(type) {
	case graph.Fusion:
		return nil // by its body
	case graph.Host:
		return tryGradient(n)
	}
	if info := graph.InfoOf(n.Op); info == nil || info.Grad == nil && info.Decompose == nil {
		return fmt.Errorf("the operation %s has none", n.Op.OpName())
	}
	return nil
}

// tryGradient asks an opaque operation for its gradient, in a separate graph: whether it has one is known only when
// asked.
func tryGradient(n *graph.Node) error {
	b := graph.Extend(graph.New("trial"))
	args := make([]*graph.Node, len(n.Args))
	for i, a := range n.Args {
		args[i] = b.Input(fmt.Sprintf("operand %d", i), a.Type)
	}
	y, dy := b.Add(n.Op, args...), b.Input("gradient", n.Type)
	if b.Err() != nil {
		return b.Err()
	}
	if _, err := graph.InfoOf(n.Op).Grad(b, y, []*graph.Node{dy}); err != nil {
		return err
	}
	return b.Err()
}

// forward lists what the costs are computed from.
func (s *stripper) forward() map[*graph.Node]bool {
	costs := make([]*graph.Node, len(s.chosen))
	for i, r := range s.chosen {
		costs[i] = r.Cost
	}
	return graph.Ancestors(costs...)
}

// ask puts the requests into the graph.
func (s *stripper) ask() error {
	g := s.c.Graph
	with := map[*graph.Node]*graph.Node{}
	behind := map[*graph.Node]*graph.Node{}
	// Readers are given the copies first, so that the operands of the requests are right.
	for _, r := range s.chosen {
		if graph.IsSource(r.Of.Op) || behind[r.Of] != nil {
			continue
		}
		b := graph.Extend(g).From(r.Of)
		k := b.Add(graph.Copy{}, r.Of)
		if b.Err() != nil {
			return b.Err()
		}
		k.Name = r.Of.Name
		behind[r.Of] = k
	}
	if len(behind) > 0 {
		g.Replace(behind)
		for of, k := range behind {
			k.Args[0] = of
		}
		for _, n := range g.Nodes {
			if _, further := n.Op.(graph.Result); further {
				if k := n.Args[0]; len(k.Args) > 0 && behind[k.Args[0]] == k {
					n.Args[0] = k.Args[0]
				}
			}
		}
	}
	now := func(n *graph.Node) *graph.Node {
		if k := behind[n]; k != nil {
			return k
		}
		return n
	}
	for _, r := range s.chosen {
		cost, value := now(r.Cost), r.Value
		req, err := s.request(cost, now(r.Of), now(r.Seed))
		if err != nil {
			return err
		}
		if value != nil {
			value = now(value)
			// What the cost itself or its seed is computed from is no backward node: a constant 1, say, that is also a
			// gradient.
			if !s.before(r.Cost)[r.Value] && (r.Seed == nil || !s.before(r.Seed)[r.Value]) && with[value] == nil {
				b := graph.Extend(g).From(r.Value).In(graph.Backward)
				made := b.Reshape(req, value.Type.Shape.Slice()...)
				if b.Err() != nil {
					return b.Err()
				}
				if made.Name == "" {
					made.Name = r.Value.Name
				}
				with[value] = made
			}
		}
		if r.Output != "" {
			s.output(r.Output, req)
		}
	}
	g.Replace(with)
	return nil
}

// output hands n out under a name, in place of what had it.
func (s *stripper) output(name string, n *graph.Node) {
	g := s.c.Graph
	if s.outputs == nil {
		s.outputs = make(map[string]int, len(g.Outputs))
		for i, o := range g.Outputs {
			s.outputs[o.Name] = i
		}
	}
	i, ok := s.outputs[name]
	if !ok {
		i = len(g.Outputs)
		s.outputs[name] = i
		g.Outputs = append(g.Outputs, graph.Output{Name: name})
	}
	g.Outputs[i].Node = n
}

// request makes the placeholder of d(cost)/d(of), which differentiate replaces. Its operands are the cost, what to
// differentiate by, and the seed if there is one.
func (s *stripper) request(cost, of, seed *graph.Node) (*graph.Node, error) {
	args := []*graph.Node{cost, of}
	if seed != nil {
		args = append(args, seed)
	}
	k := [3]*graph.Node{cost, of, seed}
	b := graph.Extend(s.c.Graph).From(of).In(graph.Backward)
	if s.asked[k] == nil {
		s.asked[k] = b.Add(graph.Host{Name: fmt.Sprintf("gradient of %v by %v", cost, of), Type: of.Type.Accumulator(), Impl: request},
			args...)
	}
	return s.asked[k], b.Err()
}

// request marks the Host nodes that differentiate answers.
var request graph.HostImpl = &unanswered{}

type unanswered struct{ _ byte }

// Placeholder implements graph.Placeholder.
func (*unanswered) Placeholder() {}

// Do implements graph.HostImpl.
func (*unanswered) Do([]*graph.Tensor) (*graph.Tensor, error) {
	return nil, errors.New("a gradient was asked for and not made")
}

func isRequest(n *graph.Node) bool {
	h, ok := n.Op.(graph.Host)
	return ok && h.Impl == request
}

// requested finds the values that gradients are requested by.
func requested(g *graph.Graph) map[*graph.Node]bool {
	of := map[*graph.Node]bool{}
	for _, n := range g.Nodes {
		if isRequest(n) {
			of[n.Args[1]] = true
		}
	}
	return of
}

// requests says why strip-grad is needed: something asks for a gradient that the graph does not compute.
func (cfg Config) requests() string {
	for _, r := range cfg.Gradients {
		if r.Output != "" {
			return fmt.Sprintf("the gradient of %v by %v is asked for", r.Cost, r.Of)
		}
	}
	for _, s := range cfg.Steps {
		if s.makes(cfg.Optimizer) {
			return fmt.Sprintf("the gradient by %v is asked for by the optimiser", s.Param)
		}
	}
	return ""
}

// tellKept notes what is left of the backward passes that were to go.
func (s *stripper) tellKept(forward map[*graph.Node]bool) {
	var values []*graph.Node
	for _, r := range s.chosen {
		if r.Value != nil && !forward[r.Value] {
			values = append(values, r.Value)
		}
	}
	backward := graph.Ancestors(values...)
	isBackward := func(n *graph.Node) bool {
		return backward[n] && !forward[n] && graph.ClassOf(n.Op) != graph.ClassSource
	}
	uses := s.c.Graph.Uses()
	for _, n := range s.c.Graph.Nodes {
		if !isBackward(n) || isRequest(n) {
			continue
		}
		by := "it is handed out"
		if !uses.Escapes(n) {
			by = ""
			for _, u := range uses.Readers(n) {
				if !isBackward(u) {
					by = u.Where() + " reads it"
					break
				}
			}
		}
		if by != "" {
			s.c.Note(n, "%s of the backward pass stays: %s", n.Where(), by)
		}
	}
}
