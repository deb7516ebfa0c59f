package onnx

import "fusec/graph"

func init() {
	eps := floatAttr("epsilon", 1e-5)
	declare(
		operator{name: "BatchNormalization", min: 5, max: 5, build: buildBatchNorm, attrs: []attr{eps, floatAttr("momentum", 0.9),
			{name: "is_test", def: int64(0), until: 6}, {name: "spatial", def: int64(1), until: 8},
			{name: "training_mode", def: int64(0), from: 14}}},
		operator{name: "InstanceNormalization", min: 3, max: 3, attrs: []attr{eps}, build: func(c *call) []*value {
			x := c.node(0)
			if x.Type.Shape.Rank() < 2 {
				c.refuse("it takes [N,C,...], not %v", x.Type)
			}
			return one(c.add(graph.GroupNorm{Groups: max(x.Type.Shape.At(1), 1), Eps: c.float("epsilon")}, x, c.node(1), c.node(2)))
		}},
		operator{name: "GroupNormalization", min: 3, max: 3, build: buildGroupNorm,
			attrs: []attr{eps, {name: "num_groups", def: required{int64(0)}}, {name: "stash_type", def: int64(1), from: 21}}},
		operator{name: "LayerNormalization", min: 2, max: 3, build: buildLayerNorm,
			attrs: []attr{intAttr("axis", -1), eps, intAttr("stash_type", 1)}},
		operator{name: "RMSNormalization", min: 2, max: 2, build: buildRMSNorm,
			attrs: []attr{intAttr("axis", -1), eps, intAttr("stash_type", 1)}},
		operator{name: "LpNormalization", min: 1, max: 1, build: buildLpNorm, attrs: []attr{intAttr("axis", -1), intAttr("p", 2)}},
		operator{name: "MeanVarianceNormalization", min: 1, max: 1, attrs: []attr{{name: "axes", def: []int64{0, 2, 3}}},
			build: func(c *call) []*value {
				x := c.node(0)
				axes := c.axes(c.ints("axes"), x.Type.Shape.Rank())
				d := c.minus(x, c.reduce(graph.Mean, x, true, axes...))
				v := c.reduce(graph.Mean, c.unary(graph.Square, d), true, axes...)
				return one(c.over(d, c.with(graph.Add, c.unary(graph.Sqrt, v), 1e-9)))
			}},
		operator{name: "LRN", min: 1, max: 1, build: buildLRN, attrs: []attr{floatAttr("alpha", 1e-4), floatAttr("beta", 0.75),
			floatAttr("bias", 1),
			{name: "size", def: required{int64(0)}}}},
	)
}

func buildBatchNorm(c *call) []*value {
	x := c.node(0)
	if c.entry("spatial") != nil && !c.flag("spatial") {
		c.refuse("batch normalization for each pixel is not supported")
	}
	if x.Type.Shape.Rank() == 1 {
		x = c.reshape(x, x.Type.Shape.At(0), 1)
	}
	args := []*graph.Node{x}
	for i := 1; i < 5; i++ {
		args = append(args, c.cast(c.node(i), x.Type.DType))
	}
	if !c.flag("training_mode") {
		y := c.add(graph.BatchNorm{Eps: c.float("epsilon")}, args...)
		return one(c.reshape(y, dims(c.node(0))...))
	}
	// The running variance that the specification asks for is biased; that of the operation is not.
	var axes []int
	for i := range x.Type.Shape.Rank() {
		if i != 1 {
			axes = append(axes, i)
		}
	}
	m := c.float("momentum")
	mean := c.reduce(graph.Mean, x, true, axes...)
	variance := c.reduce(graph.Mean, c.unary(graph.Square, c.minus(x, mean)), false, axes...)
	y := c.add(graph.BatchNorm{Eps: c.float("epsilon"), Momentum: m, Train: true}, args...)
	running := func(old, batch *graph.Node) *graph.Node {
		return c.cast(c.plus(c.scaled(old, m), c.scaled(batch, 1-m)), c.node(3).Type.DType)
	}
	return several(c.reshape(y, dims(c.node(0))...), running(args[3], c.reshape(mean, dims(args[3])...)), running(args[4], variance))
}

// buildGroupNorm has, up to opset 20, a scale and a bias of each group, and since of each channel.
func buildGroupNorm(c *call) []*value {
	x, scale, bias := c.node(0), c.node(1), c.node(2)
	groups := c.int("num_groups")
	if x.Type.Shape.Rank() < 2 || groups < 1 || x.Type.Shape.At(1)%groups != 0 {
		c.refuse("%d groups of %v", groups, x.Type)
	}
	ch := x.Type.Shape.At(1)
	if c.opset < 21 {
		each := func(v *graph.Node) *graph.Node {
			return c.reshape(c.expand(c.reshape(v, groups, 1), c.shape(groups, ch/groups)), ch)
		}
		scale, bias = each(scale), each(bias)
	}
	return one(c.add(graph.GroupNorm{Groups: groups, Eps: c.float("epsilon")}, x, scale, bias))
}

