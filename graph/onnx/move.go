package onnx

import (
	"math"
	"slices"

	"fusec/graph"
)

func init() {
	axes := attr{name: "axes", def: []int64(nil), until: 12}
	declare(
		operator{name: "Constant", exact: true, build: buildConstant,
			attrs: []attr{{name: "value", def: tensorAttr{}}, {name: "sparse_value", def: tensorAttr{}, from: 11},
				{name: "value_float", def: 0., from: 12}, {name: "value_floats", def: []float64(nil), from: 12},
				{name: "value_int", def: int64(0), from: 12},
				{name: "value_ints", def: []int64(nil), from: 12}}},
		operator{name: "ConstantOfShape", min: 1, max: 1, exact: true, attrs: []attr{{name: "value", def: tensorAttr{}}},
			build: func(c *call) []*value {
				v := c.tensor("value")
				if v == nil {
					v = graph.Scalar(graph.F32, 0)
				}
				if v.Type.Shape.Elems() != 1 {
					c.refuse("attribute \"value\" is %v, not one element", v.Type)
				}
				return one(c.expand(c.reshape(c.constant(v)), c.shape(c.knownInts(0)...)))
			}},
		operator{name: "Shape", min: 1, max: 1, exact: true, build: buildShape,
			attrs: []attr{{name: "start", def: int64(0), from: 15}, {name: "end", def: int64(math.MaxInt64), from: 15}}},
		operator{name: "Size", min: 1, max: 1, exact: true, build: func(c *call) []*value {
			return one(c.reshape(c.vector(c.node(0).Type.Shape.Elems())))
		}},
		operator{name: "Range", min: 3, max: 3, build: buildRange, attrs: []attr{{name: "stash_type", def: int64(1), from: 27}}},
		operator{name: "EyeLike", min: 1, max: 1, exact: true, attrs: []attr{intAttr("dtype", 0), intAttr("k", 0)}, build: buildEyeLike},
		operator{name: "Reshape", min: 2, max: 2, exact: true, attrs: []attr{{name: "allowzero", def: int64(0), from: 14}},
			build: buildReshape},
		operator{name: "Flatten", min: 1, max: 1, exact: true, attrs: []attr{intAttr("axis", 1)}, build: func(c *call) []*value {
			x := c.node(0)
			s, axis := x.Type.Shape, c.int("axis")
			if axis < 0 {
				axis += s.Rank()
			}
			if axis < 0 || axis > s.Rank() {
				c.refuse("axis %d of a tensor of rank %d", c.int("axis"), s.Rank())
			}
			outer, inner, _ := s.Around(axis, s.Rank()-axis)
			return one(c.reshape(x, outer, inner))
		}},
		operator{name: "Squeeze", min: 1, max: 2, exact: true, attrs: []attr{axes}, build: buildSqueeze},
		operator{name: "Unsqueeze", min: 1, max: 2, exact: true, attrs: []attr{axes}, build: buildUnsqueeze},
		operator{name: "Transpose", min: 1, max: 1, exact: true, attrs: []attr{{name: "perm", def: []int64(nil)}},
			build: func(c *call) []*value {
				x, perm := c.node(0), c.ints("perm")
				if !c.has("perm") {
					for i := range x.Type.Shape.Rank() {
						perm = append([]int{i}, perm...)
					}
				}
				return one(c.transpose(x, perm...))
			}},
		operator{name: "Concat", min: 1, max: -1, exact: true, attrs: []attr{{name: "axis", def: required{int64(0)}}},
			build: func(c *call) []*value {
				var all []*graph.Node
				for i := range c.args {
					all = append(all, c.node(i))
				}
				return one(c.concat(c.axis(c.int("axis"), all[0].Type.Shape.Rank()), all...))
			}},
		operator{name: "Split", min: 1, max: 2, exact: true, build: buildSplit,
			attrs: []attr{intAttr("axis", 0), {name: "split", def: []int64(nil), until: 12},
				{name: "num_outputs", def: int64(0), from: 18}}},
		operator{name: "Slice", min: 1, max: 5, exact: true, build: buildSlice, attrs: []attr{{name: "axes", def: []int64(nil), until: 9},
			{name: "starts", def: required{[]int64(nil)}, until: 9}, {name: "ends", def: required{[]int64(nil)}, until: 9}}},
		operator{name: "Expand", min: 2, max: 2, exact: true, build: func(c *call) []*value {
			x := c.node(0)
			return one(c.expand(x, c.joinShapes(x.Type.Shape, c.shape(c.knownInts(1)...))))
		}},
		operator{name: "Tile", min: 2, max: 2, exact: true, build: buildTile},
		operator{name: "Pad", min: 1, max: 4, build: buildPad,
			attrs: []attr{{name: "mode", def: "constant"}, {name: "pads", def: required{[]int64(nil)}, until: 10},
				{name: "value", def: 0., until: 10}}},
		operator{name: "Trilu", min: 1, max: 2, build: buildTrilu, attrs: []attr{intAttr("upper", 1)}},
		operator{name: "DepthToSpace", min: 1, max: 1, exact: true, build: buildDepthToSpace,
			attrs: []attr{{name: "blocksize", def: required{int64(0)}}, {name: "mode", def: "DCR", from: 11}}},
		operator{name: "SpaceToDepth", min: 1, max: 1, exact: true, build: buildSpaceToDepth,
			attrs: []attr{{name: "blocksize", def: required{int64(0)}},
				{name: "mode", def: "DCR", from: 26}}},
		operator{name: "CenterCropPad", min: 2, max: 2, build: buildCenterCropPad, attrs: []attr{{name: "axes", def: []int64(nil)}}},
		operator{name: "ReverseSequence", min: 2, max: 2, exact: true, attrs: []attr{intAttr("batch_axis", 1), intAttr("time_axis", 0)},
			build: buildReverseSequence},
	)
}

