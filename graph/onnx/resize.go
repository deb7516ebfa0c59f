package onnx

import (
	"math"
	"slices"

	"fusec/graph"
)

func init() {
	declare(
		operator{name: "Resize", min: 1, max: 4, build: buildResize, attrs: []attr{{name: "mode", def: "nearest"},
			{name: "coordinate_transformation_mode", def: "half_pixel", from: 11}, {name: "cubic_coeff_a", def: -0.75, from: 11},
			{name: "exclude_outside", def: int64(0), from: 11}, {name: "extrapolation_value", def: 0., from: 11},
			{name: "nearest_mode", def: "round_prefer_floor", from: 11}, {name: "antialias", def: int64(0), from: 18},
			{name: "axes", def: []int64(nil), from: 18}, {name: "keep_aspect_ratio_policy", def: "stretch", from: 18}}},
		operator{name: "Upsample", min: 1, max: 2, build: func(c *call) []*value {
			r := c.resampling()
			scales := c.floats("scales")
			if c.entry("scales") == nil {
				scales = c.knownFloats(1)
			}
			return one(c.resize(r, scales, nil))
		}, attrs: []attr{{name: "mode", def: "nearest"}, {name: "scales", def: required{[]float64(nil)}, until: 8}}},
	)
}

// knownFloats are the elements of operand i, a vector of numbers.
func (c *call) knownFloats(i int) []float64 {
	t := c.known(i)
	if t.Type.Shape.Rank() != 1 {
		c.refuse("operand %d is %v, not a vector", i, t.Type)
	}
	return t.Floats()
}

// A resampling is how a Resize computes elements between those that there are.
type resampling struct {
	mode, coordinates, rounding string
	a                           float64 // of cubic
	exclude, antialias          bool
	outside                     float64 // the value beyond the region, of tf_crop_and_resize
}

func (c *call) resampling() resampling {
	if c.entry("nearest_mode") == nil { // before opset 11
		return resampling{mode: c.string("mode"), coordinates: "asymmetric", rounding: "floor", a: -0.75}
	}
	return resampling{c.string("mode"), c.string("coordinate_transformation_mode"), c.string("nearest_mode"), c.float("cubic_coeff_a"),
		c.flag("exclude_outside"), c.entry("antialias") != nil && c.flag("antialias"), c.float("extrapolation_value")}
}

func buildResize(c *call) []*value {
	x := c.node(0)
	rank := x.Type.Shape.Rank()
	if c.entry("nearest_mode") == nil {
		return one(c.resize(c.resampling(), c.knownFloats(1), nil))
	}
	axes := make([]int, rank)
	for i := range axes {
		axes[i] = i
	}
	if c.has("axes") {
		for i, a := range c.ints("axes") {
			if i == 0 {
				axes = nil
			}
			axes = append(axes, c.axis(a, rank))
		}
	}
	scales := slices.Repeat([]float64{1}, rank)
	sizes := make([]int, rank)
	copy(sizes, dims(x))
	list := func(n int) {
		if n != len(axes) {
			c.refuse("%d sizes or scales of %d axes", n, len(axes))
		}
	}
	if c.there(3) {
		given := c.knownInts(3)
		list(len(given))
		ratios := make([]float64, len(given))
		for i, a := range axes {
			if given[i] < 1 || given[i] > graph.MaxElems {
				c.refuse("a size of %d", given[i])
			}
			ratios[i] = float64(given[i]) / float64(x.Type.Shape.At(a))
		}
		policy := "stretch"
		if c.entry("keep_aspect_ratio_policy") != nil {
			policy = c.string("keep_aspect_ratio_policy")
		}
		for i, a := range axes {
			switch policy {
			case "stretch":
				sizes[a], scales[a] = given[i], ratios[i]
				continue
			case "not_larger":
				scales[a] = slices.Min(ratios)
			case "not_smaller":
				scales[a] = slices.Max(ratios)
			default:
				c.refuse("attribute \"keep_aspect_ratio_policy\" is %q", policy)
			}
			sizes[a] = int(math.Floor(scales[a]*float64(x.Type.Shape.At(a)) + 0.5))
		}
	} else {
		if !c.there(2) {
			c.refuse("it has neither scales nor sizes")
		}
		given := c.knownFloats(2)
		list(len(given))
		for i, a := range axes {
			scales[a] = given[i]
		}
		sizes = nil
	}
	return one(c.resize(c.resampling(), scales, sizes))
}

