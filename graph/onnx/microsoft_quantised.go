package onnx

import (
	"fusec/graph"
)

// Operators of com.microsoft on quantised numbers. ONNX Runtime's quantisation writes them: those of the main domain with other
// defaults, and elementwise operators between a dequantisation and a quantisation.

func init() {
	axis, last := []attr{intAttr("axis", 1)}, intAttr("channels_last", 0)
	// as is an operator of the main domain, of an opset, on quantised numbers: x, its scale and zero point, and those of the result.
	as := func(name string, opset int) func(c *call) []*value {
		return func(c *call) []*value {
			if c.entry("channels_last") != nil && c.flag("channels_last") {
				c.refuse("channels as the last axis are not supported")
			}
			return one(c.requantised(c.as(name, opset, c.dequantised(0, 1, 2)), 3, 4))
		}
	}
	both := func(f graph.BinaryFn) func(c *call) []*value {
		return func(c *call) []*value {
			return one(c.requantised(c.binary(f, c.dequantised(0, 1, 2), c.dequantised(3, 4, 5)), 6, 7))
		}
	}
	rows := []operator{
		{name: "QuantizeLinear", min: 2, max: 3, exact: true, attrs: axis, build: buildQuantize},
		{name: "DequantizeLinear", min: 2, max: 3, exact: true, attrs: axis, build: buildDequantize},
		{name: "QLinearAdd", min: 2, max: 8, build: both(graph.Add)},
		{name: "QLinearMul", min: 2, max: 8, build: both(graph.Mul)},
		{name: "QLinearSigmoid", min: 2, max: 5, build: as("Sigmoid", 13)},
		{name: "QLinearLeakyRelu", min: 2, max: 5, attrs: []attr{floatAttr("alpha", 0.01)}, build: as("LeakyRelu", 16)},
		{name: "QLinearGlobalAveragePool", min: 2, max: 5, attrs: []attr{last}, build: as("GlobalAveragePool", 1)},
		{name: "QLinearAveragePool", min: 2, max: 5, build: as("AveragePool", 18),
			attrs: append([]attr{last, intAttr("ceil_mode", 0), intAttr("count_include_pad", 0)}, poolAttrs...)},
		{name: "QLinearSoftmax", min: 2, max: 5, attrs: []attr{intAttr("axis", -1), {name: "opset", def: required{int64(0)}}},
			build: func(c *call) []*value { return as("Softmax", c.int("opset"))(c) }},
		{name: "QLinearWhere", min: 9, max: 9, build: func(c *call) []*value {
			return one(c.requantised(c.choose(c.node(0), c.dequantised(1, 2, 3), c.dequantised(4, 5, 6)), 7, 8))
		}},
		{name: "QLinearConcat", min: 5, max: -1, attrs: []attr{{name: "axis", def: required{int64(0)}}}, build: func(c *call) []*value {
			var all []*graph.Node
			for i := 2; i < len(c.args); i += 3 {
				all = append(all, c.dequantised(i, i+1, i+2))
			}
			return one(c.requantised(c.as("Concat", 13, all...), 0, 1))
		}},
		{name: "QGemm", min: 2, max: 9, attrs: []attr{floatAttr("alpha", 1), intAttr("transA", 0), intAttr("transB", 0)},
			build: buildQGemm},
		{name: "MatMulIntegerToFloat", min: 4, max: 7, build: func(c *call) []*value {
			return one(c.toFloat(c.product(c.factors(0, 4, 1, 5)), c.node(2), 3, 6))
		}},
		{name: "DynamicQuantizeMatMul", min: 3, max: 5, build: func(c *call) []*value {
			x := buildDynamicQuantize(c)
			d := *c
			d.args = []*value{x[0], c.args[1], x[2], nil}
			if c.there(3) {
				d.args[3] = c.args[3]
			}
			return one(c.toFloat(c.product(d.factors(0, 2, 1, 3)), x[1].node, 2, 4))
		}},
		{name: "DynamicQuantizeLSTM", min: 3, max: 12, build: buildQuantisedLSTM,
			attrs: append([]attr{intAttr("input_forget", 0)}, recurrentAttrs...)},
		{name: "QAttention", min: 5, max: 9, attrs: selfAttentionAttrs, build: buildQAttention},
		{name: "QEmbedLayerNormalization", min: 1, max: 18, attrs: []attr{floatAttr("epsilon", 1e-12)}, build: func(c *call) []*value {
			c.node(17) // all others have indices before it
			d := *c
			d.args = make([]*value, 8)
			d.args[0], d.args[1], d.args[7] = c.args[0], c.args[1], c.args[7]
			for i := 2; i < 7; i++ {
				if c.there(i) {
					d.args[i] = &value{node: c.dequantised(i, i+6, i+11)}
				}
			}
			return buildEmbed(&d)[:2]
		}},
	}
	for _, r := range rows {
		r.domain = microsoft
		declare(r)
	}
}

