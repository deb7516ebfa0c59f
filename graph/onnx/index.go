package onnx

import (
	"slices"

	"fusec/graph"
)

func init() {
	axis0 := intAttr("axis", 0)
	reduction := func(from int) attr { return attr{name: "reduction", def: "none", from: from} }
	declare(
		operator{name: "Gather", min: 2, max: 2, exact: true, attrs: []attr{axis0}, build: func(c *call) []*value {
			x, ix := c.node(0), c.node(1)
			axis := c.axis(c.int("axis"), x.Type.Shape.Rank())
			if x.Type.Shape.Rank()-1+ix.Type.Shape.Rank() > graph.MaxRank {
				c.refuse("the result has more than %d axes", graph.MaxRank)
			}
			if y := c.sliceAt(x, ix, axis); y != nil {
				return one(y)
			}
			return one(c.gather(x, c.counted(ix, x.Type.Shape.At(axis)), axis))
		}},
		operator{name: "GatherElements", min: 2, max: 2, exact: true, attrs: []attr{axis0}, build: func(c *call) []*value {
			x, ix := c.node(0), c.node(1)
			axis := c.axis(c.int("axis"), x.Type.Shape.Rank())
			if ix.Type.Shape.Rank() != x.Type.Shape.Rank() {
				c.refuse("indices %v for %v", ix.Type, x.Type)
			}
			return one(c.gather(c.reshape(x, x.Type.Shape.Elems()), c.elementIndices(x.Type.Shape, ix, axis), 0))
		}},
		operator{name: "GatherND", min: 2, max: 2, exact: true, attrs: []attr{{name: "batch_dims", def: int64(0), from: 12}},
			build: buildGatherND},
		operator{name: "ScatterElements", min: 3, max: 3, build: buildScatterElements, attrs: []attr{axis0, reduction(16)}},
		operator{name: "Scatter", min: 3, max: 3, build: buildScatterElements, attrs: []attr{axis0}},
		operator{name: "ScatterND", min: 3, max: 3, build: buildScatterND, attrs: []attr{reduction(16)}},
		operator{name: "TensorScatter", min: 2, max: 3, build: buildTensorScatter,
			attrs: []attr{intAttr("axis", -2), {name: "mode", def: "linear"}}},
		operator{name: "OneHot", min: 3, max: 3, attrs: []attr{intAttr("axis", -1)}, build: buildOneHot},
		operator{name: "TopK", min: 1, max: 2, build: buildTopK,
			attrs: []attr{intAttr("axis", -1), {name: "k", def: required{int64(0)}, until: 9},
				{name: "largest", def: int64(1), from: 11}, {name: "sorted", def: int64(1), from: 11}}},
	)
	declare(missing("the shape of its result depends on data", "NonZero", "Unique", "Compress", "NonMaxSuppression")...)
}

// sliceAt is what constant indices take of an axis where a view can say it: one element, or elements at equal distances. It is
// nil otherwise.
func (c *call) sliceAt(x, ix *graph.Node, axis int) *graph.Node {
	n, step := x.Type.Shape.At(axis), 1
	at := c.smallIndices(ix)
	if len(at) == 0 || ix.Type.Shape.Rank() > 1 {
		return nil
	}
	at = slices.Clone(at)
	for i, v := range at {
		if v < 0 {
			at[i] += int64(n)
		}
		if at[i] < 0 || at[i] >= int64(n) {
			return nil
		}
	}
	if len(at) > 1 {
		step = int(at[1] - at[0])
	}
	for i := range at {
		if step < 1 || at[i] != at[0]+int64(i*step) {
			return nil
		}
	}
	y := c.slice(x, axis, int(at[0]), len(at), step)
	if ix.Type.Shape.Rank() == 0 {
		y = c.reshape(y, slices.Delete(dims(y), axis, axis+1)...)
	}
	return y
}

// counted replaces indices that count from the end of n elements.
func (c *call) counted(ix *graph.Node, n int) *graph.Node {
	if !ix.Type.DType.IsInt() {
		c.refuse("indices are %v", ix.Type)
	}
	if t := c.smallIndices(ix); t != nil {
		if !slices.ContainsFunc(t, func(i int64) bool { return i < 0 }) {
			return ix
		}
		c.made(len(t))
		r := graph.NewTensor(ix.Type)
		for i, v := range t {
			if v < 0 {
				v += int64(n)
			}
			r.SetInt(i, v)
		}
		return c.constant(r)
	}
	return c.choose(c.with(graph.Lt, ix, 0), c.with(graph.Add, ix, float64(n)), ix)
}