func buildConstant(c *call) []*value {
	var r *graph.Tensor
	switch {
	case c.has("value"):
		r = c.tensor("value")
	case c.has("value_float"):
		r = graph.Scalar(graph.F32, c.float("value_float"))
	case c.has("value_int"):
		r = graph.NewTensor(graph.TypeOf(graph.I64))
		r.SetInt(0, int64(c.int("value_int")))
	case c.has("value_floats"):
		v := c.floats("value_floats")
		r = graph.NewTensor(graph.TypeOf(graph.F32, len(v)))
		for i, x := range v {
			r.SetFloat(i, x)
		}
	case c.has("value_ints"):
		v := c.ints("value_ints")
		r = graph.NewTensor(graph.TypeOf(graph.I64, len(v)))
		for i, x := range v {
			r.SetInt(i, int64(x))
		}
	default:
		c.refuse("it has no value of numbers")
	}
	return []*value{{tensor: r}}
}

// clampIndex counts an index from the end if it is negative, and clamps it to lo..hi.
func clampIndex(i, n, lo, hi int) int {
	if i < 0 {
		i += n
	}
	return min(max(i, lo), hi)
}

func buildShape(c *call) []*value {
	d := dims(c.node(0))
	from, to := 0, len(d)
	if c.entry("start") != nil {
		from, to = clampIndex(c.int("start"), len(d), 0, len(d)), clampIndex(c.int("end"), len(d), 0, len(d))
	}
	return one(c.vector(d[from:max(from, to)]...))
}

// buildRange counts from a start in steps up to a limit.
func buildRange(c *call) []*value {
	start, delta := c.known(0), c.known(2)
	d := start.Type.DType
	n := math.Ceil((c.knownFloat(1) - c.knownFloat(0)) / c.knownFloat(2))
	if !(n <= maxMade) {
		c.refuse("a range of %v elements", n)
	}
	c.made(max(int(n), 0))
	t := graph.NewTensor(graph.TypeOf(d, max(int(n), 0)))
	for i := range t.Type.Shape.Elems() {
		if d.IsReal() {
			t.SetFloat(i, start.Float(0)+float64(i)*delta.Float(0))
		} else {
			t.SetInt(i, start.Int(0)+int64(i)*delta.Int(0))
		}
	}
	return one(c.constant(t))
}

func buildEyeLike(c *call) []*value {
	s := c.node(0).Type.Shape
	if s.Rank() != 2 {
		c.refuse("it takes a matrix, not %v", s)
	}
	d := c.node(0).Type.DType
	if c.has("dtype") {
		var err error
		d, err = elemType(int32(c.int("dtype")))
		c.check(err)
	}
	return one(c.cast(c.binary(graph.Eq, c.counting(s, 1), c.with(graph.Add, c.column(s.At(0)), float64(c.int("k")))), d))
}

// column is 0, 1, 2, … as I64 [n,1].
func (c *call) column(n int) *graph.Node { return c.counting(graph.ShapeOf(n, 1), 0) }