// rows is x as [outer, inner], inner being the axes from the one on that is given, and the size of these.
func (c *call) rows(x *graph.Node) (flat *graph.Node, outer []int, inner int) {
	s := x.Type.Shape
	axis := c.axis(c.int("axis"), s.Rank())
	n, inner, _ := s.Around(axis, s.Rank()-axis)
	outer = s.Slice()
	for i := axis; i < len(outer); i++ {
		outer[i] = 1
	}
	if axis == s.Rank()-1 {
		return x, outer, inner
	}
	return c.reshape(x, n, inner), outer, inner
}

// likeRow brings a scale or a bias, which broadcasts to x, to the shape of a row of x, or returns nil.
func (c *call) likeRow(v, x *graph.Node, inner int) *graph.Node {
	axis := c.axis(c.int("axis"), x.Type.Shape.Rank())
	row := c.shape(x.Type.Shape.Slice()[axis:]...)
	for v.Type.Shape.Rank() > row.Rank() && v.Type.Shape.At(0) == 1 {
		v = c.reshape(v, dims(v)[1:]...)
	}
	if v.Type.Shape.Rank() > row.Rank() {
		return nil
	}
	return c.reshape(c.expand(v, row), inner)
}

func buildLayerNorm(c *call) []*value {
	x := c.node(0)
	eps := c.float("epsilon")
	flat, outer, inner := c.rows(x)
	last := flat.Type.Shape.Rank() - 1
	bias := c.scalar(x.Type.DType, 0)
	if c.there(2) {
		bias = c.node(2)
	}
	gamma, beta := c.likeRow(c.node(1), x, inner), c.likeRow(bias, x, inner)
	var y *graph.Node
	if gamma != nil && beta != nil {
		y = c.reshape(c.add(graph.LayerNorm{Eps: eps}, flat, gamma, beta), dims(x)...)
	} else { // they differ by row
		y = c.add(graph.LayerNorm{Eps: eps}, flat, c.filled(graph.TypeOf(x.Type.DType, inner), 1),
			c.filled(graph.TypeOf(x.Type.DType, inner), 0))
		y = c.plus(c.mul(c.reshape(y, dims(x)...), c.node(1)), bias)
	}
	if len(c.proto.GetOutput()) < 2 {
		return one(y)
	}
	mean := c.reduce(graph.Mean, flat, true, last)
	v := c.reduce(graph.Mean, c.unary(graph.Square, c.minus(flat, mean)), true, last)
	return several(y, c.reshape(mean, outer...), c.reshape(c.unary(graph.Rsqrt, c.with(graph.Add, v, eps)), outer...))
}

func buildRMSNorm(c *call) []*value {
	x := c.node(0)
	flat, _, inner := c.rows(x)
	if gamma := c.likeRow(c.node(1), x, inner); gamma != nil {
		return one(c.reshape(c.add(graph.RMSNorm{Eps: c.float("epsilon")}, flat, gamma), dims(x)...))
	}
	y := c.add(graph.RMSNorm{Eps: c.float("epsilon")}, flat, c.filled(graph.TypeOf(x.Type.DType, inner), 1))
	return one(c.mul(c.reshape(y, dims(x)...), c.node(1)))
}

func buildLpNorm(c *call) []*value {
	x := c.node(0)
	axis := c.axis(c.int("axis"), x.Type.Shape.Rank())
	var n *graph.Node
	switch p := c.int("p"); p {
	case 1:
		n = c.reduce(graph.Sum, c.unary(graph.Abs, x), true, axis)
	case 2:
		n = c.unary(graph.Sqrt, c.reduce(graph.Sum, c.unary(graph.Square, x), true, axis))
	default:
		c.refuse("attribute \"p\" is %d", p)
	}
	zero := c.with(graph.Eq, n, 0)
	return one(c.choose(zero, c.scalar(x.Type.DType, 0), c.over(x, n)))
}

// buildLRN divides by a power of the squares in a window of channels.
func buildLRN(c *call) []*value {
	x := c.node(0)
	s, size := x.Type.Shape, c.int("size")
	if s.Rank() < 2 || size < 1 || size > 1<<20 {
		c.refuse("windows of %d channels of %v", size, x.Type)
	}
	before := (size - 1) / 2
	lo, hi := make([]int, s.Rank()), make([]int, s.Rank())
	lo[1], hi[1] = before, size-1-before
	squares := c.pad(c.unary(graph.Square, x), lo, hi, 0)
	var sum *graph.Node
	for i := range size {
		if part := c.slice(squares, 1, i, s.At(1), 1); sum == nil {
			sum = part
		} else {
			sum = c.plus(sum, part)
		}
	}
	below := c.with(graph.Add, c.with(graph.Mul, sum, c.float("alpha")/float64(size)), c.float("bias"))
	return one(c.over(x, c.with(graph.Pow, below, c.float("beta"))))
}