// smallIndices are the elements of constant indices, or nil; it is nil of what is no integer, too.
func (c *call) smallIndices(ix *graph.Node) []int64 {
	if !ix.Type.DType.IsInt() || !c.m.constant(ix) {
		return nil
	}
	t := c.valueOf(ix)
	if t == nil {
		return nil
	}
	r := make([]int64, t.Type.Shape.Elems())
	for i := range r {
		r[i] = t.Int(i)
	}
	return r
}

// elementIndices are the places in x, row by row, of the elements that indices along an axis name: those of x at their own
// place, but for that axis. They are I64 of the shape of ix.
func (c *call) elementIndices(s graph.Shape, ix *graph.Node, axis int) *graph.Node {
	strides := s.Strides()
	is := ix.Type.Shape
	at := c.with(graph.Mul, c.cast(c.counted(ix, s.At(axis)), graph.I64), float64(strides[axis]))
	for i := range is.Rank() {
		if i == axis {
			continue
		}
		if is.At(i) > s.At(i) {
			c.refuse("indices %v for %v", is, s)
		}
		if is.At(i) > 1 {
			at = c.plus(at, c.with(graph.Mul, c.counting(is, i), float64(strides[i])))
		}
	}
	return at
}

// gatherAlong is x[..., ix[i,j], ...] for x [a,b,...] and indices ix along axis 0 or 1, which has the size of x along the
// other of the two. The result has the sizes of ix in their place.
func (c *call) gatherAlong(x, ix *graph.Node, axis int) *graph.Node {
	s := x.Type.Shape
	_, _, inner := s.Around(0, 2)
	rows := c.elementIndices(graph.ShapeOf(s.At(0), s.At(1)), ix, axis)
	y := c.gather(c.reshape(x, s.At(0)*s.At(1), inner), c.reshape(rows, rows.Type.Shape.Elems()), 0)
	return c.reshape(y, append(dims(ix), s.Slice()[2:]...)...)
}

// tupleIndices turns the last axis of ix [..., k], indices of the axes of s from axis batch on, into places in these axes
// taken together, I64 [...].
func (c *call) tupleIndices(s graph.Shape, ix *graph.Node, batch int) *graph.Node {
	is := ix.Type.Shape
	last := is.Rank() - 1
	var at *graph.Node
	stride := 1
	for i := is.At(last) - 1; i >= 0; i-- {
		n := s.At(batch + i)
		one := c.reshape(c.slice(ix, last, i, 1, 1), is.Drop(graph.IntsOf(last)).Slice()...)
		one = c.with(graph.Mul, c.cast(c.counted(one, n), graph.I64), float64(stride))
		if at == nil {
			at = one
		} else {
			at = c.plus(at, one)
		}
		stride *= n
	}
	return at
}

// tuples checks indices of k axes from axis batch on, in their last axis.
func (c *call) tuples(x, ix *graph.Node, batch int) (k int) {
	s, is := x.Type.Shape, ix.Type.Shape
	if is.Rank() < 1 || batch < 0 || batch >= is.Rank() || batch >= s.Rank() {
		c.refuse("indices %v for %v with %d axes of a batch", ix.Type, x.Type, batch)
	}
	k = is.At(is.Rank() - 1)
	if k < 1 || batch+k > s.Rank() {
		c.refuse("indices of %d axes for %v with %d axes of a batch", k, x.Type, batch)
	}
	for i := range batch {
		if is.At(i) != s.At(i) {
			c.refuse("indices %v for %v with %d axes of a batch", ix.Type, x.Type, batch)
		}
	}
	return k
}

func buildGatherND(c *call) []*value {
	x, ix := c.node(0), c.node(1)
	batch := c.int("batch_dims")
	k := c.tuples(x, ix, batch)
	s, is := x.Type.Shape, ix.Type.Shape
	batches, picked, inner := s.Around(batch, k)
	at := c.tupleIndices(s, ix, batch)
	_, per, _ := is.Around(batch, is.Rank()-1-batch)
	at = c.reshape(at, batches, per)
	if batches > 1 {
		at = c.plus(at, c.with(graph.Mul, c.column(batches), float64(picked)))
	}
	y := c.gather(c.reshape(x, batches*picked, inner), c.reshape(at, batches*per), 0)
	to := append(is.Slice()[:is.Rank()-1], s.Slice()[batch+k:]...)
	return one(c.reshape(y, to...))
}

