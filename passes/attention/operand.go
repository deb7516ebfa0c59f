package attention

import (
	"slices"

	"fusec/graph"
)

// An operand is a value split into its base, which is the value under the views that lead to it, and the order in which
// the attention reads the base:
//
//	k [2,6,5,8] ◄─ reshape ◄─ broadcast [2,3,2,5,8] ◄─ reshape [2,3,1,5,8] ◄─ transpose ◄─ x [2,5,3,8]
//
//	base x   rows (2 by 120) (3 by 8) (2 by 0)   tail (5 by 24) (8 by 1)
//
// Keys and values that are repeated for a group of heads then have an axis with a stride of 0, wherever there are views
// before or after the repetition. New views are made in the form that the attention requires.
//
// All operands share the rows of the scores: batches, heads and queries, in row-major order, cut into as few axes as
// fit all of them. Along rows that an operand does not have, as the keys do not have queries, its stride is 0.
type operand struct {
	from *graph.Node // the value as it was; nil if its axes were turned around
	base *graph.Node
	rows []axis
	tail [][]axis // the axes after the rows: for keys and values the keys, then the elements
}

// An axis is a run of size indices, each stride elements after the other in the base's row-major order. Axes of one
// index are left out.
type axis struct{ size, stride int }

func appendAxis(axes []axis, size, stride int) []axis {
	if size == 1 {
		return axes
	}
	return append(axes, axis{size, stride})
}

// newOperand takes a matrix product's operand without looking under views, with swapped last axes if asked,
// repeated along the leading axes of the result that it does not have.
func newOperand(x *graph.Node, lead []int, swapped bool) operand {
	s := x.Type.Shape
	r, st := s.Rank(), s.Strides()
	o := operand{from: x, base: x}
	for i, size := range lead {
		at := i - len(lead) + r - 2
		if at >= 0 && s.At(at) == size {
			o.rows = appendAxis(o.rows, size, st[at])
		} else {
			o.rows = appendAxis(o.rows, size, 0)
		}
	}
	last := [2]int{r - 2, r - 1}
	if swapped {
		o.from, last = nil, [2]int{r - 1, r - 2}
	}
	for _, at := range last {
		o.tail = append(o.tail, appendAxis(nil, s.At(at), st[at]))
	}
	return o
}

// descend moves the base down through views and repetitions. pass may return an operand of a base to go on with.
func (o *operand) descend(pass func(*graph.Node) *graph.Node) {
	for {
		for o.under() {
		}
		if pass == nil {
			return
		}
		x := pass(o.base)
		if x == nil {
			return
		}
		o.from, o.base = nil, x
	}
}

// under moves the base to what it is a view of, if axes can express that.
func (o *operand) under() bool {
	n := o.base
	dims := n.Type.Shape.Slice()
	switch op := n.Op.(type) {
	case graph.Reshape: // the same elements in the same order
		o.base = n.Args[0]
		return true
	case graph.Transpose:
		st := n.Args[0].Type.Shape.Strides()
		to := make([]int, len(dims))
		for i := range to {
			to[i] = st[op.Perm.At(i)]
		}
		return o.move(n.Args[0], dims, to)
	case graph.Broadcast:
		from := n.Args[0].Type.Shape
		st := from.Strides()
		to := make([]int, len(dims))
		for i := range to {
			if at := i - len(dims) + from.Rank(); at >= 0 && from.At(at) == dims[i] {
				to[i] = st[at]
			}
		}
		return o.move(n.Args[0], dims, to)
	case graph.Concat:
		return o.underConcat(n, op.Axis)
	}
	return false
}

// underConcat sees through a Concat of one value several times, or of each head several times. Heads are slices of one
// value, in order.
func (o *operand) underConcat(n *graph.Node, at int) bool {
	times := 1
	for times < len(n.Args) && n.Args[times] == n.Args[0] {
		times++
	}
	var of []*graph.Node
	for i, a := range n.Args {
		if a != n.Args[i/times*times] {
			return false
		}
		if i%times == 0 {
			of = append(of, a)
		}
	}
	base := of[0]
	if len(of) > 1 {
		if base = unsliced(of, at); base == nil || len(n.Args)%times != 0 {
			return false
		}
	}
	// The axis is as many slices, the times that each is repeated, and what each holds.
	dims := slices.Replace(n.Type.Shape.Slice(), at, at+1, len(of), times, of[0].Type.Shape.At(at))
	st := base.Type.Shape.Strides()
	to := slices.Replace(slices.Clone(st), at, at+1, st[at]*of[0].Type.Shape.At(at), 0, st[at])
	return o.move(base, dims, to)
}

// unsliced is the value that the given nodes are the slices of along an axis, in order, one index each; nil if there
// is none.
func unsliced(parts []*graph.Node, at int) *graph.Node {
	var whole *graph.Node
	for i, p := range parts {
		op, ok := p.Op.(graph.Slice)
		if !ok || op.Axis != at || op.Size != 1 || i > 0 && p.Args[0] != whole {
			return nil
		}
		whole = p.Args[0]
		if start, ok := op.ConstStart(p); !ok || start != i {
			return nil
		}
	}
	if whole.Type.Shape.At(at) != len(parts) {
		return nil
	}
	return whole
}