// resize resamples each axis. Without sizes they follow from the scales.
func (c *call) resize(r resampling, scales []float64, sizes []int) *graph.Node {
	x := c.node(0)
	rank := x.Type.Shape.Rank()
	if len(scales) != rank {
		c.refuse("%d scales of %d axes", len(scales), rank)
	}
	var roi []float64
	if r.coordinates == "tf_crop_and_resize" {
		if roi = c.regions(rank); len(roi) != 2*rank {
			c.refuse("a region of %d numbers for %d axes", len(roi), rank)
		}
	}
	d := x.Type.DType
	if !d.IsFloat() && r.mode != "nearest" {
		x = c.cast(x, graph.F32)
	}
	repeats := slices.Repeat([]int{1}, rank)
	for axis, scale := range scales {
		n := x.Type.Shape.At(axis)
		size := int(math.Floor(scale * float64(n)))
		if sizes != nil {
			size = sizes[axis]
		}
		if !(scale > 0) || size < 0 || size > 1<<26 || n == 0 {
			c.refuse("%d elements scaled by %v", n, scale)
		}
		start, end := 0., 1.
		if roi != nil {
			start, end = roi[axis], roi[rank+axis]
		}
		if size == n && scale == 1 && start == 0 && end == 1 {
			continue
		}
		taps := r.taps(c, n, size, scale, start, end)
		if repeated(taps, n) {
			repeats[axis] = size / n
			continue
		}
		x = c.resampled(x, axis, taps, r)
	}
	return c.cast(c.repeat(x, repeats), d)
}

// repeated reports whether each of n elements is taken as often as the next, one after the other.
func repeated(taps []tap, n int) bool {
	if len(taps)%n != 0 {
		return false
	}
	for i, t := range taps {
		if len(t.at) != 1 || t.at[0] != i/(len(taps)/n) {
			return false
		}
	}
	return len(taps) > 0
}

// repeat takes each element of each axis a number of times, one after the other: a view for all axes.
func (c *call) repeat(x *graph.Node, times []int) *graph.Node {
	var apart, full, to []int
	for i, n := range dims(x) {
		apart, full, to = append(apart, n), append(full, n), append(to, n*times[i])
		if times[i] > 1 {
			apart, full = append(apart, 1), append(full, times[i])
		}
	}
	if len(full) == len(to) {
		return x
	}
	if len(full) > graph.MaxRank { // one axis after the other
		for axis, n := range times {
			s := x.Type.Shape
			outer, _, inner := s.Around(axis+1, 0)
			x = c.expand(c.reshape(x, outer, 1, inner), c.shape(outer, n, inner))
			x = c.reshape(x, s.With(axis, n*s.At(axis)).Slice()...)
		}
		return x
	}
	return c.reshape(c.expand(c.reshape(x, apart...), c.shape(full...)), to...)
}

// regions is the operand roi, of all axes.
func (c *call) regions(rank int) []float64 {
	roi := c.knownFloats(1)
	if !c.has("axes") {
		return roi
	}
	axes := c.ints("axes")
	all := make([]float64, 2*rank)
	for i := range rank {
		all[rank+i] = 1
	}
	if len(roi) != 2*len(axes) {
		c.refuse("a region of %d numbers for %d axes", len(roi), len(axes))
	}
	for i, a := range axes {
		a = c.axis(a, rank)
		all[a], all[rank+a] = roi[i], roi[len(axes)+i]
	}
	return all
}

// A tap is what an element of the result takes of the axis: elements and their weights. None: the value outside.
type tap struct {
	at      []int
	weights []float64
}

// taps are those of each element.
func (r resampling) taps(c *call, n, size int, scale, start, end float64) []tap {
	c.made(size)
	taps := make([]tap, size)
	for i := range taps {
		x := r.coordinate(c, float64(i), n, size, scale, start, end)
		if r.coordinates == "tf_crop_and_resize" && (x < 0 || x > float64(n-1)) {
			continue
		}
		taps[i] = r.tap(c, x, n, scale)
	}
	return taps
}

// coordinate is the place in the operand of element i of the result.
func (r resampling) coordinate(c *call, i float64, n, size int, scale, start, end float64) float64 {
	length := scale * float64(n)
	switch r.coordinates {
	case "half_pixel":
		return (i+0.5)/scale - 0.5
	case "half_pixel_symmetric":
		adjust := float64(size) / length
		center := float64(n) / 2
		return center*(1-adjust) + (i+0.5)/scale - 0.5
	case "pytorch_half_pixel":
		if size > 1 {
			return (i+0.5)/scale - 0.5
		}
		return -0.5
	case "align_corners":
		if size == 1 {
			return 0
		}
		return i * float64(n-1) / (length - 1)
	case "asymmetric":
		return i / scale
	case "tf_half_pixel_for_nn":
		return (i + 0.5) / scale
	case "tf_crop_and_resize":
		if size == 1 {
			return (end - start) * float64(n-1) / 2
		}
		return i*(end-start)*float64(n-1)/(length-1) + start*float64(n-1)
	}
	c.refuse("the coordinates %q", r.coordinates)
	return 0
}

