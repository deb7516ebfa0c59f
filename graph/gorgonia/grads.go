package gorgonia

import (
	"fmt"
	"slices"

	"fusec/graph"

	gorg "gorgonia.org/gorgonia"
)

// The names of the groups into which gorgonia.Grad puts what it adds.
const (
	gradGroup  = "gradients"
	strayGroup = "undifferentiated nodes"
)

// Backward reports whether gorgonia.Grad made n, or put it to use, as the derivative of an operand.
func (im *Imported) Backward(n *gorg.Node) bool {
	l, err := layout()
	if err != nil {
		return false
	}
	switch nodeField[string](n, l.group) {
	case gradGroup, strayGroup:
		return true
	}
	return false
}

// grads lists what Gorgonia knows about derivatives. Gorgonia keeps one derivative a node, that of the first call of
// gorgonia.Grad whose cost depends on it; a later call goes round the nodes that have one.
func (im *importer) grads(order []*gorg.Node) {
	f := costFinder{im: im, candidates: make([]*costList, len(order)), behind: map[*gorg.Node]map[*gorg.Node]bool{}}
	for _, n := range order {
		if d := n.Deriv(); d != nil {
			f.derivs = append(f.derivs, d.ID())
		}
	}
	slices.Sort(f.derivs)
	costs := make([]*gorg.Node, len(order)) // by position; nil where there are several
	told := map[[2]*gorg.Node]bool{}
	var shared []sharedNode
	for i := len(order) - 1; i >= 0; i-- {
		n := order[i]
		if n.Deriv() == nil {
			continue
		}
		cost, later := f.find(n)
		costs[i] = cost
		if len(later) == 0 {
			continue
		}
		times := map[*gorg.Node]int{}
		for _, u := range later {
			times[costs[im.at.of(u)]]++
		}
		for _, u := range later {
			c := costs[im.at.of(u)]
			if cost == nil || c == nil || c == cost || told[[2]*gorg.Node{cost, c}] {
				continue
			}
			told[[2]*gorg.Node{cost, c}] = true
			shared = append(shared, sharedNode{n, cost, c, times[c]})
		}
	}
	of := map[*gorg.Node][]*gorg.Node{}
	for i, c := range costs {
		if c != nil && len(shared) > 0 {
			of[c] = append(of[c], order[i])
		}
	}
	for _, s := range shared {
		if f.penalises(s, of) {
			im.meets(gradientPenalty, im.Node(s.later), numbered(s.later))
			continue
		}
		im.kept(im.Node(s.node), "the costs %s and %s both depend on %s: its derivative, and those of what it is computed "+
			"from, are of the first, for which gorgonia.Grad was called before; for them the later call returned %s",
			numbered(s.cost), numbered(s.later), numbered(s.node), returned(s.node, s.times))
	}
	ambiguous := 0
	im.Grads = slices.Grow(im.Grads, len(f.derivs)) // nil if there are none
	for i, n := range order {
		of, d := im.Node(n), n.Deriv()
		if d == nil || of == nil || im.Node(d) == nil {
			continue
		}
		wanted := n.Op() == nil || typeName(n.Op()) == "randomOp"
		g := Grad{Node: n, GradMark: graph.GradMark{Of: of, Value: im.Node(d), Wanted: wanted}}
		if g.Value.Phase == graph.Backward {
			graph.NameGradient(g.Value, of)
		}
		if c := costs[i]; c != nil {
			g.Cost = im.Node(c)
			if s := im.Node(c.Deriv()); s != nil {
				if one, ok := s.ConstScalar(); !ok || one != 1 {
					g.Seed = s
				}
			}
		} else {
			ambiguous++
		}
		im.Grads = append(im.Grads, g)
	}
	if len(im.Grads) > 0 {
		im.phases()
	}
	if ambiguous > 0 {
		im.kept(nil, "several costs depend on the same nodes, and the graph does not say of which of them Gorgonia kept the "+
			"derivatives: %d are taken as it computes them", ambiguous)
	}
}

// phases finds the phase of what follows Gorgonia's backward pass and is not in its group: Gorgonia leaves helpers of the
// backward pass out, and the rest is what the user makes of gradients. A cost that is computed from gradients, as a
// gradient penalty is, belongs to the forward pass.
func (im *importer) phases() {
	g := im.Graph
	forward, backward := graph.NewPerNode[bool](g), graph.NewPerNode[bool](g)
	for _, d := range im.Grads {
		backward.Set(d.Value, true)
		if d.Cost != nil {
			forward.Set(d.Cost, true)
		}
	}
	for _, n := range slices.Backward(g.Nodes) {
		for _, a := range n.Args {
			forward.Set(a, forward.Get(a) || forward.Get(n))
			backward.Set(a, backward.Get(a) || backward.Get(n))
		}
	}
	for _, n := range g.Nodes {
		follows := slices.ContainsFunc(n.Args, func(a *graph.Node) bool {
			return a.Phase != graph.Forward && graph.ClassOf(a.Op) != graph.ClassSource
		})
		switch {
		case n.Phase != graph.Forward || !follows:
		case backward.Get(n) && !forward.Get(n):
			n.Phase = graph.Backward
		case !forward.Get(n):
			n.Phase = graph.Optimiser
		}
	}
}

