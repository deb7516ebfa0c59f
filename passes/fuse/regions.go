// Package fuse moves elementwise work into the launch that produces or reads it. It rewrites
//
//	x ─► MatMul ─► Add ─► Gelu ─► Add ─►            x, w, b, r ─► Fusion{matmul, linear} ─►
//	w ─┘    b ─────┘       r ─────┘           to
//
// in three rounds: first the contractions take the elementwise work after them, and what only that work reads; then the
// reductions over rows take the elementwise work before, between and after them; and then what is left is gathered into
// elementwise regions.
// Between the rounds, a contraction gives up what is cheaper to do again where it is read, and launches that make a value
// also compute its column sums; see columns.go.
//
// A region is convex: no path leaves it and comes back, not even through other regions. Views on the way into a
// region become part of its body, where they are strides; views on the way out do where the reader cannot take them.
package fuse

import (
	"fmt"
	"slices"

	"fusec/graph"
	"fusec/passes/rewrite"
)

// Regions is the pass fuse-regions.
func Regions(c *rewrite.Context) error {
	g := c.Graph
	if err := mergeResults(g); err != nil {
		return err
	}
	if err := sumBeforeReshape(g); err != nil {
		return err
	}
	if TakesMoments(c) {
		if err := repeatNormed(g); err != nil {
			return err
		}
	}
	f := newFuser(c)
	for _, n := range g.Nodes {
		switch a, _ := graph.AnchorOf(n.Op); {
		case a.Whole():
			f.startWhole(a, n)
		case a.Contracts():
			f.start(a, n, n.Type.Shape)
		}
	}
	f.growAll(f.regions)
	f.recompute()
	f.sumColumns()
	// Rows of contiguous elements come first: what sums across them can join them.
	for _, trailing := range []bool{true, false} {
		before := len(f.regions)
		for _, n := range g.Nodes {
			axes, ok := rowAxes(n)
			if !ok || f.in[n.ID] != nil || innermost(n.Args[0].Type.Shape, axes) != trailing {
				continue
			}
			var r *region
			if f.moments && !trailing {
				r = f.startMoments(n)
			}
			if r == nil {
				r = f.start(graph.AnchorRow, n, n.Args[0].Type.Shape)
			}
			r.setAxes(axes)
			f.grow(r, f.moments && !trailing) // sums of what a column is made of join it before they are started for themselves
			f.part(r)
		}
		f.growAll(f.regions[before:])
		f.sumColumns()
	}
	for _, n := range g.Nodes {
		if graph.Joins(n.Op) && f.in[n.ID] == nil {
			f.grow(f.start(graph.AnchorNone, n, n.Type.Shape), true)
		}
	}
	f.report()
	return f.build()
}

// maxRegion bounds the nodes of a region, so that its registers stay in the first-level cache.
const maxRegion = 96

// A region is a set of nodes that becomes one Fusion.
type region struct {
	anchor graph.Anchor
	root   *graph.Node // the node it was started for
	nodes  []*graph.Node
	shape  graph.Shape // of the elementwise work, the iteration space
	lane   graph.DType // in which all of it is computed
	// For AnchorRow: the reduced axes, and the reduced shape with and without them.
	axes          graph.Ints
	keep, dropped graph.Shape
	trailing      bool // the reduced axes are the innermost: values may lead back to shape
	// columns are the sums across the rows that it also hands out.
	columns map[*graph.Node]bool
}

func (r *region) setAxes(axes graph.Ints) {
	r.axes = axes
	r.keep = r.shape
	for i := range axes.Len() {
		r.keep = r.keep.With(axes.At(i), 1)
	}
	r.dropped = r.shape.Drop(axes)
	r.trailing = innermost(r.shape, axes)
}

// rowAxes returns the axes along which n combines elements, if n can anchor a row. Along axes of one element there is
// nothing to combine, and only along the innermost ones can the result lead back.
func rowAxes(n *graph.Node) (axes graph.Ints, ok bool) {
	if axes, ok = graph.RowAxes(n); !ok {
		return axes, false
	}
	if _, reduces := n.Op.(graph.Reduce); reduces {
		return axes, n.Type.DType.IsFloat() && extent(n.Args[0].Type.Shape, axes) != 1
	}
	return axes, extent(n.Type.Shape, axes) != 1 && innermost(n.Type.Shape, axes)
}

