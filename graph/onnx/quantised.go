package onnx

import (
	"slices"

	"fusec/graph"
)

func init() {
	block := []attr{intAttr("axis", 1), {name: "block_size", def: int64(0), from: 21}, {name: "output_dtype", def: int64(0), from: 21}}
	declare(
		operator{name: "QuantizeLinear", min: 2, max: 3, exact: true, build: buildQuantize,
			attrs: append([]attr{{name: "saturate", def: int64(1), from: 19}, {name: "precision", def: int64(0), from: 23}}, block...)},
		operator{name: "DequantizeLinear", min: 2, max: 3, exact: true, attrs: block, build: buildDequantize},
		operator{name: "DynamicQuantizeLinear", min: 1, max: 1, build: buildDynamicQuantize},
		operator{name: "MatMulInteger", min: 2, max: 4, exact: true, build: func(c *call) []*value {
			return one(c.product(c.centred(0, 2, -2), c.centred(1, 3, -1), graph.I32))
		}},
		operator{name: "QLinearMatMul", min: 8, max: 8, exact: true, build: func(c *call) []*value {
			y := c.product(c.centred(0, 2, -2), c.centred(3, 5, -1), graph.F64)
			rank := y.Type.Shape.Rank()
			s := c.mul(c.along(c.wide64(1), rank, -2), c.along(c.wide64(4), rank, -1))
			return one(c.rounded(c.mul(y, c.over(s, c.along(c.wide64(6), rank, -2))), c.along(c.node(7), rank, -2)))
		}},
		operator{name: "ConvInteger", min: 2, max: 4, exact: true, attrs: convolutionAttrs, build: func(c *call) []*value {
			return one(c.cast(c.convolution(c.centred(0, 2, -1), c.centred(1, 3, 0)), graph.I32))
		}},
		operator{name: "QLinearConv", min: 8, max: 9, exact: true, attrs: convolutionAttrs, build: func(c *call) []*value {
			y := c.convolution(c.centred(0, 2, -1), c.centred(3, 5, 0))
			if c.there(8) {
				y = c.plus(y, c.perChannel(c.cast(c.node(8), graph.F64), y))
			}
			rank := y.Type.Shape.Rank()
			s := c.mul(c.along(c.wide64(1), rank, 1), c.along(c.wide64(4), rank, 1))
			return one(c.rounded(c.mul(y, c.over(s, c.along(c.wide64(6), rank, 1))), c.along(c.node(7), rank, 1)))
		}},
	)
}

// wide64 is operand i in f64.
func (c *call) wide64(i int) *graph.Node { return c.cast(c.node(i), graph.F64) }

// along brings a scale or a zero point of one element to a scalar, and a vector to the shape in which it broadcasts along an
// axis of a tensor of the given rank.
func (c *call) along(v *graph.Node, rank, axis int) *graph.Node {
	s := v.Type.Shape
	switch {
	case s.Elems() == 1 && s.Rank() <= 1:
		return c.reshape(v)
	case s.Rank() != 1:
		return v
	}
	axis = c.axis(axis, rank)
	to := slices.Repeat([]int{1}, rank-axis)
	to[0] = s.At(0)
	return c.reshape(v, to...)
}

// centred is operand i less its zero point, operand zero if that is given, along an axis, in f64, which is exact.
func (c *call) centred(i, zero, axis int) *graph.Node {
	x := c.wide64(i)
	if !c.there(zero) {
		return x
	}
	return c.minus(x, c.along(c.wide64(zero), x.Type.Shape.Rank(), axis))
}

// rounded is x, rounded to the nearest, ties to even, and moved by the zero point, whose type and limits it gets.
func (c *call) rounded(x, zero *graph.Node) *graph.Node {
	d := zero.Type.DType
	if !d.IsInt() {
		c.refuse("quantised values of type %v are not supported", d)
	}
	lo, hi := d.Limits()
	y := c.plus(c.unary(graph.Round, x), c.cast(zero, x.Type.DType))
	return c.cast(c.with(graph.Max, c.with(graph.Min, y, float64(hi)), float64(lo)), d)
}

// blocked brings a scale or a zero point to the shape in which it broadcasts to x: one for all, one for each element of an
// axis, or one for each block of an axis.
func (c *call) blocked(v, x *graph.Node) *graph.Node {
	s := x.Type.Shape
	size := c.int("block_size")
	if c.entry("block_size") == nil || size == 0 {
		if v.Type.Shape.Rank() == 1 && v.Type.Shape.Elems() != 1 {
			return c.along(v, s.Rank(), c.int("axis"))
		}
		return c.along(v, s.Rank(), 0)
	}
	axis := c.axis(c.int("axis"), s.Rank())
	if v.Type.Shape.Rank() != s.Rank() || size < 0 || v.Type.Shape.At(axis) > graph.MaxElems/size ||
		v.Type.Shape.At(axis)*size < s.At(axis) {
		c.refuse("scales %v for %v in blocks of %d", v.Type, x.Type, size)
	}
	outer, _, inner := v.Type.Shape.Around(axis+1, 0)
	wide := c.expand(c.reshape(v, outer, 1, inner), c.shape(outer, size, inner))
	wide = c.reshape(wide, v.Type.Shape.With(axis, v.Type.Shape.At(axis)*size).Slice()...)
	return c.slice(wide, axis, 0, s.At(axis), 1)
}