// A sharedNode is one on which two costs depend.
type sharedNode struct {
	node, cost, later *gorg.Node // its derivative is of cost
	times             int        // that the later one reads it
}

// penalises reports whether the later cost is computed from a derivative of the earlier one, and was differentiated with
// respect to something from which the earlier is computed. of lists the nodes whose derivatives are of a cost.
func (f *costFinder) penalises(s sharedNode, of map[*gorg.Node][]*gorg.Node) bool {
	return slices.ContainsFunc(of[s.later], func(n *gorg.Node) bool { return f.before(n, s.cost) }) &&
		slices.ContainsFunc(of[s.cost], func(n *gorg.Node) bool { return !f.constant(n.Deriv()) && f.before(n.Deriv(), s.later) })
}

// kept leaves a note about the derivatives of several costs, or of n, which are those that Gorgonia has kept.
func (im *importer) kept(n *graph.Node, format string, a ...any) {
	im.note(n, format, a...)
	last := &im.Graph.Notes[len(im.Graph.Notes)-1]
	last.Kind, last.Topic = graph.Imitation, secondGrad.Topic
}

// A set holds what was added. Most sets are small, and then lists.
type set[T comparable] struct {
	list []T
	more map[T]bool // all of it, once the list is full
}

// add reports whether x was not in the set before.
func (s *set[T]) add(x T) bool {
	if s.more != nil {
		known := s.more[x]
		s.more[x] = true
		return !known
	}
	if slices.Contains(s.list, x) {
		return false
	}
	if s.list = append(s.list, x); len(s.list) > 16 {
		s.more = make(map[T]bool, 2*len(s.list))
		for _, y := range s.list {
			s.more[y] = true
		}
	}
	return true
}

// clear takes everything out.
func (s *set[T]) clear() { s.list, s.more = s.list[:0], nil }

// returned says what a later call of gorgonia.Grad returned for a node that had a derivative already, and that its cost
// reads so many times.
func returned(n *gorg.Node, times int) string {
	switch {
	case n.Op() != nil:
		return "the same"
	case times > 1:
		return fmt.Sprintf("the first of the %d terms of its own", times)
	}
	return "its own"
}

// numbered is what notes call a node, told from others of its operation if it has no name.
func numbered(n *gorg.Node) string {
	if nameOf(n) != "" {
		return Called(n)
	}
	return fmt.Sprintf("%s (node %d)", Called(n), n.ID())
}

// A costFinder tells of which cost a derivative is.
type costFinder struct {
	im         *importer
	candidates []*costList                        // costs that a node lies on a way to, by its position
	behind     map[*gorg.Node]map[*gorg.Node]bool // what a cost is computed from
	derivs     []int64                            // IDs of all derivatives, sorted

	readers, later []*gorg.Node // of find's last call
	seen           set[*gorg.Node]
}

// A costList is a set of costs: those of other sets, and perhaps one more. Sums of many losses have many partial sums
// that may each be a cost; so a set does not list all that it holds.
type costList struct {
	from []*costList
	own  *gorg.Node // or nil
	// top is what is in the set, less what tells nothing more: costs from which another one is computed, while no
	// derivative was made between the two.
	top  []*gorg.Node
	less bool // top is not the whole set
}

// whole lists the set.
func (l *costList) whole() []*gorg.Node {
	if !l.less {
		return l.top
	}
	var all []*gorg.Node
	seen := map[*costList]bool{l: true}
	in := map[*gorg.Node]bool{nil: true}
	for stack := []*costList{l}; len(stack) > 0; {
		l := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if !in[l.own] {
			in[l.own] = true
			all = append(all, l.own)
		}
		for _, k := range l.from {
			if !seen[k] {
				seen[k] = true
				stack = append(stack, k)
			}
		}
	}
	return all
}

// union is the set of the readers' costs, and of own if it is not nil.
func (f *costFinder) union(readers []*gorg.Node, own *gorg.Node) *costList {
	if own == nil {
		if one, ok := f.single(readers); ok {
			return one
		}
	}
	l := &costList{own: own}
	var seen set[*costList]
	var in set[*gorg.Node]
	add := func(c *gorg.Node) {
		if in.add(c) {
			l.top = append(l.top, c)
		}
	}
	for _, u := range readers {
		k := f.candidates[f.im.at.of(u)]
		if k == nil || !seen.add(k) {
			continue
		}
		l.from = append(l.from, k)
		l.less = l.less || k.less
		for _, c := range k.top {
			add(c)
		}
	}
	if own != nil {
		add(own)
	}
	all := l.top
	l.top = keep(all, func(c *gorg.Node) bool {
		return !slices.ContainsFunc(all, func(o *gorg.Node) bool {
			if o.ID() <= c.ID() {
				return false
			}
			next, _ := slices.BinarySearch(f.derivs, c.ID())
			return (next == len(f.derivs) || f.derivs[next] > o.ID()) && f.before(c, o)
		})
	})
	l.less = l.less || len(l.top) < len(all)
	return l
}