func buildReshape(c *call) []*value {
	x, to := c.node(0), c.knownInts(1)
	s := x.Type.Shape
	open, n := -1, 1
	for i, d := range to {
		switch {
		case d == -1 && open < 0:
			open = i
			continue
		case d == 0 && !c.flag("allowzero"):
			if i >= s.Rank() {
				c.refuse("size %d of %v is 0, to be taken from %v", i, to, s)
			}
			to[i] = s.At(i)
		case d < 0:
			c.refuse("the shape %v", to)
		}
		if to[i] > graph.MaxElems || n > graph.MaxElems {
			c.refuse("the shape %v is too large", to)
		}
		n *= to[i]
	}
	if open >= 0 {
		if n == 0 || s.Elems()%n != 0 {
			c.refuse("%v has no shape %v", s, to)
		}
		to[open] = s.Elems() / n
	}
	return one(c.reshape(x, to...))
}

func buildSqueeze(c *call) []*value {
	x := c.node(0)
	s := x.Type.Shape
	list, given := c.operandOrInts(1, "axes")
	axes := c.axes(list, s.Rank())
	if !given {
		for i := range s.Rank() {
			if s.At(i) == 1 {
				axes = append(axes, i)
			}
		}
	}
	for _, a := range axes {
		if s.At(a) != 1 {
			c.refuse("axis %d of %v is not of size 1", a, s)
		}
	}
	return one(c.reshape(x, s.Drop(graph.IntsOf(axes...)).Slice()...))
}

func buildUnsqueeze(c *call) []*value {
	x := c.node(0)
	list, _ := c.operandOrInts(1, "axes")
	rank := x.Type.Shape.Rank() + len(list)
	if rank > graph.MaxRank {
		c.refuse("the result has %d axes; there may be %d", rank, graph.MaxRank)
	}
	axes := c.axes(list, rank)
	to, from := make([]int, rank), dims(x)
	for i := range to {
		if slices.Contains(axes, i) {
			to[i] = 1
		} else {
			to[i], from = from[0], from[1:]
		}
	}
	return one(c.reshape(x, to...))
}

func buildSplit(c *call) []*value {
	x := c.node(0)
	axis := c.axis(c.int("axis"), x.Type.Shape.Rank())
	dim := x.Type.Shape.At(axis)
	sizes, given := c.operandOrInts(1, "split")
	if !given {
		n := len(c.proto.GetOutput())
		if c.has("num_outputs") {
			n = c.int("num_outputs")
		}
		if n < 1 || n > maxNodes {
			c.refuse("a split into %d parts", n)
		}
		chunk := (dim + n - 1) / n
		for i := range n {
			sizes = append(sizes, max(min(chunk, dim-i*chunk), 0))
		}
	}
	var parts []*graph.Node
	at := 0
	for _, size := range sizes {
		if size < 0 || size > dim-at {
			c.refuse("a split of %d into %v", dim, sizes)
		}
		parts = append(parts, c.slice(x, axis, at, size, 1))
		at += size
	}
	if at != dim {
		c.refuse("a split of %d into %v", dim, sizes)
	}
	return several(parts...)
}

func buildSlice(c *call) []*value {
	x := c.node(0)
	rank := x.Type.Shape.Rank()
	var starts, ends, axes, steps []int
	haveAxes, haveSteps := false, false
	if c.entry("starts") != nil {
		starts, ends, axes, haveAxes = c.ints("starts"), c.ints("ends"), c.ints("axes"), c.has("axes")
	} else {
		starts, ends = c.knownInts(1), c.knownInts(2)
		if haveAxes = c.there(3); haveAxes {
			axes = c.knownInts(3)
		}
		if haveSteps = c.there(4); haveSteps {
			steps = c.knownInts(4)
		}
	}
	if !haveAxes {
		for i := range starts {
			axes = append(axes, i)
		}
	}
	if len(ends) != len(starts) || len(axes) != len(starts) || haveSteps && len(steps) != len(starts) {
		c.refuse("it has %d starts, %d ends, %d axes and %d steps", len(starts), len(ends), len(axes), len(steps))
	}
	for i, a := range axes {
		axis := c.axis(a, rank)
		n, step := x.Type.Shape.At(axis), 1
		if haveSteps {
			step = steps[i]
		}
		switch {
		case step == 0 || step > 1<<40 || step < -(1<<40):
			c.refuse("a step of %d", step)
		case step > 0:
			from, to := clampIndex(starts[i], n, 0, n), clampIndex(ends[i], n, 0, n)
			size := (max(to-from, 0) + step - 1) / step
			if size <= 1 {
				step = 1
			}
			x = c.slice(x, axis, from, size, step)
		default:
			from, to := clampIndex(starts[i], n, -1, n-1), clampIndex(ends[i], n, -1, n-1)
			size := (max(from-to, 0) - step - 1) / -step
			if size <= 1 {
				step = -1
			}
			x = c.flip(c.slice(x, axis, from+(size-1)*step, size, -step), axis)
		}
	}
	return one(x)
}