// quantised are the axis and the blocks of a value of shape s that has the scale and the zero point, if it is not nil, and both
// as the operations have them; ok is false if they are not in the form that these take.
func (c *call) quantised(s graph.Shape, scale, zero *graph.Node) (axis, block int, nodes []*graph.Node, ok bool) {
	each := func(v *graph.Node) *graph.Node { return v }
	switch of := scale.Type.Shape; {
	case c.entry("block_size") != nil && c.int("block_size") > 0:
		axis, block = c.axis(c.int("axis"), s.Rank()), c.int("block_size")
	case of.Elems() == 1 && of.Rank() <= 1:
		each = func(v *graph.Node) *graph.Node { return c.reshape(v) }
	case of.Rank() == 1:
		axis = c.axis(c.int("axis"), s.Rank())
	default:
		return 0, 0, nil, false
	}
	nodes = []*graph.Node{each(scale)}
	if zero != nil {
		if zero.Type.Shape != scale.Type.Shape {
			return 0, 0, nil, false
		}
		nodes = append(nodes, each(zero))
	}
	return axis, block, nodes, true
}

func buildQuantize(c *call) []*value {
	x := c.node(0)
	wide := graph.F32
	if !x.Type.DType.IsReal() {
		wide = graph.F64
	}
	d := graph.U8
	if c.has("output_dtype") && c.int("output_dtype") != 0 {
		var err error
		d, err = elemType(int32(c.int("output_dtype")))
		c.check(err)
	}
	var zero *graph.Node
	if c.there(2) {
		zero = c.node(2)
		d = zero.Type.DType
	}
	scale := c.cast(c.node(1), wide)
	of := zero
	if d.IsStored() && d != graph.I4 {
		of = nil // it is 0
	}
	if axis, block, nodes, ok := c.quantised(x.Type.Shape, scale, of); ok && d.Quantizes() {
		return one(c.sure(c.b.Add(graph.Quantize{To: d, Axis: axis, Block: block}, append([]*graph.Node{c.cast(x, wide)}, nodes...)...)))
	}
	if zero == nil {
		zero = c.scalar(d, 0)
	}
	return one(c.rounded(c.over(c.cast(x, wide), c.blocked(scale, x)), c.blocked(zero, x)))
}

func buildDequantize(c *call) []*value {
	x, scale := c.node(0), c.node(1)
	d := scale.Type.DType
	if c.has("output_dtype") && c.int("output_dtype") != 0 {
		var err error
		d, err = elemType(int32(c.int("output_dtype")))
		c.check(err)
	}
	var zero *graph.Node
	if c.there(2) {
		zero = c.node(2)
	}
	of, t := zero, x.Type.DType
	if t.IsStored() && t != graph.I4 {
		of = nil // it is 0
	}
	scale = c.cast(scale, graph.F32)
	if axis, block, nodes, ok := c.quantised(x.Type.Shape, scale, of); ok && (t.Quantizes() || t == graph.I32) {
		return one(c.cast(c.sure(c.b.Add(graph.Dequantize{Axis: axis, Block: block}, append([]*graph.Node{x}, nodes...)...)), d))
	}
	y := c.cast(x, graph.F32)
	if zero != nil {
		y = c.minus(y, c.blocked(c.cast(zero, graph.F32), x))
	}
	return one(c.cast(c.mul(y, c.blocked(scale, x)), d))
}

// buildDynamicQuantize quantises to u8 by the range of x, in which 0 is.
func buildDynamicQuantize(c *call) []*value {
	x := c.node(0)
	axes := make([]int, x.Type.Shape.Rank())
	for i := range axes {
		axes[i] = i
	}
	lo := c.with(graph.Min, c.reduce(graph.MinOf, x, false, axes...), 0)
	hi := c.with(graph.Max, c.reduce(graph.MaxOf, x, false, axes...), 0)
	scale := c.with(graph.Div, c.minus(hi, lo), 255)
	zero := c.rounded(c.over(c.unary(graph.Neg, lo), scale), c.scalar(graph.U8, 0))
	return several(c.rounded(c.over(x, scale), zero), scale, zero)
}
