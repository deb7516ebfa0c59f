package onnx

import (
	"math"
	"slices"

	"fusec/graph"
)

func init() {
	align := intAttr("align_corners", 0)
	declare(
		operator{name: "AffineGrid", min: 2, max: 2, attrs: []attr{align}, build: buildAffineGrid},
		operator{name: "GridSample", min: 2, max: 2, build: buildGridSample, attrs: []attr{align, {name: "mode", def: "linear"},
			{name: "padding_mode", def: "zeros"}}},
		operator{name: "Col2Im", min: 3, max: 3, build: buildCol2Im, attrs: []attr{{name: "dilations", def: []int64(nil)},
			{name: "pads", def: []int64(nil)}, {name: "strides", def: []int64(nil)}}},
	)
}

// buildAffineGrid is where the points of an image [N,C,...] come from by an affine map theta [N,d,d+1] of coordinates from
// −1 to 1, the last axis first: [N,...,d].
func buildAffineGrid(c *call) []*value {
	theta, size := c.node(0), c.knownInts(1)
	d := len(size) - 2
	if d < 2 || d > 3 || theta.Type.Shape != graph.ShapeOf(size[0], d, d+1) {
		c.refuse("maps %v for an image %v", theta.Type, size)
	}
	s := c.shape(size[2:]...)
	c.made(min((d+1)*s.Elems(), maxMade+1))
	points := graph.NewTensor(graph.TypeOf(graph.F64, s.Elems(), d+1))
	for p, at := 0, make([]int, d); p < s.Elems(); p++ {
		for axis := range d {
			n := s.At(axis)
			v := -1.
			switch {
			case !c.flag("align_corners"):
				v = float64(2*at[axis]+1)/float64(n) - 1
			case n > 1:
				v = 2*float64(at[axis])/float64(n-1) - 1
			}
			points.SetFloat(p*(d+1)+d-1-axis, v)
		}
		points.SetFloat(p*(d+1)+d, 1)
		for axis := d - 1; axis >= 0; axis-- {
			if at[axis]++; at[axis] < s.At(axis) {
				break
			}
			at[axis] = 0
		}
	}
	grid := c.matmul(c.cast(c.constant(points), theta.Type.DType), theta, false, true)
	return one(c.reshape(grid, slices.Concat(size[:1], size[2:], []int{d})...))
}

// A sampled is an element of a neighbourhood along an axis: its index, as a whole number of a float type, before those outside
// are dealt with, and its weight, or nil for 1.
type sampled struct{ at, weight *graph.Node }