// move makes base the new base, where to gives the new stride of an index of each of the old base's dims. It reports
// false, and changes nothing, if an axis runs across dims unevenly.
func (o *operand) move(base *graph.Node, dims, to []int) bool {
	moved := operand{from: o.from, base: base}
	var ok bool
	if moved.rows, ok = moveAxes(o.rows, dims, to); !ok {
		return false
	}
	for _, group := range o.tail {
		g, ok := moveAxes(group, dims, to)
		if !ok {
			return false
		}
		moved.tail = append(moved.tail, g)
	}
	*o = moved
	return true
}

func moveAxes(axes []axis, dims, to []int) ([]axis, bool) {
	var out []axis
	for _, a := range axes {
		if a.stride == 0 {
			out = append(out, a)
			continue
		}
		var parts []axis // innermost first
		unit := 1        // elements from one index of dim i to the next
		for i := len(dims) - 1; i >= 0 && a.size > 1; i-- {
			extent := unit * dims[i]
			if a.stride < extent {
				room := extent / a.stride
				take := min(a.size, room)
				if a.stride%unit != 0 || extent%a.stride != 0 || a.size%take != 0 {
					return nil, false
				}
				parts = append(parts, axis{take, a.stride / unit * to[i]})
				a = axis{a.size / take, a.stride * take}
			}
			unit = extent
		}
		slices.Reverse(parts)
		out = append(out, parts...)
	}
	return out, true
}

// sizes lists the sizes of axes.
func sizes(axes []axis) []int {
	var r []int
	for _, a := range axes {
		r = append(r, a.size)
	}
	return r
}

// refine returns the shortest list of sizes that divides both lists: each of their sizes is a product of neighbours in it.
// Both lists have the same product. It reports false if there is none.
func refine(a, b []int) ([]int, bool) {
	a, b = slices.Clone(a), slices.Clone(b)
	var r []int
	drop := func(l []int) []int {
		for len(l) > 0 && l[len(l)-1] == 1 {
			l = l[:len(l)-1]
		}
		return l
	}
	for a, b = drop(a), drop(b); len(a) > 0 && len(b) > 0; a, b = drop(a), drop(b) {
		x, y := &a[len(a)-1], &b[len(b)-1]
		g := min(*x, *y)
		if *x%g != 0 || *y%g != 0 {
			return nil, false
		}
		r = append(r, g)
		*x, *y = *x/g, *y/g
	}
	slices.Reverse(r)
	return r, len(a) == len(b)
}

// cut divides axes so that they have the given sizes, which refine theirs.
func cut(axes []axis, sizes []int) []axis {
	r := make([]axis, len(sizes))
	i := len(axes) - 1
	inner := 1 // of axis i, the product of the sizes already cut from it
	for j := len(sizes) - 1; j >= 0; j-- {
		r[j] = axis{sizes[j], axes[i].stride * inner}
		if inner *= sizes[j]; inner == axes[i].size {
			i, inner = i-1, 1
		}
	}
	return r
}

// repeats reports whether the value is the same along all of the axes.
func repeats(axes []axis) bool {
	return !slices.ContainsFunc(axes, func(a axis) bool { return a.stride != 0 })
}

// extentOf is the number of indices of axes together.
func extentOf(axes []axis) int {
	n := 1
	for _, a := range axes {
		n *= a.size
	}
	return n
}

// view makes the value whose axes are the given groups of the operand's. An axis along which it only repeats has size
// 1. It returns nil if that takes more axes than a value may have.
func (o operand) view(b *graph.Builder, groups [][]axis) *graph.Node {
	var dims, ones []int // of the result, and with every piece an axis, 1 where it repeats
	var full []int       // the same, repeated where the result cannot have size 1
	var pieces []axis    // that do not repeat
	repeated, mixed := false, false
	for _, g := range groups {
		g = joined(g)
		d := 1
		if !repeats(g) {
			d = extentOf(g)
		}
		dims = append(dims, d)
		for _, p := range g {
			one, all := p.size, p.size
			if p.stride == 0 {
				repeated, one, all = true, 1, min(d, p.size)
				mixed = mixed || d > 1
			} else {
				pieces = append(pieces, p)
			}
			ones, full = append(ones, one), append(full, all)
		}
	}
	if !repeated && o.from != nil && slices.Equal(o.from.Type.Shape.Slice(), dims) {
		return o.from
	}
	if max(len(dims), len(pieces)) > graph.MaxRank || mixed && len(ones) > graph.MaxRank {
		return nil
	}
	order := make([]int, len(pieces)) // of the pieces in the base
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return pieces[j].stride - pieces[i].stride })
	perm := make([]int, len(order))
	stored := make([]int, len(order))
	for at, i := range order {
		perm[i], stored[at] = at, pieces[i].size
	}
	x := b.Transpose(b.Reshape(o.base, stored...), perm...)
	if mixed {
		x = b.Broadcast(b.Reshape(x, ones...), graph.ShapeOf(full...))
	}
	return b.Reshape(x, dims...)
}

// joined merges neighbours that follow one another in the base, or that both repeat.
func joined(axes []axis) []axis {
	var r []axis
	for _, a := range axes {
		if n := len(r); n > 0 && r[n-1].stride == a.stride*a.size {
			r[n-1] = axis{r[n-1].size * a.size, a.stride}
		} else {
			r = append(r, a)
		}
	}
	return r
}
