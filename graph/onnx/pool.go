package onnx

import (
	"math"

	"fusec/graph"
)

// poolAttrs are the attributes of all pools.
var poolAttrs = []attr{{name: "auto_pad", def: "NOTSET"}, {name: "kernel_shape", def: []int64(nil)},
	{name: "pads", def: []int64(nil)}, {name: "strides", def: []int64(nil)}}

func init() {
	with := func(more ...attr) []attr { return append(more, poolAttrs...) }
	dilations := func(from int) attr { return attr{name: "dilations", def: []int64(nil), from: from} }
	ceil := func(from int) attr { return attr{name: "ceil_mode", def: int64(0), from: from} }
	global := func(f func(c *call, x *graph.Node, axes []int) *graph.Node) func(c *call) []*value {
		return func(c *call) []*value {
			x := c.node(0)
			var axes []int
			for i := 2; i < x.Type.Shape.Rank(); i++ {
				axes = append(axes, i)
			}
			return one(f(c, x, axes))
		}
	}
	declare(
		operator{name: "MaxPool", min: 1, max: 1, build: buildMaxPool,
			attrs: with(ceil(10), dilations(10), attr{name: "storage_order", def: int64(0), from: 8})},
		operator{name: "AveragePool", min: 1, max: 1, build: buildAveragePool,
			attrs: with(ceil(10), dilations(19), attr{name: "count_include_pad", def: int64(0), from: 7})},
		operator{name: "LpPool", min: 1, max: 1, build: buildLpPool, attrs: with(ceil(18), dilations(18), intAttr("p", 2))},
		operator{name: "GlobalAveragePool", min: 1, max: 1, build: global(func(c *call, x *graph.Node, axes []int) *graph.Node {
			return c.reduce(graph.Mean, x, true, axes...)
		})},
		operator{name: "GlobalMaxPool", min: 1, max: 1, build: global(func(c *call, x *graph.Node, axes []int) *graph.Node {
			return c.reduce(graph.MaxOf, x, true, axes...)
		})},
		operator{name: "GlobalLpPool", min: 1, max: 1, attrs: []attr{intAttr("p", 2)},
			build: global(func(c *call, x *graph.Node, axes []int) *graph.Node {
				p := float64(c.int("p"))
				return c.root(c.reduce(graph.Sum, c.powered(x, p), true, axes...), p)
			})},
		operator{name: "MaxUnpool", min: 2, max: 3, build: buildMaxUnpool, attrs: poolAttrs},
	)
}

// A pooling is the geometry of a pool: a window, and how many positions it has along each axis. With ceil_mode the last
// one may begin inside and end outside; hi covers it.
type pooling struct {
	windows
	out    []int
	beyond bool // hi covers more than the padding that was asked for
	hi0    []int
}

func (c *call) pooling(x *graph.Node) pooling {
	if x.Type.Shape.Rank() < 3 {
		c.refuse("a pool of %v", x.Type)
	}
	sizes := dims(x)[2:]
	p := pooling{windows: c.window(sizes, nil)}
	ceil := c.entry("ceil_mode") != nil && c.flag("ceil_mode")
	auto := c.string("auto_pad")
	for i, size := range sizes {
		lo, hi, span, stride := p.lo[i], p.hi[i], p.span(i), p.stride[i]
		if lo < 0 || hi < 0 || size+lo+hi < span {
			c.refuse("a window of %d over %d elements with padding %d and %d", span, size, lo, hi)
		}
		rest := size + lo + hi - span
		out := rest/stride + 1
		if ceil && (auto == "NOTSET" || auto == "") && rest%stride != 0 && out*stride < size+lo {
			out++
		}
		p.out = append(p.out, out)
		p.hi0 = append(p.hi0, hi)
		if more := (out-1)*stride + span - size - lo; more > hi {
			p.hi[i], p.beyond = more, true
		}
	}
	return p
}

// image is the pool of two axes that the graph has as an operation; false if it has none.
func (p pooling) image(fn graph.PoolFn, count bool) (graph.Pool, bool) {
	if len(p.out) != 2 || p.dilation[0] != 1 || p.dilation[1] != 1 {
		return graph.Pool{}, false
	}
	for i := range 2 {
		if p.lo[i] >= p.kernel[i] || p.hi[i] >= p.kernel[i] {
			return graph.Pool{}, false
		}
	}
	return graph.Pool{Fn: fn, Kernel: graph.IntsOf(p.kernel...), Stride: graph.IntsOf(p.stride...),
		Pad: graph.IntsOf(p.lo[0], p.lo[1], p.hi[0], p.hi[1]), CountPad: count}, true
}

// slid joins, axis by axis, the elements of each window of x, which is surrounded by the neutral element.
func (c *call) slid(x *graph.Node, p pooling, f graph.BinaryFn, neutral float64) *graph.Node {
	lo, hi := append([]int{0, 0}, p.lo...), append([]int{0, 0}, p.hi...)
	x = c.pad(x, lo, hi, neutral)
	for i := range p.out {
		if p.kernel[i] > 1<<12 {
			c.refuse("a window of %v", p.kernel)
		}
		var y *graph.Node
		for k := range p.kernel[i] {
			part := c.slice(x, i+2, k*p.dilation[i], p.out[i], p.stride[i])
			if y == nil {
				y = part
			} else {
				y = c.binary(f, y, part)
			}
		}
		x = y
	}
	return x
}

// lowest is the least number of a type.
func lowest(d graph.DType) float64 {
	if d.IsReal() {
		return math.Inf(-1)
	}
	return float64(d.Truncate(math.Inf(-1)))
}