func buildTile(c *call) []*value {
	x, times := c.node(0), c.knownInts(1)
	d := dims(x)
	if len(times) != len(d) {
		c.refuse("%d repetitions of %d axes", len(times), len(d))
	}
	for axis := len(d) - 1; axis >= 0; axis-- {
		n := times[axis]
		if n < 0 || n > graph.MaxElems {
			c.refuse("%d repetitions", n)
		}
		if n == 1 {
			continue
		}
		// [outer, inner] → [outer, n, inner]
		now := dims(x)
		outer, _, inner := x.Type.Shape.Around(axis, 0)
		y := c.expand(c.reshape(x, outer, 1, inner), c.shape(outer, n, inner))
		now[axis] *= n
		x = c.reshape(y, now...)
	}
	return one(x)
}

func buildPad(c *call) []*value {
	x := c.node(0)
	rank := x.Type.Shape.Rank()
	var pads []int
	v := 0.
	if c.entry("pads") != nil {
		pads, v = c.ints("pads"), c.float("value")
	} else {
		pads = c.knownInts(1)
		if c.there(2) {
			v = c.knownFloat(2)
		}
	}
	axes := make([]int, rank)
	for i := range axes {
		axes[i] = i
	}
	if c.there(3) {
		axes = c.knownInts(3)
		for i := range axes {
			axes[i] = c.axis(axes[i], rank)
		}
	}
	if len(pads) != 2*len(axes) {
		c.refuse("%d pads for %d axes", len(pads), len(axes))
	}
	lo, hi := make([]int, rank), make([]int, rank)
	for i, a := range axes {
		lo[a], hi[a] = pads[i], pads[len(axes)+i]
		if max(lo[a], hi[a]) > graph.MaxElems || min(lo[a], hi[a]) < -graph.MaxElems {
			c.refuse("padding %v", pads)
		}
	}
	return one(c.padded(x, lo, hi, c.string("mode"), v))
}

// padded surrounds x in one of ONNX's modes. Negative padding cuts off.
func (c *call) padded(x *graph.Node, lo, hi []int, mode string, v float64) *graph.Node {
	for axis := range lo {
		cut, end := max(-lo[axis], 0), max(-hi[axis], 0)
		if n := x.Type.Shape.At(axis) - cut - end; cut+end > 0 {
			if n < 0 {
				c.refuse("padding %v and %v cuts off more than there is of %v", lo, hi, x.Type.Shape)
			}
			x = c.slice(x, axis, cut, n, 1)
		}
		lo[axis], hi[axis] = max(lo[axis], 0), max(hi[axis], 0)
	}
	if mode == "constant" {
		s := x.Type.Shape
		for i := range lo {
			s = s.With(i, min(lo[i]+s.At(i)+hi[i], graph.MaxElems))
		}
		c.check(s.Check())
		if x.Type.DType == graph.Bool {
			return c.cast(c.pad(c.cast(x, graph.I32), lo, hi, v), graph.Bool)
		}
		return c.pad(x, lo, hi, v)
	}
	for axis := range lo {
		if lo[axis] == 0 && hi[axis] == 0 {
			continue
		}
		n := x.Type.Shape.At(axis)
		c.made(n)
		if n == 0 || lo[axis]+hi[axis] > 1<<28 {
			c.refuse("padding %v and %v of %v in mode %q", lo, hi, x.Type.Shape, mode)
		}
		var at []int
		for i := -lo[axis]; i < n+hi[axis]; i++ {
			at = append(at, c.inside(i, n, mode))
		}
		x = c.gather(x, c.vector(at...), axis)
	}
	return x
}

// inside maps an index outside of 0..n−1 to one inside.
func (c *call) inside(i, n int, mode string) int {
	switch mode {
	case "edge":
		return min(max(i, 0), n-1)
	case "wrap":
		return ((i % n) + n) % n
	case "reflect":
		if n == 1 {
			return 0
		}
		period := 2 * (n - 1)
		i = ((i % period) + period) % period
		return min(i, period-i)
	}
	c.refuse("mode %q", mode)
	return 0
}

func buildTrilu(c *call) []*value {
	x := c.node(0)
	s := x.Type.Shape
	r := s.Rank()
	if r < 2 {
		c.refuse("it takes matrices, not %v", s)
	}
	k := 0
	if c.there(1) {
		k = c.knownInt(1)
	}
	f := graph.Le // keeps column j of row i where j ≤ i + k
	if c.flag("upper") {
		f = graph.Ge
	}
	keep := c.binary(f, c.counting(s, r-1), c.with(graph.Add, c.column(s.At(r-2)), float64(min(max(k, -1<<40), 1<<40))))
	return one(c.masked(keep, x))
}