// buildGridSample reads an image [N,C,...] at the points of a grid [N,...,d] with coordinates from −1 to 1, the last axis
// first.
func buildGridSample(c *call) []*value {
	x, grid := c.node(0), c.node(1)
	s, gs := x.Type.Shape, grid.Type.Shape
	d := s.Rank() - 2
	if d < 1 || gs.Rank() != d+2 || gs.At(0) != s.At(0) || gs.At(d+1) != d || s.Elems() == 0 || !grid.Type.DType.IsFloat() {
		c.refuse("a grid %v for an image %v", grid.Type, x.Type)
	}
	batch, channels, outs := s.At(0), s.At(1), gs.Slice()[1:d+1]
	points := c.shape(outs...).Elems()
	grid = c.reshape(grid, batch*points, d)
	padding := c.string("padding_mode")
	if !slices.Contains([]string{"zeros", "border", "reflection"}, padding) {
		c.refuse("attribute \"padding_mode\" is %q", padding)
	}
	// Along each axis, elements of a neighbourhood; then each combination of them.
	var axes [][]sampled
	for axis := range d {
		n := s.At(axis + 2)
		u := c.with(graph.Add, c.reshape(c.slice(grid, 1, d-1-axis, 1, 1), batch*points), 1)
		lo, hi := -0.5, float64(n)-0.5
		if c.flag("align_corners") {
			lo, hi = 0, float64(n-1)
			u = c.with(graph.Mul, u, hi/2)
		} else {
			u = c.with(graph.Add, c.with(graph.Mul, u, float64(n)/2), -0.5)
		}
		outside := func(u *graph.Node, border bool) *graph.Node { // moves what is outside inside
			switch {
			case padding == "reflection":
				u = c.reflected(u, lo, hi)
			case padding == "border" || border:
				u = c.with(graph.Max, c.with(graph.Min, u, float64(n-1)), 0)
			}
			return u
		}
		var near []sampled
		switch mode := c.string("mode"); mode {
		case "nearest":
			near = []sampled{{at: outside(c.unary(graph.Round, u), false)}}
		case "linear", "bilinear":
			u = outside(u, false)
			low := c.unary(graph.Floor, u)
			t := c.minus(u, low)
			near = []sampled{{low, c.with(graph.Add, c.unary(graph.Neg, t), 1)}, {c.with(graph.Add, low, 1), t}}
		case "cubic", "bicubic":
			u = outside(u, false)
			low := c.unary(graph.Floor, u)
			t := c.minus(u, low)
			for k := -1; k <= 2; k++ {
				far := c.unary(graph.Abs, c.with(graph.Sub, t, float64(k)))
				near = append(near, sampled{c.with(graph.Add, low, float64(k)), c.cubicAt(far, k == 0 || k == 1)})
			}
		default:
			c.refuse("attribute \"mode\" is %q", mode)
		}
		for i, e := range near {
			if padding == "zeros" {
				in := c.binary(graph.And, c.with(graph.Ge, e.at, 0), c.with(graph.Le, e.at, float64(n-1)))
				if e.weight == nil {
					e.weight = c.filled(e.at.Type, 1)
				}
				e.weight = c.choose(in, e.weight, c.scalar(e.at.Type.DType, 0))
			} else {
				e.at = outside(e.at, true)
			}
			e.at = c.cast(c.with(graph.Max, c.with(graph.Min, e.at, float64(n-1)), 0), graph.I64)
			near[i] = e
		}
		axes = append(axes, near)
	}
	_, _, pixels := s.Around(1, 1)
	perm := []int{0, 2, 1}
	rows := c.reshape(c.transpose(c.reshape(x, batch, channels, pixels), perm...), batch*pixels, channels)
	first := c.reshape(c.with(graph.Mul, c.counting(graph.ShapeOf(batch), 0), float64(pixels)), batch, 1)
	first = c.reshape(c.expand(first, c.shape(batch, points)), batch*points)
	var sum *graph.Node
	var visit func(axis int, at, weight *graph.Node)
	visit = func(axis int, at, weight *graph.Node) {
		if axis == d {
			y := c.gather(rows, at, 0)
			if weight != nil {
				y = c.mul(y, c.cast(c.reshape(weight, batch*points, 1), x.Type.DType))
			}
			if sum != nil {
				y = c.plus(sum, y)
			}
			sum = y
			return
		}
		_, _, stride := s.Around(axis+2, 1)
		for _, e := range axes[axis] {
			w := weight
			if w == nil {
				w = e.weight
			} else if e.weight != nil {
				w = c.mul(w, e.weight)
			}
			visit(axis+1, c.plus(at, c.with(graph.Mul, e.at, float64(stride))), w)
		}
	}
	visit(0, first, nil)
	y := c.transpose(c.reshape(sum, batch, points, channels), perm...)
	return one(c.reshape(y, append([]int{batch, channels}, outs...)...))
}

// reflected reflects a coordinate at the borders until it is between them.
func (c *call) reflected(u *graph.Node, lo, hi float64) *graph.Node {
	span := hi - lo
	if span == 0 {
		return c.filled(u.Type, lo)
	}
	t := c.with(graph.Sub, u, lo)
	t = c.minus(t, c.with(graph.Mul, c.unary(graph.Floor, c.with(graph.Div, t, 2*span)), 2*span))
	t = c.with(graph.Sub, c.unary(graph.Abs, c.with(graph.Sub, t, span)), span) // −t, or t − 2·span
	return c.with(graph.Add, c.unary(graph.Neg, t), lo)
}