func buildMaxPool(c *call) []*value {
	x := c.node(0)
	p := c.pooling(x)
	if len(c.proto.GetOutput()) > 1 && c.proto.GetOutput()[1] != "" {
		return several(c.maxPoolIndices(x, p))
	}
	if op, ok := p.image(graph.MaxPool, false); ok && x.Type.DType.IsFloat() {
		return one(c.add(op, x))
	}
	if op, ok := p.image(graph.MaxPool, false); ok && x.Type.DType.IsInt() && x.Type.DType.Size() == 1 {
		return one(c.integral(c.add(op, c.number(x, graph.F32)), x.Type.DType))
	}
	return one(c.slid(x, p, graph.Max, lowest(x.Type.DType)))
}

// maxPoolIndices is a maximum of each window, and the places of the first ones among the elements of x, row by row, or with
// storage_order column by column.
func (c *call) maxPoolIndices(x *graph.Node, p pooling) (y, at *graph.Node) {
	s := x.Type.Shape
	strides := s.Strides()
	if c.entry("storage_order") != nil && c.flag("storage_order") {
		for i, stride := 2, 1; i < s.Rank(); i++ {
			strides[i] = stride
			stride *= s.At(i)
		}
	}
	var places *graph.Node
	for i := range s.Rank() {
		if part := c.with(graph.Mul, c.counting(s, i), float64(strides[i])); places == nil {
			places = part
		} else {
			places = c.plus(places, part)
		}
	}
	places = c.expand(places, s)
	lo, hi := append([]int{0, 0}, p.lo...), append([]int{0, 0}, p.hi...)
	x = c.pad(x, lo, hi, lowest(x.Type.DType))
	places = c.pad(places, lo, hi, -1)
	all := 1
	for _, k := range p.kernel {
		if all *= k; all > 1<<12 {
			c.refuse("a window of %v", p.kernel)
		}
	}
	for k := range all {
		xs, ps := x, places
		for i := len(p.kernel) - 1; i >= 0; i-- {
			start := k % p.kernel[i] * p.dilation[i]
			xs = c.slice(xs, i+2, start, p.out[i], p.stride[i])
			ps = c.slice(ps, i+2, start, p.out[i], p.stride[i])
			k /= p.kernel[i]
		}
		if y == nil {
			y, at = xs, ps
			continue
		}
		more := c.binary(graph.Or, c.binary(graph.Gt, xs, y), c.with(graph.Lt, at, 0))
		y, at = c.binary(graph.Max, y, xs), c.choose(more, ps, at)
	}
	return y, at
}

func buildAveragePool(c *call) []*value {
	x := c.node(0)
	p := c.pooling(x)
	count := c.entry("count_include_pad") != nil && c.flag("count_include_pad")
	if op, ok := p.image(graph.AvgPool, count); ok && (!count || !p.beyond) {
		return one(c.add(op, x))
	}
	y := c.slid(x, p, graph.Add, 0)
	for i, out := range p.out {
		c.made(out)
		n := graph.NewTensor(graph.TypeOf(x.Type.DType, out))
		from, to := 0, x.Type.Shape.At(i+2)
		if count {
			from, to = -p.lo[i], to+p.hi0[i]
		}
		for o := range out {
			elems := 0
			for k := range p.kernel[i] {
				if at := o*p.stride[i] - p.lo[i] + k*p.dilation[i]; at >= from && at < to {
					elems++
				}
			}
			n.SetFloat(o, float64(max(elems, 1)))
		}
		to1 := make([]int, len(p.out)-i)
		for j := range to1 {
			to1[j] = 1
		}
		to1[0] = out
		y = c.over(y, c.reshape(c.constant(n), to1...))
	}
	return one(y)
}

// powered is |x| to a power, root its inverse.
func (c *call) powered(x *graph.Node, p float64) *graph.Node {
	switch p {
	case 1:
		return c.unary(graph.Abs, x)
	case 2:
		return c.unary(graph.Square, x)
	}
	return c.with(graph.Pow, c.unary(graph.Abs, x), p)
}

func (c *call) root(x *graph.Node, p float64) *graph.Node {
	switch p {
	case 1:
		return x
	case 2:
		return c.unary(graph.Sqrt, x)
	}
	return c.with(graph.Pow, x, 1/p)
}

func buildLpPool(c *call) []*value {
	x, power := c.node(0), float64(c.int("p"))
	return one(c.root(c.slid(c.powered(x, power), c.pooling(x), graph.Add, 0), power))
}

// buildMaxUnpool writes the elements of x to the places that a MaxPool took them from.
func buildMaxUnpool(c *call) []*value {
	x, ix := c.node(0), c.node(1)
	if ix.Type.Shape != x.Type.Shape || x.Type.Shape.Rank() < 3 {
		c.refuse("indices %v of %v", ix.Type, x.Type)
	}
	w := c.window(dims(x)[2:], nil)
	inferred := dims(x)
	for i := range w.kernel {
		inferred[i+2] = (inferred[i+2]-1)*w.stride[i] + w.kernel[i] - w.lo[i] - w.hi[i]
	}
	from := c.shape(inferred...)
	out := from
	if c.there(2) {
		out = c.shape(c.knownInts(2)...)
	}
	if out.Rank() != from.Rank() {
		c.refuse("the shape %v of what was %v", out, x.Type)
	}
	n := x.Type.Shape.Elems()
	y := c.scattered(c.filled(graph.Type{DType: x.Type.DType, Shape: c.shape(from.Elems(), 1)}, 0), c.reshape(ix, n),
		c.reshape(x, n, 1), "none")
	y = c.reshape(y, from.Slice()...)
	lo, hi := make([]int, out.Rank()), make([]int, out.Rank())
	for i := range hi {
		hi[i] = out.At(i) - from.At(i)
	}
	return one(c.padded(y, lo, hi, "constant", 0))
}