// scattered is data [n,inner] with updates [m,inner] written to, or combined with, the rows that ix [m] names.
func (c *call) scattered(data, ix, updates *graph.Node, reduction string) *graph.Node {
	if data.Type.DType == graph.Bool {
		y := c.scattered(c.cast(data, graph.I32), ix, c.cast(updates, graph.I32), reduction)
		return c.cast(y, graph.Bool)
	}
	n, m := data.Type.Shape.At(0), ix.Type.Shape.At(0)
	if m == 0 || n == 0 {
		return data
	}
	add := graph.ScatterAdd{Axis: 0, Size: n}
	var f graph.BinaryFn
	var r graph.ReduceFn
	switch reduction {
	case "add":
		return c.plus(data, c.add(add, ix, updates))
	case "none":
		last := c.lastOf(ix, n) // the update that counts, if several have one place
		ones := c.cast(c.binary(graph.Ge, last, c.scalar(graph.I64, 0)), graph.Bool)
		rows := c.gather(updates, c.with(graph.Max, last, 0), 0)
		return c.choose(c.reshape(ones, n, 1), rows, data)
	case "mul":
		f, r = graph.Mul, graph.Prod
	case "max":
		f, r = graph.Max, graph.MaxOf
	case "min":
		f, r = graph.Min, graph.MinOf
	default:
		c.refuse("reduction %q", reduction)
	}
	// The updates of each place, and the neutral element elsewhere.
	inner := data.Type.Shape.At(1)
	if n*m > 1<<26/max(inner, 1) {
		c.refuse("%d updates of %d elements by reduction %q", m, n, reduction)
	}
	neutral := c.reduce(r, c.filled(graph.Type{DType: data.Type.DType, Shape: c.shape(0)}, 0), false, 0)
	hit := c.reshape(c.binary(graph.Eq, c.column(n), c.reshape(ix, 1, m)), n, m, 1)
	all := c.choose(hit, c.reshape(updates, 1, m, inner), neutral)
	return c.binary(f, data, c.reduce(r, all, false, 1))
}

// lastOf is, for each of n places, the last of the indices ix [m] that names it, or −1.
func (c *call) lastOf(ix *graph.Node, n int) *graph.Node {
	m := ix.Type.Shape.At(0)
	if t := c.smallIndices(ix); t != nil {
		c.made(n)
		r := make([]int, n)
		for i := range r {
			r[i] = -1
		}
		for i, at := range t {
			if at < 0 || at >= int64(n) {
				c.refuse("index %d is outside of 0..%d", at, n-1)
			}
			r[at] = i
		}
		return c.vector(r...)
	}
	if n <= 1<<24/m {
		hit := c.binary(graph.Eq, c.column(n), c.reshape(c.cast(ix, graph.I64), 1, m))
		at := c.expand(c.reshape(c.counting(graph.ShapeOf(m), 0), 1, m), graph.ShapeOf(n, m))
		return c.reduce(graph.MaxOf, c.choose(hit, at, c.scalar(graph.I64, -1)), false, 1)
	}
	// ONNX leaves open what happens if two indices are equal; here they are taken to differ.
	order := c.with(graph.Add, c.counting(graph.ShapeOf(m), 0), 1)
	return c.with(graph.Sub, c.add(graph.ScatterAdd{Axis: 0, Size: n}, ix, order), 1)
}

func buildScatterElements(c *call) []*value {
	x, ix, updates := c.node(0), c.node(1), c.node(2)
	s := x.Type.Shape
	axis := c.axis(c.int("axis"), s.Rank())
	if ix.Type.Shape.Rank() != s.Rank() || updates.Type.Shape != ix.Type.Shape {
		c.refuse("updates %v at indices %v of %v", updates.Type, ix.Type, x.Type)
	}
	reduction := "none"
	if c.entry("reduction") != nil {
		reduction = c.string("reduction")
	}
	m := ix.Type.Shape.Elems()
	at := c.reshape(c.elementIndices(s, ix, axis), m)
	y := c.scattered(c.reshape(x, s.Elems(), 1), at, c.reshape(updates, m, 1), reduction)
	return one(c.reshape(y, s.Slice()...))
}

func buildScatterND(c *call) []*value {
	x, ix, updates := c.node(0), c.node(1), c.node(2)
	k := c.tuples(x, ix, 0)
	s, is := x.Type.Shape, ix.Type.Shape
	_, picked, inner := s.Around(0, k)
	m, _, _ := is.Around(is.Rank()-1, 0)
	if want := c.shape(append(is.Slice()[:is.Rank()-1], s.Slice()[k:]...)...); updates.Type.Shape != want {
		c.refuse("updates %v at indices %v of %v", updates.Type, ix.Type, x.Type)
	}
	reduction := "none"
	if c.entry("reduction") != nil {
		reduction = c.string("reduction")
	}
	at := c.reshape(c.tupleIndices(s, ix, 0), m)
	y := c.scattered(c.reshape(x, picked, inner), at, c.reshape(updates, m, inner), reduction)
	return one(c.reshape(y, s.Slice()...))
}