// tap is what the element at x takes of n elements.
func (r resampling) tap(c *call, x float64, n int, scale float64) tap {
	clamp := func(i float64) int { return int(min(max(i, 0), float64(n-1))) }
	var support float64
	var kernel func(d float64) float64
	switch r.mode {
	case "nearest":
		i := math.Floor(x)
		switch d := x - i; r.rounding {
		case "floor":
		case "ceil":
			i = math.Ceil(x)
		case "round_prefer_floor":
			if d > 0.5 {
				i++
			}
		case "round_prefer_ceil":
			if d >= 0.5 {
				i++
			}
		default:
			c.refuse("attribute \"nearest_mode\" is %q", r.rounding)
		}
		return tap{[]int{clamp(i)}, []float64{1}}
	case "linear":
		support, kernel = 1, func(d float64) float64 { return max(1-math.Abs(d), 0) }
	case "cubic": // Keys, IEEE Transactions on Acoustics, Speech and Signal Processing 29(6), 1981
		support, kernel = 2, func(d float64) float64 {
			switch d := math.Abs(d); {
			case d <= 1:
				return ((r.a+2)*d-(r.a+3))*d*d + 1
			case d < 2:
				return ((r.a*d-5*r.a)*d+8*r.a)*d - 4*r.a
			}
			return 0
		}
	default:
		c.refuse("mode %q", r.mode)
	}
	shrink := 1. // of distances
	if r.antialias {
		shrink = min(scale, 1)
	}
	var t tap
	sum := 0.
	first := math.Floor(x-support/shrink) + 1
	if support/shrink > 1<<20 {
		c.refuse("a scale of %v", scale)
	}
	for i := first; i <= math.Ceil(x+support/shrink); i++ {
		w := kernel((i - x) * shrink)
		if w == 0 || r.exclude && (i < 0 || i > float64(n-1)) {
			continue
		}
		sum += w
		t.at, t.weights = append(t.at, clamp(i)), append(t.weights, w)
	}
	for i := range t.weights {
		t.weights[i] /= sum
	}
	return t
}

// resampled computes an axis from taps: by an index where each element is one of the operand's, and else by a matrix product.
func (c *call) resampled(x *graph.Node, axis int, taps []tap, r resampling) *graph.Node {
	s := x.Type.Shape
	n, size := s.At(axis), len(taps)
	single := true
	at, valid := make([]int, size), graph.NewTensor(graph.TypeOf(graph.Bool, size))
	all := true
	for i, t := range taps {
		valid.SetInt(i, int64(min(len(t.at), 1)))
		if len(t.at) == 0 {
			all = false
			continue
		}
		single = single && len(t.at) == 1
		at[i] = t.at[0]
	}
	var y *graph.Node
	switch {
	case single:
		y = c.gather(x, c.vector(at...), axis)
	default:
		if n > 1<<26/max(size, 1) {
			c.refuse("%d elements resized to %d in mode %q", n, size, r.mode)
		}
		c.made(n * size)
		m := graph.NewTensor(graph.TypeOf(x.Type.DType, n, size))
		for i, t := range taps {
			for k, a := range t.at {
				m.SetFloat(a*size+i, m.Float(a*size+i)+t.weights[k])
			}
		}
		perm := make([]int, s.Rank())
		for i := range perm {
			perm[i] = i
		}
		last := s.Rank() - 1
		perm[axis], perm[last] = last, axis
		z := c.transpose(x, perm...)
		outer, _, _ := z.Type.Shape.Around(last, 0)
		to := z.Type.Shape.With(last, size).Slice()
		z = c.matmul(c.reshape(z, outer, n), c.constant(m), false, false)
		y = c.transpose(c.reshape(z, to...), perm...)
	}
	if all {
		return y
	}
	shape := make([]int, s.Rank()-axis)
	for i := range shape {
		shape[i] = 1
	}
	shape[0] = size
	return c.choose(c.reshape(c.constant(valid), shape...), y, c.scalar(x.Type.DType, r.outside))
}