// extent is the number of elements along the given axes.
func extent(s graph.Shape, axes graph.Ints) int {
	n := 1
	for i := range axes.Len() {
		n *= s.At(axes.At(i))
	}
	return n
}

// innermost reports whether no axis of more than one element follows one of the given, sorted, ones.
func innermost(s graph.Shape, axes graph.Ints) bool {
	for i := axes.At(0); i < s.Rank(); i++ {
		if !axes.Has(i) && s.At(i) != 1 {
			return false
		}
	}
	return true
}

func isDropout(n *graph.Node) bool {
	_, ok := n.Op.(graph.Dropout)
	return ok
}

// A fuser grows regions. What it keeps of each node is indexed by the node's ID.
type fuser struct {
	ctx      *rewrite.Context
	g        *graph.Graph
	at       []int // place in the graph
	uses     *graph.Uses
	rows     map[*graph.Node][]*graph.Node // of a value's readers those that can anchor a row
	in       []*region                     // nil for a node in none
	stored   []bool                        // what a region hands out; known when all have grown
	regions  []*region
	order    *launchOrder
	narrow   []bool // the node or one of its operands has 16 bits
	once     onceness
	moments  bool                  // the target takes mean and variance of columns in one pass
	sumsConv bool                  // its convolutions hand out sums of each channel
	apart    map[*graph.Node]error // custom functions that the target has no body for, and why
	halves   bool                  // the target contracts values of 16 bits, and what surrounds such a launch may have them
}

func newFuser(c *rewrite.Context) *fuser {
	g := c.Graph
	size := 0
	for _, n := range g.Nodes {
		size = max(size, n.ID+1)
	}
	f := &fuser{ctx: c, g: g, at: make([]int, size), uses: g.Uses(), rows: map[*graph.Node][]*graph.Node{},
		apart: map[*graph.Node]error{}, in: make([]*region, size), stored: make([]bool, size), narrow: make([]bool, size)}
	for i, n := range g.Nodes {
		if _, ok := n.Op.(graph.Custom); ok {
			if err := c.Accepts(n.Op, n.Args...); err != nil {
				f.apart[n] = err
			}
		}
		f.at[n.ID] = i
		f.narrow[n.ID] = is16(n) || slices.ContainsFunc(n.Args, is16)
		if _, ok := rowAxes(n); ok {
			for _, a := range n.Args {
				f.rows[a] = append(f.rows[a], n)
			}
		}
	}
	f.order = newLaunchOrder(g, f.uses)
	f.moments = TakesMoments(c)
	if t, ok := c.Target.(ConvSummer); ok {
		f.sumsConv = t.SumsConvolutions()
	}
	f.once = newOnceness(g, f.uses, c.Frozen, size)
	half, wide := graph.TypeOf(graph.BF16, 1, 1), graph.TypeOf(graph.F32, 1, 1)
	f.halves = c.Target == nil || c.Target.Accepts(graph.MatMul{}, []graph.Type{half, half}, []graph.Type{wide}) == nil
	return f
}

func (f *fuser) start(a graph.Anchor, n *graph.Node, shape graph.Shape) *region {
	r := &region{anchor: a, root: n, nodes: []*graph.Node{n}, shape: shape, lane: graph.LaneOf(n)}
	f.regions = append(f.regions, r)
	f.in[n.ID] = r
	return r
}

// growAll grows regions: first each takes what follows it, then what only it reads, so that the work after one anchor
// does not go to another that reads its result.
func (f *fuser) growAll(regions []*region) {
	for _, before := range []bool{false, true} {
		for _, r := range regions {
			f.grow(r, before)
		}
	}
}

// grow adds neighbours to the region until none fits: those that read it and, if before is set, those that only it
// reads. One that does not fit may do so later, when another of its readers is inside.
func (f *fuser) grow(r *region, before bool) {
	take := func(n *graph.Node) {
		if f.in[n.ID] == nil && len(r.nodes) < maxRegion && f.fits(r, n) == nil {
			f.order.join(r.root, n)
			f.in[n.ID] = r
			r.nodes = append(r.nodes, n)
		}
	}
	for had := 0; had < len(r.nodes); {
		had = len(r.nodes)
		for i := 0; i < len(r.nodes); i++ {
			n := r.nodes[i]
			for _, u := range f.uses.Readers(n) {
				take(u)
			}
			for _, a := range n.Args {
				if before && (f.onlyFor(r, a) || f.moments && f.onlyOfColumns(r, a)) {
					take(a)
				}
				for _, x := range f.leadingInto(r, a) {
					take(x)
				}
				if r.anchor == graph.AnchorRow { // other reductions of what this one reads
					for _, u := range f.rows[a] {
						take(u)
					}
				}
			}
		}
	}
	slices.SortFunc(r.nodes, func(a, b *graph.Node) int { return f.at[a.ID] - f.at[b.ID] })
}