// buildTensorScatter writes updates into a cache [batch,...,length,...] of keys or values, from an index of each batch on.
func buildTensorScatter(c *call) []*value {
	x, u := c.node(0), c.node(1)
	s, us := x.Type.Shape, u.Type.Shape
	axis := c.axis(c.int("axis"), s.Rank())
	if us.Rank() != s.Rank() || us.With(axis, 0) != s.With(axis, 0) || axis == 0 {
		c.refuse("updates %v of %v along axis %d", u.Type, x.Type, axis)
	}
	batch, n, m := s.At(0), s.At(axis), us.At(axis)
	start := c.filled(graph.TypeOf(graph.I64, batch), 0)
	if c.there(2) {
		start = c.cast(c.node(2), graph.I64)
	}
	if start.Type.Shape != graph.ShapeOf(batch) {
		c.refuse("starts %v for %d batches", start.Type, batch)
	}
	// Element j of the axis comes from update j − start.
	from := c.minus(c.counting(graph.ShapeOf(1, n), 1), c.reshape(start, batch, 1)) // [batch, n]
	switch mode := c.string("mode"); mode {
	case "linear":
	case "circular":
		from = c.choose(c.with(graph.Lt, from, 0), c.with(graph.Add, from, float64(n)), from)
	default:
		c.refuse("mode %q", mode)
	}
	inside := c.binary(graph.And, c.with(graph.Ge, from, 0), c.with(graph.Lt, from, float64(m)))
	// [batch, n, others], so that one index names a row.
	perm := []int{0, axis}
	for i := 1; i < s.Rank(); i++ {
		if i != axis {
			perm = append(perm, i)
		}
	}
	row := c.plus(c.with(graph.Min, c.with(graph.Max, from, 0), float64(max(m-1, 0))), c.with(graph.Mul, c.column(batch), float64(m)))
	turned := c.transpose(u, perm...)
	_, _, inner := turned.Type.Shape.Around(0, 2)
	rows := c.gather(c.reshape(turned, batch*m, inner), c.reshape(row, batch*n), 0)
	xs := c.transpose(x, perm...)
	y := c.choose(c.reshape(inside, batch*n, 1), rows, c.reshape(xs, batch*n, inner))
	back := graph.Transpose{Perm: graph.IntsOf(perm...)}.Inverse()
	return one(c.transpose(c.reshape(y, xs.Type.Shape.Slice()...), back...))
}

func buildOneHot(c *call) []*value {
	ix, values := c.node(0), c.node(2)
	depth := int(c.knownFloat(1))
	if values.Type.Shape != graph.ShapeOf(2) || depth < 0 || depth > 1<<40 {
		c.refuse("a depth of %d and values %v", depth, values.Type)
	}
	rank := ix.Type.Shape.Rank() + 1
	axis := c.axis(c.int("axis"), rank)
	ix = c.cast(ix, graph.I64)
	ix = c.choose(c.with(graph.Lt, ix, 0), c.with(graph.Add, ix, float64(depth)), ix)
	to := slices.Insert(dims(ix), axis, 1)
	s := c.shape(slices.Insert(dims(ix), axis, depth)...)
	hit := c.binary(graph.Eq, c.reshape(ix, to...), c.counting(s, axis))
	off, on := c.reshape(c.slice(values, 0, 0, 1, 1)), c.reshape(c.slice(values, 0, 1, 1, 1))
	return one(c.expand(c.choose(hit, on, off), s))
}

func buildTopK(c *call) []*value {
	x := c.node(0)
	s, d := x.Type.Shape, x.Type.DType
	axis := c.axis(c.int("axis"), s.Rank())
	k := c.int("k")
	if c.entry("k") == nil {
		k = c.knownInt(1)
	}
	down := c.entry("largest") != nil && !c.flag("largest")
	perm := make([]int, s.Rank())
	for i := range perm {
		perm[i] = i
	}
	last := s.Rank() - 1
	perm[axis], perm[last] = last, axis
	y := c.transpose(x, perm...)
	if !d.IsFloat() {
		y = c.cast(y, graph.F64)
	}
	if down {
		y = c.unary(graph.Neg, y)
	}
	top := c.add(graph.TopK{K: k}, y)
	at := c.add(graph.Result{Index: 1}, top)
	if down {
		top = c.unary(graph.Neg, top)
	}
	return several(c.transpose(c.cast(top, d), perm...), c.transpose(at, perm...))
}