// cubicAt is the weight of a neighbour at a distance, up to 1 if it is an inner one and else up to 2, in the interpolation of
// R. Keys, "Cubic convolution interpolation for digital image processing" (1981), with the parameter −0.75.
func (c *call) cubicAt(t *graph.Node, inner bool) *graph.Node {
	const a = -0.75
	coefficients := []float64{a, -5 * a, 8 * a, -4 * a}
	if inner {
		coefficients = []float64{a + 2, -(a + 3), 0, 1}
	}
	y := c.with(graph.Mul, t, coefficients[0])
	for _, v := range coefficients[1:3] {
		y = c.mul(c.with(graph.Add, y, v), t)
	}
	return c.with(graph.Add, y, coefficients[3])
}

// buildCol2Im adds up blocks [N,C·K,L], K elements at L places, where they are in an image.
func buildCol2Im(c *call) []*value {
	x, image, block := c.node(0), c.knownInts(1), c.knownInts(2)
	d := len(image)
	list := func(name string, n, def int) []int {
		l := c.ints(name)
		if !c.has(name) {
			l = slices.Repeat([]int{def}, n)
		}
		if len(l) != n || slices.Min(l) < def || slices.Max(l) > 1<<30 {
			c.refuse("attribute %q is %v for %d axes", name, l, d)
		}
		return l
	}
	if d < 1 || d > graph.MaxRank || len(block) != d || x.Type.Shape.Rank() != 3 || slices.Min(image) < 1 ||
		slices.Max(image) > 1<<30 || slices.Min(block) < 1 {
		c.refuse("blocks %v in an image %v, of %v", block, image, x.Type)
	}
	dilation, stride, pads := list("dilations", d, 1), list("strides", d, 1), list("pads", 2*d, 0)
	places := make([]int, d)
	for i := range d {
		if block[i] > 1<<30/dilation[i] {
			c.refuse("blocks %v", block)
		}
		if places[i] = (image[i]+pads[i]+pads[d+i]-dilation[i]*(block[i]-1)-1)/stride[i] + 1; places[i] < 1 {
			c.refuse("blocks %v in an image %v", block, image)
		}
	}
	k, l, pixels := c.shape(block...).Elems(), c.shape(places...).Elems(), c.shape(image...).Elems()
	s := x.Type.Shape
	if s.At(1)%k != 0 || s.At(2) != l {
		c.refuse("blocks %v at %v places, of %v", block, places, x.Type)
	}
	// The row of the image that each element of each block is added to; what is padding goes to one behind them.
	if k > maxMade/l {
		c.refuse("blocks %v at %v places", block, places)
	}
	c.made(k * l)
	to := graph.NewTensor(graph.TypeOf(graph.I64, k*l))
	both := slices.Concat(block, places)
	for i, at := 0, make([]int, 2*d); i < k*l; i++ {
		row := 0
		for axis := range d {
			p := at[d+axis]*stride[axis] + at[axis]*dilation[axis] - pads[axis]
			if row = row*image[axis] + p; p < 0 || p >= image[axis] {
				row = math.MinInt
				break
			}
		}
		if row < 0 {
			row = pixels
		}
		to.SetInt(i, int64(row))
		for axis := 2*d - 1; axis >= 0; axis-- {
			if at[axis]++; at[axis] < both[axis] {
				break
			}
			at[axis] = 0
		}
	}
	n, channels := s.At(0), s.At(1)/k
	rows := c.reshape(c.transpose(c.reshape(x, n, channels, k*l), 2, 0, 1), k*l, n*channels)
	y := c.slice(c.add(graph.ScatterAdd{Axis: 0, Size: pixels + 1}, c.constant(to), rows), 0, 0, pixels, 1)
	y = c.transpose(c.reshape(y, pixels, n, channels), 1, 2, 0)
	return one(c.reshape(y, append([]int{n, channels}, image...)...))
}
