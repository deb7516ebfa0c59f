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
		operator{name: "DequantizeLinear", min: 2, max: 3, exact: true, attrs: block, build: buildDequantize, unsigned: true},
		operator{name: "DynamicQuantizeLinear", min: 1, max: 1, build: buildDynamicQuantize},
		operator{name: "MatMulInteger", min: 2, max: 4, exact: true, build: func(c *call) []*value {
			return one(c.integral(c.product(c.factors(0, 2, 1, 3)), graph.I32))
		}},
		operator{name: "QLinearMatMul", min: 8, max: 8, exact: true, build: func(c *call) []*value {
			y := c.product(c.factors(0, 2, 3, 5))
			rank, d := y.Type.Shape.Rank(), y.Type.DType
			s := c.mul(c.along(c.in(d, 1), rank, -2), c.along(c.in(d, 4), rank, -1))
			return one(c.rounded(c.mul(y, c.over(s, c.along(c.in(d, 6), rank, -2))), c.along(c.node(7), rank, -2)))
		}},
		operator{name: "ConvInteger", min: 2, max: 4, exact: true, attrs: convolutionAttrs, build: func(c *call) []*value {
			return one(c.integral(c.convolution(c.filterFactors(0, 2, 1, 3)), graph.I32))
		}},
		operator{name: "QLinearConv", min: 8, max: 9, exact: true, attrs: convolutionAttrs, build: func(c *call) []*value {
			y := c.convolution(c.filterFactors(0, 2, 3, 5))
			d := y.Type.DType
			if c.there(8) {
				y = c.plus(y, c.perChannel(c.in(d, 8), y))
			}
			rank := y.Type.Shape.Rank()
			s := c.mul(c.along(c.in(d, 1), rank, 1), c.along(c.in(d, 4), rank, 1))
			return one(c.rounded(c.mul(y, c.over(s, c.along(c.in(d, 6), rank, 1))), c.along(c.node(7), rank, 1)))
		}},
	)
}

// in is operand i in an element type.
func (c *call) in(d graph.DType, i int) *graph.Node { return c.cast(c.node(i), d) }

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

// zeroPoint is operand i, or nil if it is left out or known to be 0.
func (c *call) zeroPoint(i int) *graph.Node {
	if !c.there(i) {
		return nil
	}
	z := c.node(i)
	if t := c.valueOf(z); t != nil && t.Type.DType.IsInt() {
		for k := range t.Type.Shape.Elems() {
			if t.Int(k) != 0 {
				return z
			}
		}
		return nil
	}
	return z
}

// isWeight reports whether a value is part of the model.
func isWeight(n *graph.Node) bool {
	switch n.Op.(type) {
	case graph.Param, graph.Const:
		return true
	}
	return false
}

// exactInF32 is how many products of two numbers of 8 bits, each less its zero point, have a sum that f32 represents in any case.
const exactInF32 = 1 << 24 / (255 * 255)

// sumsIn is the type in which so many products of integers x and w are added. Products with weights are added in f32, in which
// targets multiply by weights of few bits as they are stored; it represents sums up to 2²⁴.
func sumsIn(x, w *graph.Node, terms int) graph.DType {
	if isWeight(w) || isWeight(x) || terms <= exactInF32 && x.Type.DType.Size() == 1 && w.Type.DType.Size() == 1 {
		return graph.F32
	}
	return graph.F64
}

// factors are the operands of a product of integers, each less its zero point, and the type of its sums.
func (c *call) factors(x, xZero, w, wZero int) (a, b *graph.Node, d graph.DType) {
	a, b = c.node(x), c.node(w)
	terms := 1
	if r := a.Type.Shape.Rank(); r > 0 {
		terms = a.Type.Shape.At(r - 1)
	}
	d = sumsIn(a, b, terms)
	return c.centred(x, xZero, -2, d), c.centred(w, wZero, -1, d), d
}

// filterFactors are those of a convolution.
func (c *call) filterFactors(x, xZero, w, wZero int) (a, b *graph.Node) {
	a, b = c.node(x), c.node(w)
	d := sumsIn(a, b, b.Type.Shape.Elems()/max(append(dims(b), 1)[0], 1))
	return c.centred(x, xZero, -1, d), c.centred(w, wZero, 0, d)
}

// centred is operand i less its zero point, operand zero if that is given, along an axis. A weight stays as it is stored.
func (c *call) centred(i, zero, axis int, d graph.DType) *graph.Node {
	q, z := c.node(i), c.zeroPoint(zero)
	rank := q.Type.Shape.Rank()
	if isWeight(q) && rank > 1 && q.Type.DType.Quantizes() && d == graph.F32 {
		op, scale := graph.Dequantize{}, c.scalar(d, 1)
		var zeros []*graph.Node
		switch at := c.axis(axis, rank); {
		case z == nil:
			return c.add(op, q, scale)
		case z.Type.Shape.Elems() == 1:
			zeros = append(zeros, c.reshape(z))
		case z.Type.Shape == graph.ShapeOf(q.Type.Shape.At(at)):
			op.Axis, scale, zeros = at, c.filled(z.Type.With(d), 1), append(zeros, z)
		}
		if len(zeros) > 0 && z.Type.DType == q.Type.DType {
			return c.add(op, q, scale, zeros[0])
		}
	}
	x := c.number(q, d)
	if z == nil {
		return x
	}
	return c.minus(x, c.along(c.cast(z, d), rank, axis))
}