// as is what another operator of the main domain, of an opset, computes of operands with the attributes of this node.
func (c *call) as(name string, opset int, args ...*graph.Node) *graph.Node {
	d := *c
	d.row, d.opset, d.args = operators[operatorKey{"", name}], opset, several(args...)
	return d.row.build(&d)[0].node
}

// dequantised are the numbers that operand i stores, with a scale and a zero point that are operands, too.
func (c *call) dequantised(i, scale, zero int) *graph.Node {
	args := []*graph.Node{c.node(i), c.reshape(c.in(graph.F32, scale))}
	if z := c.zeroPoint(zero); z != nil {
		args = append(args, c.reshape(z))
	}
	return c.add(graph.Dequantize{}, args...)
}

// requantised stores numbers with a scale and a zero point that are operands. Without one they have the type of the first operand.
func (c *call) requantised(y *graph.Node, scale, zero int) *graph.Node {
	args, d := []*graph.Node{y, c.reshape(c.in(graph.F32, scale))}, c.node(0).Type.DType
	if c.there(zero) {
		d = c.node(zero).Type.DType
	}
	if z := c.zeroPoint(zero); z != nil {
		args = append(args, c.reshape(z))
	}
	return c.add(graph.Quantize{To: d}, args...)
}

// toFloat is a sum of products of integers times its scales, one that is given and operand scale, one or one for each column, plus
// operand bias, if that is given.
func (c *call) toFloat(y, first *graph.Node, scale, bias int) *graph.Node {
	rank := y.Type.Shape.Rank()
	s := c.mul(c.along(c.cast(first, graph.F32), rank, -2), c.along(c.in(graph.F32, scale), rank, -1))
	y = c.mul(c.cast(y, graph.F32), s)
	if c.there(bias) {
		y = c.plus(y, c.node(bias))
	}
	return y
}

// buildQGemm is α·(A·B + C) times the scales of A and B, quantised if the result has a scale.
func buildQGemm(c *call) []*value {
	a, b := c.node(0), c.node(3)
	if a.Type.Shape.Rank() != 2 || b.Type.Shape.Rank() != 2 {
		c.refuse("a product of %v and %v, which are not matrices", a.Type, b.Type)
	}
	transA, transB := c.flag("transA"), c.flag("transB")
	columns := -1 // the axis of b that is the columns of the result
	if transB {
		columns = -2
	}
	terms := a.Type.Shape.At(1)
	if transA {
		terms = a.Type.Shape.At(0)
	}
	d := sumsIn(a, b, terms)
	y := c.matmul(c.centred(0, 2, -2, d), c.centred(3, 5, columns, d), transA, transB)
	if c.there(6) {
		y = c.plus(y, c.expand(c.in(d, 6), y.Type.Shape))
	}
	y = c.scaled(c.toFloat(y, c.node(1), 4, -1), c.float("alpha"))
	if !c.there(7) {
		return one(y)
	}
	return one(c.requantised(y, 7, 8))
}

// buildQuantisedLSTM is an LSTM with weights [D,·,4·H] that are stored in 8 bits, with a scale and a zero point for each direction,
// or for each of its columns. Inputs and states stay in f32, which ONNX Runtime rounds to 8 bits in each step.
func buildQuantisedLSTM(c *call) []*value {
	weights := func(i, scale, zero int) *value {
		q, s, z := c.node(i), c.in(graph.F32, scale), c.in(graph.F32, zero)
		each := func(v *graph.Node) *graph.Node { // of [D] or [D,4·H]
			if v.Type.Shape.Rank() == 0 || q.Type.Shape.Rank() != 3 || v.Type.Shape.At(0) != q.Type.Shape.At(0) {
				c.refuse("scales or zero points %v for weights %v", v.Type, q.Type)
			}
			return c.reshape(v, v.Type.Shape.At(0), 1, v.Type.Shape.Elems()/max(v.Type.Shape.At(0), 1))
		}
		return &value{node: c.transpose(c.mul(c.minus(c.cast(q, graph.F32), each(z)), each(s)), 0, 2, 1)}
	}
	d := *c
	d.row, d.opset = operators[operatorKey{"", "LSTM"}], 7
	d.args = append([]*value{c.args[0], weights(1, 8, 9), weights(2, 10, 11)}, c.args[3:8]...)
	return d.row.build(&d)
}

// buildQAttention is the operator Attention with the product of the input and the weights in integers.
func buildQAttention(c *call) []*value {
	y := c.toFloat(c.product(c.factors(0, 6, 1, 7)), c.node(3), 4, 2)
	d := *c
	d.args = []*value{nil, nil, nil, nil, nil, nil}
	if c.there(5) {
		d.args[3] = c.args[5]
	}
	if c.there(8) {
		d.args[4] = c.args[8]
	}
	return d.attentionOf(y)
}
