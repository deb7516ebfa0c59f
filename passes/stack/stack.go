// Package stack makes one product of several that read the same operand, where their weights are frozen:
//
//	x, w1 ─► matmul ─► +b1 ─► y1             x, [w1 w2] ─► matmul ─► +[b1 b2] ─► y ─► y[.., 0:n1]
//	x, w2 ─► matmul ─► +b2 ─► y2      to                                         y ─► y[.., n1:n1+n2]
//
// Such are the queries, keys and values of an attention, and the gates of a recurrent layer. The stacked weights follow from
// frozen parameters alone, so that they are made once. What is done to all products alike is done to the one: a function, a
// sum or product with frozen vectors, and a sum of two such groups, as of x·w and h·u in a recurrent layer. The parts are
// views.
//
// Products with weights in panels, of few bits or of 16, are stacked like others: their panels follow one another, and so do scales
// and offsets. All but the last have whole panels.
//
// Elementwise work that is not the same for all is no longer computed in the launch of a product. Products are stacked if,
// with that, there are fewer launches.
package stack

import (
	"fmt"
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

// A Stacker is a target on which one product may be faster than several.
type Stacker interface {
	// StacksWeights reports, as an error that carries the reason, that the product of an operand of some rows with each of
	// several matrices of weights is not faster as one product. Weights of few bits or of 16 are in panels.
	StacksWeights(rows int, weights []graph.Type) error
}

// pattern is the name of the rewrite.
const pattern = "stack-weights"

// Run is the pass stack-weights. Without frozen parameters it changes nothing.
func Run(c *rewrite.Context) error {
	target, ok := c.Target.(Stacker)
	if !ok && c.Target != nil || !c.Frozen {
		return nil
	}
	g := c.Graph
	s := &stacker{c: c, b: graph.Extend(g), frozen: c.FrozenNodes(), uses: c.Uses(), of: map[*graph.Node]place{}}
	s.find(target)
	if len(s.list) == 0 {
		return nil
	}
	for i := 0; i < len(s.list); i++ { // the list grows
		for s.list[i].into == nil && s.grow(s.list[i]) {
		}
	}
	with := map[*graph.Node]*graph.Node{}
	for _, t := range s.list {
		if t.into == nil && s.pays(t) {
			s.replace(t, with)
		}
	}
	if err := s.b.Err(); err != nil || len(with) == 0 {
		return err
	}
	g.Replace(with)
	return g.Tidy()
}

// A stack is values of the same shape, except along an axis, that follow one another along it in one value.
type stack struct {
	parts    []*graph.Node
	axis     int
	products int           // how many products there are below it, and
	groups   int           // how many are left of them
	covered  []*graph.Node // the products and what is done to them
	make     func() *graph.Node
	into     *stack // that has taken it over
}

// place is the place of a value among the parts of a stack.
type place struct {
	stack *stack
	part  int
}

type stacker struct {
	c      *rewrite.Context
	b      *graph.Builder
	frozen graph.PerNode[bool]
	uses   *graph.Uses
	list   []*stack
	of     map[*graph.Node]place // of the parts of stacks that no other has taken over
}

// kind is what products of one stack have in common: the operand, how it is read, and which one it is.
type kind struct {
	operand    *graph.Node
	transposed bool
	weights    int // the other operand
	panels     panels
}

// panels is how the weights of a product are packed, and what there is for each block of their columns. It is zero where they are
// in no panels.
type panels struct {
	op      graph.PanelMatMul // without the number of columns
	pack    graph.PackWeights
	weights graph.DType
	scales  graph.PackWeights // where scales are in panels, too
	f16     bool              // whether they are
	args    int               // operands of the product
}

// find makes a stack of all products of one kind.
func (s *stacker) find(target Stacker) {
	products := graph.NewPerNode[int32](s.c.Graph) // by operand
	for _, n := range s.c.Graph.Nodes {
		if k, ok := s.kind(n); ok {
			products.Set(k.operand, products.Get(k.operand)+1)
		}
	}
	kinds := map[kind][]*graph.Node{}
	var order []kind
	for _, n := range s.c.Graph.Nodes {
		k, ok := s.kind(n)
		if !ok || products.Get(k.operand) < 2 {
			continue
		}
		if kinds[k] == nil {
			order = append(order, k)
		}
		kinds[k] = append(kinds[k], n)
	}
	for _, k := range order {
		list := kinds[k]
		if len(list) < 2 {
			continue
		}
		shape := list[0].Type.Shape
		axis := shape.Rank() - 2 + k.weights
		if target != nil {
			var weights []graph.Type
			for _, n := range list {
				w := n.Args[k.weights]
				if k.panels.args > 0 {
					w = w.Args[0]
				}
				weights = append(weights, w.Type)
			}
			if err := target.StacksWeights(shape.Elems()/shape.At(axis), weights); err != nil {
				s.c.Note(list[0], "%d products of %s with frozen weights stay apart: %v", len(list), k.operand.Where(), err)
				continue
			}
		}
		product := s.product
		if k.panels.args > 0 {
			if list = wholePanels(list); list == nil {
				s.c.Note(kinds[k][0], "%d products of %s with weights in panels stay apart: they do not have multiples of %d columns",
					len(kinds[k]), k.operand.Where(), graph.PanelColumns)
				continue
			}
			product = s.panelProduct
		}
		t := &stack{parts: list, axis: axis, products: len(list), groups: 1, covered: list}
		t.make = func() *graph.Node { return product(list, k) }
		s.add(t)
	}
}

// wholePanels are products with weights in panels, all of which but the last have whole ones; nil if there are several others.
func wholePanels(list []*graph.Node) []*graph.Node {
	broken := func(n *graph.Node) bool { return n.Op.(graph.PanelMatMul).Columns%graph.PanelColumns != 0 }
	at := slices.IndexFunc(list, broken)
	if at < 0 {
		return list
	}
	rest := slices.Concat(list[:at], list[at+1:])
	if slices.ContainsFunc(rest, broken) {
		return nil
	}
	return append(rest, list[at])
}

// kind tells whether n is a product of an operand that changes and a frozen matrix.
func (s *stacker) kind(n *graph.Node) (k kind, ok bool) {
	if op, ok := n.Op.(graph.PanelMatMul); ok {
		return s.panelKind(n, op)
	}
	op, ok := n.Op.(graph.MatMul)
	if !ok || n.Type.Shape.Elems() == 0 || s.frozen.Get(n.Args[0]) == s.frozen.Get(n.Args[1]) {
		return k, false
	}
	k = kind{operand: n.Args[0], transposed: op.TransA, weights: 1}
	if s.frozen.Get(n.Args[0]) {
		k = kind{operand: n.Args[1], transposed: op.TransB, weights: 0}
	}
	w := n.Args[k.weights].Type
	return k, w.Shape.Rank() == 2 && w.Shape.Elems() > 0 && w.DType.IsFloat()
}

// panelKind tells whether n is a product of an operand that changes and frozen weights in panels.
func (s *stacker) panelKind(n *graph.Node, op graph.PanelMatMul) (k kind, ok bool) {
	pack, ok := n.Args[1].Op.(graph.PackWeights)
	if !ok || len(n.Args[1].Args) > 1 || n.Type.Shape.Elems() == 0 || s.frozen.Get(n.Args[0]) {
		return k, false
	}
	for _, a := range n.Args[1:] {
		if !s.frozen.Get(a) {
			return k, false
		}
	}
	op.Columns = 0
	k = kind{operand: n.Args[0], weights: 1}
	k.panels = panels{op: op, pack: pack, weights: n.Args[1].Args[0].Type.DType, args: len(n.Args)}
	if len(n.Args) > 2 && n.Args[2].Type.DType == graph.F16 {
		k.panels.f16 = true
		k.panels.scales, ok = n.Args[2].Op.(graph.PackWeights)
	}
	return k, ok
}

// panelProduct is the one product with weights in panels.
func (s *stacker) panelProduct(list []*graph.Node, k kind) *graph.Node {
	b, op := s.b.From(list...), k.panels.op
	args := []*graph.Node{k.operand}
	for i := 1; i < k.panels.args; i++ {
		var parts []*graph.Node
		for _, n := range list {
			parts = append(parts, n.Args[i])
		}
		switch {
		case i == 1:
			args = append(args, b.Add(k.panels.pack, packed(parts)...))
		case i == 2 && k.panels.f16:
			args = append(args, b.Add(k.panels.scales, packed(parts)...))
		default:
			args = append(args, b.Add(graph.Concat{Axis: 1}, parts...))
		}
	}
	for _, n := range list {
		op.Columns += n.Op.(graph.PanelMatMul).Columns
	}
	return b.Add(op, args...)
}

// packed are the weights in panels.
func packed(panels []*graph.Node) []*graph.Node {
	weights := make([]*graph.Node, len(panels))
	for i, p := range panels {
		weights[i] = p.Args[0]
	}
	return weights
}

// product is the one product. Weights that are transposed otherwise than the first are transposed before they are stacked.
func (s *stacker) product(list []*graph.Node, k kind) *graph.Node {
	op := list[0].Op.(graph.MatMul)
	transposed := func(n *graph.Node) bool {
		if k.weights == 0 {
			return n.Op.(graph.MatMul).TransA
		}
		return n.Op.(graph.MatMul).TransB
	}
	var weights []*graph.Node
	for _, n := range list {
		w := n.Args[k.weights]
		if transposed(n) != transposed(list[0]) {
			w = s.b.From(n).Transpose(w, 1, 0)
		}
		weights = append(weights, w)
	}
	along := k.weights // the axis of the weights that the result has
	if transposed(list[0]) {
		along = 1 - along
	}
	args := []*graph.Node{k.operand, k.operand}
	b := s.b.From(list...)
	args[k.weights] = b.Add(graph.Concat{Axis: along}, weights...)
	return b.Add(op, args...)
}

// add records a stack.
func (s *stacker) add(t *stack) {
	s.list = append(s.list, t)
	for i, n := range t.parts {
		s.of[n] = place{t, i}
	}
}

// take makes a stack of what follows others.
func (s *stacker) take(t *stack, parts []*graph.Node, make func() *graph.Node, from ...*stack) bool {
	next := &stack{parts: parts, axis: t.axis, covered: parts, make: make}
	for _, f := range from {
		for _, n := range f.parts {
			delete(s.of, n)
		}
		next.products += f.products
		next.groups += f.groups
		next.covered = append(next.covered[:len(next.covered):len(next.covered)], f.covered...)
		f.into = next
	}
	s.add(next)
	return true
}

// grow makes a stack of what is done to all parts of t alike, if they are read by that alone.
func (s *stacker) grow(t *stack) bool {
	next := make([]*graph.Node, len(t.parts))
	for i, n := range t.parts {
		if !s.uses.One(n) {
			return false
		}
		next[i] = s.uses.Readers(n)[0]
		if next[i].Op != next[0].Op || next[i].Type != n.Type {
			return false
		}
	}
	op := next[0].Op
	switch op.(type) {
	case graph.Unary:
		return s.take(t, next, func() *graph.Node { return s.b.From(next...).Add(op, t.make()) }, t)
	case graph.Binary:
	default:
		return false
	}
	at := 0 // which operand t is
	if next[0].Args[1] == t.parts[0] {
		at = 1
	}
	others := make([]*graph.Node, len(next))
	for i, n := range next {
		if n.Args[at] != t.parts[i] {
			return false
		}
		others[i] = n.Args[1-at]
	}
	binary := func(x, y *graph.Node) *graph.Node {
		if at == 1 {
			x, y = y, x
		}
		return s.b.From(next...).Add(op, x, y)
	}
	if first := s.of[others[0]]; first.stack != nil && first.stack != t {
		u := first.stack
		if u.axis != t.axis || len(u.parts) != len(t.parts) {
			return false
		}
		for i, o := range others {
			if s.of[o] != (place{u, i}) || !s.uses.One(o) {
				return false
			}
		}
		return s.take(t, next, func() *graph.Node { return binary(t.make(), u.make()) }, t, u)
	}
	back := t.parts[0].Type.Shape.Rank() - t.axis // the axis, counted from the last
	spread := s.vectors(others, back)
	if spread == nil {
		return false
	}
	return s.take(t, next, func() *graph.Node { x := t.make(); return binary(x, spread(s.b.From(next...), x.Type.Shape)) }, t)
}

// vectors makes one of frozen values that are repeated along all axes but one, which is the back-th from the last; or of one
// value that is repeated along that axis, too. It is nil for others.
func (s *stacker) vectors(list []*graph.Node, back int) func(b *graph.Builder, to graph.Shape) *graph.Node {
	from := make([]*graph.Node, len(list))
	same, along := true, true
	for i, n := range list {
		if !s.frozen.Get(n) {
			return nil
		}
		v := n
		if _, ok := n.Op.(graph.Broadcast); ok {
			v = n.Args[0]
		}
		from[i] = v
		shape, rank := v.Type.Shape, v.Type.Shape.Rank()
		axis, full := rank-back, n.Type.Shape.Rank()-back
		same = same && v == from[0] && (axis < 0 || shape.At(axis) == 1)
		along = along && axis >= 0 && shape.At(axis) == n.Type.Shape.At(full) &&
			shape.With(axis, 1) == from[0].Type.Shape.With(axis, 1)
	}
	switch {
	case same:
		return func(b *graph.Builder, to graph.Shape) *graph.Node { return b.Broadcast(from[0], to) }
	case along:
		axis := from[0].Type.Shape.Rank() - back
		return func(b *graph.Builder, to graph.Shape) *graph.Node {
			return b.Broadcast(b.Add(graph.Concat{Axis: axis}, from...), to)
		}
	}
	return nil
}

// pays reports whether there are fewer launches with the stack than without.
func (s *stacker) pays(t *stack) bool {
	apart := s.apart(t)
	if t.groups+apart < t.products {
		return true
	}
	s.c.Miss(pattern, t.parts[0],
		fmt.Sprintf("what follows the %d products is not the same for all: with it apart from them, one product "+
			"makes it %d launches", t.products, t.groups+apart), t.covered)
	return false
}

// apart is the number of further launches that are needed for what follows the parts: elementwise work that was computed in the
// launches of the products, and copies for readers that need their operands contiguous. What had launches of its own before is not
// counted: work on a slice of a part, or with what other launches make of it, as in a rotary embedding.
func (s *stacker) apart(t *stack) (launches int) {
	cluster := map[*graph.Node]int{} // of elementwise nodes
	root := []int{}
	var members [][]*graph.Node // of clusters
	var before []bool           // which are launches without the stack, too
	find := func(i int) int {
		for root[i] != i {
			i = root[i]
		}
		return i
	}
	var flood func(n *graph.Node, id int)
	flood = func(n *graph.Node, id int) {
		if other, ok := cluster[n]; ok {
			root[find(other)] = find(id)
			return
		}
		cluster[n], members[id] = id, append(members[id], n)
		for _, r := range s.uses.Readers(n) {
			if graph.Joins(r.Op) || graph.IsView(r.Op) {
				flood(r, id)
			}
		}
	}
	copies := 0
	// follow goes on from n, a view of a part, whose layout is l in the stack and own without it.
	var follow func(part, n *graph.Node, l, own graph.Layout)
	follow = func(part, n *graph.Node, l, own graph.Layout) {
		if s.uses.Escapes(n) {
			copies++
		}
		for _, r := range s.uses.Readers(n) {
			_, anchored := graph.AnchorOf(r.Op)
			switch {
			case graph.Joins(r.Op):
				id := len(root)
				root, members = append(root, id), append(members, nil)
				before = append(before, own.Shape.Elems() != part.Type.Shape.Elems())
				flood(r, id)
			case graph.IsView(r.Op):
				view, ok := l.View(r)
				ownView, owned := own.View(r)
				switch {
				case ok && owned:
					follow(part, r, view, ownView)
				case owned:
					copies++
				}
			case !anchored && !graph.ReadsStrides(r.Op) && own.IsContiguous():
				copies++
			}
		}
	}
	whole := t.parts[0].Type.Shape
	all := 0
	for _, n := range t.parts {
		all += n.Type.Shape.At(t.axis)
	}
	start := 0
	for _, n := range t.parts {
		size := n.Type.Shape.At(t.axis)
		first := len(root)
		follow(n, n, graph.Contiguous(whole.With(t.axis, all)).Slice(t.axis, start, size, 1), graph.Contiguous(n.Type.Shape))
		for id := first; id < len(root); id++ {
			before[id] = before[id] || waits(n, members[id], cluster)
		}
		start += size
	}
	joined := map[int]bool{} // by root: all of its clusters had launches before
	for i := range root {
		r := find(i)
		had, ok := joined[r]
		joined[r] = before[i] && (had || !ok)
	}
	for _, had := range joined {
		if !had {
			launches++
		}
	}
	return launches + copies
}

// waits reports whether elementwise nodes read what other launches make of a part: they are not computed in its launch.
func waits(part *graph.Node, nodes []*graph.Node, cluster map[*graph.Node]int) bool {
	const most = 64 // nodes that are looked at
	seen := map[*graph.Node]bool{}
	var list []*graph.Node
	add := func(args []*graph.Node) {
		for _, a := range args {
			if !seen[a] {
				seen[a], list = true, append(list, a)
			}
		}
	}
	for _, n := range nodes {
		for _, a := range n.Args {
			if _, in := cluster[a]; !in && rewrite.UnderViews(a) != part {
				add([]*graph.Node{a})
			}
		}
	}
	for i := 0; i < len(list) && i < most; i++ {
		if list[i] == part {
			return true
		}
		add(list[i].Args)
	}
	return false
}

// replace makes the stack, and records the views that replace its parts.
func (s *stacker) replace(t *stack, with map[*graph.Node]*graph.Node) {
	whole := t.make()
	if s.b.Err() != nil {
		return
	}
	start := 0
	for _, n := range t.parts {
		size := n.Type.Shape.At(t.axis)
		y := s.b.From(n).Slice(whole, t.axis, start, size, 1)
		start += size
		if s.b.Err() != nil {
			return
		}
		y.Name = n.Name
		with[n] = y
	}
	s.c.Match(pattern, trace.Exact, graph.KindOf(whole.Op).String(), whole, t.covered...)
}