// leadingInto lists the reduction along rows, or work on reduced values, that row region r alone reads as its operand a,
// and the views from there to a.
func (f *fuser) leadingInto(r *region, a *graph.Node) []*graph.Node {
	if r.anchor != graph.AnchorRow || !r.trailing || !f.readOnlyBy(r, a) {
		return nil
	}
	chain := []*graph.Node{a}
	for graph.IsView(a.Op) {
		v := a
		a = a.Args[0]
		switch v.Op.(type) {
		case graph.Broadcast:
			if v.Type.Shape != r.shape || !r.leadsBack(a.Type.Shape) {
				return nil
			}
		case graph.Reshape:
			if !r.isReduced(v.Type.Shape) || !r.isReduced(a.Type.Shape) {
				return nil
			}
		default:
			return nil
		}
		if f.in[a.ID] != nil || f.uses.Escapes(a) || len(f.uses.Readers(a)) != 1 {
			return nil
		}
		chain = append(chain, a)
	}
	if _, isRow := rowAxes(a); !isRow && (!r.isReduced(a.Type.Shape) || !graph.Joins(a.Op)) ||
		f.suits(r, a) != nil || len(r.nodes)+len(chain) > maxRegion {
		return nil
	}
	for _, x := range a.Args {
		if f.in[x.ID] == r && !r.takes(a, x) {
			return nil
		}
	}
	// No node of the chain can join before the others. All can join together if nothing leads from the region to its end.
	if f.order.between(r.root, chain[0]) {
		return nil
	}
	for _, v := range chain[:len(chain)-1] {
		f.order.join(r.root, v)
	}
	slices.Reverse(chain)
	return chain
}

// readOnlyBy reports whether nothing but the region reads a, which is in none.
func (f *fuser) readOnlyBy(r *region, a *graph.Node) bool {
	return f.in[a.ID] == nil && !f.uses.Escapes(a) &&
		!slices.ContainsFunc(f.uses.Readers(a), func(u *graph.Node) bool { return f.in[u.ID] != r })
}

// onlyFor reports whether a is elementwise work in the region's shape that nothing but the region reads.
func (f *fuser) onlyFor(r *region, a *graph.Node) bool {
	return a.Type.Shape == r.shape && graph.Joins(a.Op) && f.readOnlyBy(r, a)
}

// onlyOfColumns reports whether a is work on numbers of which there is one for each column of region r, and that nothing but the
// region reads.
func (f *fuser) onlyOfColumns(r *region, a *graph.Node) bool {
	return r.anchor == graph.AnchorRow && !r.trailing && r.isReduced(a.Type.Shape) && graph.Joins(a.Op) && f.readOnlyBy(r, a)
}

// why is the reason of a refusal, in words. Most refusals are of no interest, so that words are found only when asked.
type why func() string

func because(format string, args ...any) why {
	return func() string { return fmt.Sprintf(format, args...) }
}

// fits returns why n may not join the region, or nil.
func (f *fuser) fits(r *region, n *graph.Node) why {
	if reason := f.suits(r, n); reason != nil {
		return reason
	}
	for _, a := range n.Args {
		if f.in[a.ID] == r && !r.takes(n, a) {
			return func() string { return fmt.Sprintf("its operand %s has to be finished first", a.Where()) }
		}
	}
	for _, u := range f.uses.Readers(n) {
		if f.in[u.ID] == r && !r.takes(u, n) {
			return func() string { return fmt.Sprintf("%s needs it finished first", u.Where()) }
		}
	}
	if f.order.between(r.root, n) {
		return func() string {
			return fmt.Sprintf("its operand %s depends on this launch by another way", f.order.way(r.root, n).Where())
		}
	}
	return nil
}