// masked is x where keep is true, and else 0 or false.
func (c *call) masked(keep, x *graph.Node) *graph.Node {
	if x.Type.DType == graph.Bool {
		return c.binary(graph.And, keep, x)
	}
	return c.choose(keep, x, c.scalar(x.Type.DType, 0))
}

// images checks that operand 0 is [N,C,H,W].
func (c *call) images() (x *graph.Node, n, ch, h, w int) {
	x = c.node(0)
	if x.Type.Shape.Rank() != 4 {
		c.refuse("it takes [N,C,H,W], not %v", x.Type.Shape)
	}
	d := dims(x)
	return x, d[0], d[1], d[2], d[3]
}

func buildDepthToSpace(c *call) []*value {
	x, n, ch, h, w := c.images()
	k := c.int("blocksize")
	if k < 1 || k > 1<<20 || ch%(k*k) != 0 {
		c.refuse("%d channels in blocks of %d×%d", ch, k, k)
	}
	var y *graph.Node
	switch mode := c.string("mode"); {
	case mode == "DCR" || c.entry("mode") == nil:
		y = c.transpose(c.reshape(x, n, k, k, ch/(k*k), h, w), 0, 3, 4, 1, 5, 2)
	case mode == "CRD":
		y = c.transpose(c.reshape(x, n, ch/(k*k), k, k, h, w), 0, 1, 4, 2, 5, 3)
	default:
		c.refuse("mode %q", mode)
	}
	return one(c.reshape(y, n, ch/(k*k), h*k, w*k))
}

func buildSpaceToDepth(c *call) []*value {
	x, n, ch, h, w := c.images()
	k := c.int("blocksize")
	if k < 1 || h%k != 0 || w%k != 0 {
		c.refuse("images of %d×%d in blocks of %d×%d", h, w, k, k)
	}
	x = c.reshape(x, n, ch, h/k, k, w/k, k)
	if c.string("mode") == "CRD" {
		x = c.transpose(x, 0, 1, 3, 5, 2, 4)
	} else {
		x = c.transpose(x, 0, 3, 5, 1, 2, 4)
	}
	return one(c.reshape(x, n, ch*k*k, h/k, w/k))
}

func buildCenterCropPad(c *call) []*value {
	x, to := c.node(0), c.knownInts(1)
	rank := x.Type.Shape.Rank()
	axes := make([]int, rank)
	for i := range axes {
		axes[i] = i
	}
	if c.has("axes") {
		axes = c.ints("axes")
	}
	if len(to) != len(axes) {
		c.refuse("%d sizes for %d axes", len(to), len(axes))
	}
	lo, hi := make([]int, rank), make([]int, rank)
	for i, a := range axes {
		a = c.axis(a, rank)
		more := to[i] - x.Type.Shape.At(a)
		if to[i] < 0 || to[i] > graph.MaxElems {
			c.refuse("the size %d", to[i])
		}
		if more >= 0 {
			lo[a] = more / 2
		} else {
			lo[a] = -(-more / 2)
		}
		hi[a] = more - lo[a]
	}
	return one(c.padded(x, lo, hi, "constant", 0))
}

// buildReverseSequence reverses the first so many steps of each sequence of a batch.
func buildReverseSequence(c *call) []*value {
	x, lengths := c.node(0), c.node(1)
	s := x.Type.Shape
	batch, time := c.int("batch_axis"), c.int("time_axis")
	if s.Rank() < 2 || batch+time != 1 || batch*time != 0 || lengths.Type != graph.TypeOf(graph.I64, s.At(batch)) {
		c.refuse("batch axis %d and time axis %d of %v, with lengths %v", batch, time, s, lengths.Type)
	}
	return one(c.reversed(x, lengths, time))
}

// reversed reverses the first lengths[n] steps of sequence n of x [steps,batch,...], or with time 1 [batch,steps,...].
func (c *call) reversed(x, lengths *graph.Node, time int) *graph.Node {
	s := x.Type.Shape
	steps, batch := s.At(time), s.At(1-time)
	at := c.counting(graph.ShapeOf(steps, 1), 0) // [steps, 1]
	if time == 1 {
		at = c.reshape(at, 1, steps)
		lengths = c.reshape(lengths, batch, 1)
	}
	from := c.choose(c.binary(graph.Lt, at, lengths), c.with(graph.Sub, c.minus(lengths, at), 1), at)
	return c.gatherAlong(x, from, time)
}