// rounded is x, rounded to the nearest, ties to even, and moved by the zero point, whose type and limits it gets.
func (c *call) rounded(x, zero *graph.Node) *graph.Node {
	d := zero.Type.DType
	if !d.IsInt() {
		c.refuse("quantised values of type %v are not supported", d)
	}
	lo, hi := d.Limits()
	y := c.plus(c.unary(graph.Round, x), c.cast(zero, x.Type.DType))
	return c.integral(c.with(graph.Max, c.with(graph.Min, y, float64(hi)), float64(lo)), d)
}

// integral is x, whole numbers in the range of d, as elements of d.
func (c *call) integral(x *graph.Node, d graph.DType) *graph.Node {
	y := c.cast(x, d)
	c.m.whole[y] = x
	return y
}

// number is x in a floating-point type: what it was cast from, if that is whole numbers.
func (c *call) number(x *graph.Node, d graph.DType) *graph.Node {
	if of := c.m.whole[x]; of != nil && d.IsReal() {
		x = of
	}
	return c.cast(x, d)
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
	of := c.zeroPoint(2)
	if d.IsStored() && d != graph.I4 {
		of = nil // it is 0
	}
	if q := c.again(x, d, scale, of); q != nil {
		return one(q)
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
	scale := c.node(1)
	d := scale.Type.DType
	if c.has("output_dtype") && c.int("output_dtype") != 0 {
		var err error
		d, err = elemType(int32(c.int("output_dtype")))
		c.check(err)
	}
	x, zero := c.withoutSign(scale)
	if x == nil {
		x, zero = c.node(0), c.zeroPoint(2)
	}
	t := x.Type.DType
	if t.IsStored() && t != graph.I4 {
		zero = nil // it is 0
	}
	scale = c.cast(scale, graph.F32)
	if axis, block, nodes, ok := c.quantised(x.Type.Shape, scale, zero); ok && (t.Quantizes() || t == graph.I32) {
		of, views := beforeViews(x)
		if _, ok := of.Op.(graph.Quantize); !ok || nodes[0].Type.Shape.Rank() > 0 {
			of, views = x, nil
		}
		y := c.sure(c.b.Add(graph.Dequantize{Axis: axis, Block: block}, append([]*graph.Node{of}, nodes...)...))
		return one(c.cast(c.viewed(y, views), d))
	}
	y := c.cast(x, graph.F32)
	if zero != nil {
		y = c.minus(y, c.blocked(c.cast(zero, graph.F32), x))
	}
	return one(c.cast(c.mul(y, c.blocked(scale, x)), d))
}

// beforeViews is what n is views of that keep all elements, and these views, the first one first.
func beforeViews(n *graph.Node) (of *graph.Node, views []graph.Op) {
	for {
		switch n.Op.(type) {
		case graph.Reshape, graph.Transpose:
			views = append(views, n.Op)
			n = n.Args[0]
			continue
		}
		slices.Reverse(views)
		return n, views
	}
}

// viewed is x through views.
func (c *call) viewed(x *graph.Node, views []graph.Op) *graph.Node {
	for _, v := range views {
		x = c.add(v, x)
	}
	return x
}

// again is what x stores in elements of d with a scale and a zero point, if x is what was dequantized with the same ones before, in
// another shape; else nil.
func (c *call) again(x *graph.Node, d graph.DType, scale, zero *graph.Node) *graph.Node {
	of, views := beforeViews(x)
	if _, ok := of.Op.(graph.Dequantize); !ok || of.Args[0].Type.DType != d || scale.Type.Shape.Elems() != 1 {
		return nil
	}
	same := func(a, b *graph.Node) bool {
		x, y := c.valueOf(a), c.valueOf(b)
		return x != nil && y != nil && x.Type.Shape.Elems() == 1 && x.Float(0) == y.Float(0)
	}
	if !same(of.Args[1], scale) || (len(of.Args) > 2) != (zero != nil) || zero != nil && !same(of.Args[2], zero) {
		return nil
	}
	return c.viewed(of.Args[0], views)
}

// withoutSign are weights of four bits without a sign, operand 0, and their zero points, operand 2, both less 8, so that they have
// one; nil if operand 0 is none.
func (c *call) withoutSign(scale *graph.Node) (x, zero *graph.Node) {
	if c.args[0].unsigned == nil {
		if c.there(2) && c.args[2].unsigned != nil {
			c.refuse("%w", c.args[2].err)
		}
		return nil, nil
	}
	x = c.stored(c.args[0].unsigned)
	switch {
	case !c.there(2):
		t := graph.NewTensor(scale.Type.With(graph.I4))
		for i := range t.Type.Shape.Elems() {
			graph.SetNibble(t.Data.([]uint8), i, -8)
		}
		return x, c.stored(t)
	case c.args[2].unsigned == nil:
		c.refuse("zero points %v for weights of type UINT4", c.node(2).Type)
	}
	return x, c.stored(c.args[2].unsigned)
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