// suits returns why n's operation, shape or type does not fit the region, or nil.
func (f *fuser) suits(r *region, n *graph.Node) why {
	s := n.Type.Shape
	full := s == r.shape
	reduced := r.anchor == graph.AnchorRow && r.isReduced(s)
	inside := func(a *graph.Node) bool { return f.in[a.ID] == r }
	if reason := f.once.apart(r.root, n); reason != nil {
		return reason
	}
	for _, own := range []*graph.Node{r.root, n} {
		if err := f.apart[own]; err != nil {
			return func() string { return err.Error() }
		}
	}
	if r.contracts() && !f.halves && f.narrow[n.ID] {
		return because("the target takes no values of 16 bits beside contractions")
	}
	if r.whole() {
		if f.roundsOnly(r, n) {
			return nil
		}
		return because("%s takes views only", r.root.Op.OpName())
	}
	switch n.Op.(type) {
	case graph.Reshape:
		if a := n.Args[0]; !reduced || !inside(a) || !r.isReduced(a.Type.Shape) {
			return because("it is a reshape")
		}
		return nil
	case graph.Broadcast:
		if a := n.Args[0]; r.anchor != graph.AnchorRow || !full || !inside(a) || !r.leadsBack(a.Type.Shape) {
			return because("it is a broadcast to another shape")
		}
		if !r.trailing {
			return because("the reduced axes are not the innermost")
		}
		return nil
	}
	if a, _ := graph.AnchorOf(n.Op); a == graph.AnchorRow {
		axes, ok := rowAxes(n)
		if r.anchor != graph.AnchorRow || !ok || axes != r.axes || n.Args[0].Type.Shape != r.shape {
			return because("it is a %s over other rows", n.Op.OpName())
		}
	} else {
		switch {
		case !graph.Joins(n.Op):
			return because("%s is not elementwise", n.Op.OpName())
		case !full && !reduced:
			return func() string { return fmt.Sprintf("its shape %v differs from %v", s, r.shape) }
		case isDropout(n) && !full:
			return because("dropout of a reduced value")
		case isDropout(n) && r.anchor == graph.AnchorRow && !r.trailing:
			return because("it draws in the order of the elements, which is not that of the rows")
		}
	}
	if l := graph.LaneOf(n); l != r.lane {
		return because("it computes in %v lanes, the launch in %v", l, r.lane)
	}
	return nil
}

func is16(n *graph.Node) bool { return n.Type.DType.Is16() }

// contracts reports whether the region is anchored on a contraction, whose operands come from memory.
func (r *region) contracts() bool { return r.anchor.Contracts() }

// whole reports whether the region is one operation with special kernels, which takes in no elementwise work.
func (r *region) whole() bool { return r.anchor.Whole() }

func (r *region) isReduced(s graph.Shape) bool { return s == r.keep || s == r.dropped }

// leadsBack reports whether a Broadcast of a reduced value of shape s, aligned at the last axis, repeats it along the
// reduced axes alone.
func (r *region) leadsBack(s graph.Shape) bool {
	lead := r.keep.Rank() - s.Rank()
	for i := range r.keep.Rank() {
		d := 1
		if i >= lead {
			d = s.At(i - lead)
		}
		if d != r.keep.At(i) {
			return false
		}
	}
	return true
}

// takes reports whether n can read its operand a while the launch computes it. A contraction reads all of its operands
// many times, a norm its weights along the row, and Dropout's seed is one number for all.
func (r *region) takes(n, a *graph.Node) bool {
	if r.columns[a] {
		return false
	}
	if anchor, _ := graph.AnchorOf(n.Op); anchor.Contracts() {
		return false
	}
	if _, ok := n.Op.(graph.Dropout); ok {
		return a != n.Args[1]
	}
	for i, x := range n.Args {
		if x == a && graph.RowWeights(n.Op, i) && a.Type.Shape != r.shape {
			return false
		}
	}
	return true
}

// mergeResults makes one node of all that take the same further result of an operation: a launch hands out each once.
func mergeResults(g *graph.Graph) error {
	type result struct {
		of    *graph.Node
		index int
	}
	first, with := map[result]*graph.Node{}, map[*graph.Node]*graph.Node{}
	for _, n := range g.Nodes {
		if op, ok := n.Op.(graph.Result); ok {
			k := result{n.Args[0], op.Index}
			if m := first[k]; m != nil {
				with[n] = m
			} else {
				first[k] = n
			}
		}
	}
	if len(with) == 0 {
		return nil
	}
	g.Replace(with)
	return g.Tidy()
}