// single is the set of all readers that have one, if they have the same.
func (f *costFinder) single(readers []*gorg.Node) (l *costList, ok bool) {
	for _, u := range readers {
		switch k := f.candidates[f.im.at.of(u)]; {
		case k == nil || k == l:
		case l == nil:
			l = k
		default:
			return nil, false
		}
	}
	return l, l != nil
}

// find returns the cost whose derivative n has, or nil if several may be it, and those readers of n that got their
// derivatives in a later call. A node is a cost if no reader of it has a derivative, or if its own is the 1 that
// gorgonia.Grad starts from. Nodes are numbered as they are made, and from that it follows:
//
//   - A reader whose derivative is younger than that of n has got it in a later call.
//   - A derivative that is older than a cost is not of that cost, which may well depend on it, as a gradient penalty
//     does.
//
// Of the costs that are left, it is the one that all others, or their derivatives, are part of. Readers of n come
// before n. What it lists holds until the next call.
func (f *costFinder) find(n *gorg.Node) (cost *gorg.Node, later []*gorg.Node) {
	d := n.Deriv()
	fixed := f.constant(d)
	readers := f.readers[:0]
	later = f.later[:0]
	f.seen.clear()
	for _, u := range f.im.usersOf(n) {
		r := u.Deriv()
		if r == nil || !f.seen.add(u) {
			continue
		}
		switch {
		case !fixed && !f.constant(r) && r.ID() > d.ID():
			later = append(later, u)
		default:
			readers = append(readers, u)
		}
	}
	f.readers, f.later = readers, later
	if len(readers) == 0 { // it is a cost; or its derivative is a node that was there before
		readers, later = later, nil
	}
	var own *gorg.Node
	if one, ok := f.im.scalar(d); len(readers) == 0 || n.IsScalar() && ok && one == 1 {
		own = n
	}
	all := f.union(readers, own)
	f.candidates[f.im.at.of(n)] = all
	some := all.top
	if own != nil && !slices.Contains(some, own) {
		some = append(slices.Clip(some), own)
	}
	mayBe := func(c *gorg.Node) bool { return c == n || fixed || d.ID() > c.ID() }
	if len(some) == 1 && mayBe(some[0]) {
		return some[0], later
	}
	younger := keep(some, mayBe)
	if len(younger) == 0 {
		younger = keep(all.whole(), func(c *gorg.Node) bool { return !f.before(d, c) })
	}
	whole := keep(younger, func(c *gorg.Node) bool {
		return !slices.ContainsFunc(younger, func(o *gorg.Node) bool { return o != c && f.within(c, o) })
	})
	if len(whole) != 1 {
		return nil, later
	}
	return whole[0], later
}

func keep(nodes []*gorg.Node, ok func(*gorg.Node) bool) (r []*gorg.Node) {
	for _, n := range nodes {
		if ok(n) {
			r = append(r, n)
		}
	}
	return r
}

func (f *costFinder) constant(n *gorg.Node) bool {
	v := f.im.Node(n)
	if v == nil {
		return false
	}
	_, ok := v.Op.(graph.Const)
	return ok
}

// within reports whether cost is computed from c or from a derivative that can only be of c: then c was differentiated
// before cost was made.
func (f *costFinder) within(c, cost *gorg.Node) bool {
	return f.before(c, cost) || slices.ContainsFunc(f.im.children(c), func(k *gorg.Node) bool {
		d, of := k.Deriv(), f.candidates[f.im.at.of(k)]
		return d != nil && !f.constant(d) && of != nil && !of.less && len(of.top) == 1 && of.top[0] == c && f.before(d, cost)
	})
}

// before reports whether cost is computed from n, and so was made after it.
func (f *costFinder) before(n, cost *gorg.Node) bool {
	if n.ID() > cost.ID() {
		return false
	}
	set := f.behind[cost]
	if set == nil {
		set = map[*gorg.Node]bool{}
		f.behind[cost] = set
		stack := []*gorg.Node{cost}
		for len(stack) > 0 {
			m := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			for _, c := range f.im.children(m) {
				if !set[c] {
					set[c] = true
					stack = append(stack, c)
				}
			}
		}
	}
	return set[n]
}

// scalar is the value of n if it is a constant scalar.
func (im *importer) scalar(n *gorg.Node) (float64, bool) {
	if v := im.Node(n); v != nil {
		return v.ConstScalar()
	}
	return 0, false
}
