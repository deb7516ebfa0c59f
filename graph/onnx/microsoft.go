package onnx

import (
	"fusec/graph"
)

// microsoft is the domain of the operators that ONNX Runtime adds, whose specification is
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
const microsoft = "com.microsoft"

func init() {
	number := func(name string) attr { return attr{name: name, def: required{int64(0)}} }
	eps := floatAttr("epsilon", 1e-12)
	rows := []operator{
		{name: "Gelu", min: 1, max: 1, build: func(c *call) []*value { return one(c.unary(graph.GeluErf, c.node(0))) }},
		{name: "BiasGelu", min: 2, max: 2, build: func(c *call) []*value {
			return one(c.unary(graph.GeluErf, c.plus(c.node(0), c.node(1))))
		}},
		{name: "FastGelu", min: 1, max: 2, build: func(c *call) []*value {
			x := c.node(0)
			if c.there(1) {
				x = c.plus(x, c.node(1))
			}
			return one(c.unary(graph.GeluTanh, x))
		}},
		{name: "QuickGelu", min: 1, max: 1, attrs: []attr{floatAttr("alpha", 1.702)}, build: func(c *call) []*value {
			x := c.node(0)
			return one(c.mul(x, c.unary(graph.Sigmoid, c.scaled(x, c.float("alpha")))))
		}},
		{name: "FusedMatMul", min: 2, max: 2, exact: true, build: buildFusedMatMul, attrs: []attr{floatAttr("alpha", 1),
			intAttr("transA", 0), intAttr("transB", 0), intAttr("transBatchA", 0), intAttr("transBatchB", 0)}},
		{name: "FusedGemm", min: 2, max: 3, attrs: []attr{floatAttr("alpha", 1), floatAttr("beta", 1), intAttr("transA", 0),
			intAttr("transB", 0), {name: "activation", def: ""}, floatAttr("activation_alpha", 0), floatAttr("activation_beta", 0),
			floatAttr("activation_gamma", 0)}, build: func(c *call) []*value {
			return one(c.activated(buildGemm(c)[0].node, c.float("activation_alpha"), c.float("activation_beta")))
		}},
		{name: "FusedConv", min: 2, max: 4, build: buildFusedConv,
			attrs: append([]attr{{name: "activation", def: ""}, {name: "activation_params", def: []float64(nil)}},
				convolutionAttrs...)},
		{name: "MatMulNBits", min: 3, max: 6, build: buildMatMulNBits, attrs: []attr{number("K"), number("N"), intAttr("bits", 4),
			number("block_size"), intAttr("accuracy_level", 0), intAttr("weight_prepacked", 0)}},
		{name: "SkipLayerNormalization", min: 3, max: 5, attrs: []attr{eps}, build: func(c *call) []*value {
			x, gamma := c.skipped(4), c.node(2)
			beta := c.filled(gamma.Type, 0)
			if c.there(3) {
				beta = c.node(3)
			}
			return several(c.add(graph.LayerNorm{Eps: c.float("epsilon")}, x, gamma, beta), nil, nil, x)
		}},
		{name: "SkipSimplifiedLayerNormalization", min: 3, max: 4, attrs: []attr{eps}, build: func(c *call) []*value {
			x := c.skipped(3)
			return several(c.add(graph.RMSNorm{Eps: c.float("epsilon")}, x, c.node(2)), nil, nil, x)
		}},
		{name: "EmbedLayerNormalization", min: 1, max: 9, attrs: []attr{eps, intAttr("mask_index_type", 0)}, build: buildEmbed},
		{name: "RotaryEmbedding", min: 4, max: 4, build: buildContributedRotary, attrs: []attr{intAttr("interleaved", 0),
			intAttr("is_packed_batching", 0), intAttr("num_heads", 0), intAttr("rotary_embedding_dim", 0), floatAttr("scale", 1)}},
	}
	for _, r := range rows {
		r.domain = microsoft
		declare(r)
	}
	// ONNX Runtime has it in the main domain.
	declare(operator{name: "SimplifiedLayerNormalization", min: 2, max: 2, build: buildRMSNorm,
		attrs: []attr{intAttr("axis", -1), floatAttr("epsilon", 1e-5), intAttr("stash_type", 1)}})
}

// activated applies the function that the attribute "activation" names.
func (c *call) activated(x *graph.Node, params ...float64) *graph.Node {
	param := func(i int, def float64) float64 {
		if i < len(params) {
			return params[i]
		}
		return def
	}
	switch name := c.string("activation"); name {
	case "":
		return x
	case "Relu":
		return c.unary(graph.Relu, x)
	case "Tanh":
		return c.unary(graph.Tanh, x)
	case "Sigmoid":
		return c.unary(graph.Sigmoid, x)
	case "LeakyRelu":
		return c.add(graph.Unary{Fn: graph.LeakyRelu, Alpha: param(0, 0.01)}, x)
	case "HardSigmoid":
		return c.hardSigmoid(x, param(0, 0.2), param(1, 0.5))
	case "Clip":
		if len(params) != 2 {
			c.refuse("the bounds of a Clip are %v", params)
		}
		return c.with(graph.Min, c.with(graph.Max, x, params[0]), params[1])
	default:
		c.refuse("the activation %q is not supported", name)
	}
	return nil
}

// buildFusedConv is a convolution plus a bias plus a tensor of the shape of the result, and an activation of that.
func buildFusedConv(c *call) []*value {
	y := c.biasedConvolution()
	if c.there(3) {
		y = c.plus(y, c.node(3))
	}
	return one(c.activated(y, c.floats("activation_params")...))
}

// buildFusedMatMul is α·A·B. An operand is transposed in its last two axes, and before that, by transBatch, its first axis
// is put before the last.
func buildFusedMatMul(c *call) []*value {
	operand := func(i int, batch string) *graph.Node {
		x := c.node(i)
		r := x.Type.Shape.Rank()
		if !c.flag(batch) || r < 3 {
			return x
		}
		var perm []int
		for axis := 1; axis < r-1; axis++ {
			perm = append(perm, axis)
		}
		return c.transpose(x, append(perm, 0, r-1)...)
	}
	x, y := operand(0, "transBatchA"), operand(1, "transBatchB")
	d := x.Type.DType
	transX, transY := c.flag("transA"), c.flag("transB")
	if x.Type.Shape.Rank() < 2 || y.Type.Shape.Rank() < 2 { // a vector has no transpose
		return one(c.cast(c.scaled(c.product(c.wide(x), c.wide(y), c.wide(x).Type.DType), c.float("alpha")), d))
	}
	return one(c.cast(c.scaled(c.matmul(x, y, transX, transY), c.float("alpha")), d))
}

// skipped is the sum of the first two operands, and of a bias, operand bias, if it is given. The second may lack the
// batch or have one of size 1.
func (c *call) skipped(bias int) *graph.Node {
	x, skip := c.node(0), c.node(1)
	if c.commonShape(x, skip) != x.Type.Shape {
		c.refuse("operands %v and %v", x.Type, skip.Type)
	}
	x = c.plus(x, skip)
	if c.there(bias) {
		x = c.plus(x, c.node(bias))
	}
	return x
}

// unpacked are the numbers of so many bits in bytes [..., n], the lowest bits first, as [..., n·8÷bits].
func (c *call) unpacked(x *graph.Node, bits int) *graph.Node {
	if x.Type.DType != graph.U8 || x.Type.Shape.Rank() == 0 {
		c.refuse("packed numbers are u8[...], not %v", x.Type)
	}
	if bits == 8 {
		return x
	}
	d := dims(x)
	var parts []*graph.Node
	for at := 0; at < 8; at += bits {
		part := x
		if at > 0 {
			part = c.with(graph.Div, x, float64(int(1)<<at))
		}
		if at+bits < 8 {
			base := float64(int(1) << bits)
			part = c.minus(part, c.with(graph.Mul, c.with(graph.Div, part, base), base))
		}
		parts = append(parts, c.reshape(part, append(dims(part), 1)...))
	}
	d[len(d)-1] *= 8 / bits
	return c.reshape(c.concat(len(d), parts...), d...)
}

// few are weights [n, k] of four or eight bits as dequantize reads them, or nil if they or their zero points are not known when the
// model is read, or have another form. What is stored without a sign has a zero point that is half its range more.
func (c *call) few(packed *graph.Node, k, n, bits, block, blocks int) *graph.Node {
	bytes := c.valueOf(packed)
	if bits < 4 || bytes == nil || packed.Type.DType != graph.U8 || c.node(2).Type.Shape.Elems() != n*blocks {
		return nil
	}
	signed := func(cols, row int, b []uint8) *graph.Node { // rows of so many numbers in so many bytes
		if bits == 8 {
			t := graph.NewTensor(graph.TypeOf(graph.I8, n, cols))
			for i := range n * cols {
				t.Data.([]int8)[i] = int8(b[i/cols*row+i%cols] ^ 0x80)
			}
			return c.stored(t)
		}
		t := graph.NewTensor(graph.TypeOf(graph.I4, n, cols))
		for i := range n * cols {
			graph.SetNibble(t.Data.([]uint8), i, graph.Nibble(b, i/cols*row*2+i%cols)^-8)
		}
		return c.stored(t)
	}
	scale := c.cast(c.reshape(c.node(2), n, blocks), graph.F32)
	args := []*graph.Node{nil, scale}
	if c.there(3) {
		zero := c.valueOf(c.node(3))
		row := (blocks*bits + 7) / 8 // bytes
		if zero == nil || zero.Type.DType != graph.U8 || zero.Type.Shape.Elems() != n*row {
			return nil
		}
		args = append(args, signed(blocks, row, zero.Data.([]uint8)))
	}
	args[0] = signed(k, blocks*block*bits/8, bytes.Data.([]uint8))
	return c.sure(c.b.Add(graph.Dequantize{Axis: 1, Block: block}, args...))
}

// stored is a value that is known when the model is read: a parameter.
func (c *call) stored(t *graph.Tensor) *graph.Node {
	n, err := c.m.nodeOf(&value{name: c.proto.GetName() + ".weights", tensor: t})
	c.check(err)
	return n
}

// buildMatMulNBits multiplies x [...,K] by the transpose of weights [N,K] of few bits, which have a scale and a zero point
// for each block of a row. What is computed of the weights alone is computed once where they are frozen.
func buildMatMulNBits(c *call) []*value {
	x, packed := c.node(0), c.node(1)
	k, n, bits, block := c.int("K"), c.int("N"), c.int("bits"), c.int("block_size")
	if bits != 2 && bits != 4 && bits != 8 {
		c.refuse("weights of %d bits are not supported", bits)
	}
	if c.flag("weight_prepacked") {
		c.refuse("weights in the layout of a device are not supported")
	}
	if c.there(4) {
		c.refuse("an order of the groups, operand 4, is not supported")
	}
	if k < 1 || n < 1 || k > graph.MaxElems/n || block < 1 || block > 1<<20 || block*bits%8 != 0 {
		c.refuse("weights [%d,%d] in blocks of %d", n, k, block)
	}
	blocks := (k + block - 1) / block
	if packed.Type != graph.TypeOf(graph.U8, n, blocks, block*bits/8) {
		c.refuse("weights %v; [%d,%d] in blocks of %d are u8[%d,%d,%d]", packed.Type, n, k, block, n, blocks, block*bits/8)
	}
	each := func(v *graph.Node) *graph.Node { // one for each block
		if v.Type.Shape.Elems() != n*blocks {
			c.refuse("%v for %d blocks", v.Type, n*blocks)
		}
		return c.cast(c.reshape(v, n, blocks, 1), graph.F32)
	}
	if w := c.few(packed, k, n, bits, block, blocks); w != nil {
		return c.withBias(x, w)
	}
	w := c.cast(c.unpacked(packed, bits), graph.F32)
	if c.there(3) && c.node(3).Type.DType == graph.U8 {
		row := (blocks*bits + 7) / 8 // bytes
		zero := c.node(3)
		if zero.Type.Shape.Elems() != n*row {
			c.refuse("zero points %v for %d rows of %d blocks", zero.Type, n, blocks)
		}
		w = c.minus(w, each(c.slice(c.unpacked(c.reshape(zero, n, row), bits), 1, 0, blocks, 1)))
	} else if c.there(3) {
		w = c.minus(w, each(c.node(3)))
	} else {
		w = c.with(graph.Sub, w, float64(int(1)<<(bits-1)))
	}
	return c.withBias(x, c.slice(c.reshape(c.mul(w, each(c.node(2))), n, blocks*block), 1, 0, k, 1))
}

// withBias multiplies x by the transpose of weights, and adds operand 5 if it is given.
func (c *call) withBias(x, w *graph.Node) []*value {
	y := c.matmul(x, w, false, true)
	if c.there(5) {
		y = c.plus(y, c.node(5))
	}
	return one(y)
}

// buildEmbed is the norm of the sum of the embeddings of words, positions and, if given, segments. Result 1 is the number of
// words of each sentence that the mask has, and result 2 the sum.
func buildEmbed(c *call) []*value {
	ids := c.node(0)
	if ids.Type.Shape.Rank() != 2 {
		c.refuse("it takes [B,S], not %v", ids.Type)
	}
	batch, n := ids.Type.Shape.At(0), ids.Type.Shape.At(1)
	rows := func(table int, ix *graph.Node) *graph.Node {
		t := c.node(table)
		if t.Type.Shape.Rank() != 2 {
			c.refuse("a table %v", t.Type)
		}
		return c.gather(t, c.counted(ix, t.Type.Shape.At(0)), 0)
	}
	sum := rows(2, ids)
	if c.there(8) {
		sum = c.plus(sum, rows(3, c.node(8)))
	} else {
		positions := c.node(3)
		if positions.Type.Shape.Rank() != 2 || positions.Type.Shape.At(0) < n {
			c.refuse("embeddings %v for %d positions", positions.Type, n)
		}
		sum = c.plus(sum, c.slice(positions, 0, 0, n, 1))
	}
	if c.there(1) && c.there(4) {
		sum = c.plus(sum, rows(4, c.node(1)))
	}
	count := c.filled(graph.TypeOf(graph.I32, batch), 0)
	if c.there(7) {
		count = c.reduce(graph.Sum, c.node(7), false, 1)
	}
	return several(c.add(graph.LayerNorm{Eps: c.float("epsilon")}, sum, c.node(5), c.node(6)), count, sum)
}

// buildContributedRotary has the position of the first token, or the position of each, before the tables.
func buildContributedRotary(c *call) []*value {
	x, at := c.node(0), c.cast(c.node(1), graph.I64)
	n := c.int("rotary_embedding_dim")
	if c.flag("is_packed_batching") || c.float("scale") != 1 {
		c.refuse("packed batches and scales are not supported")
	}
	flat := x.Type.Shape.Rank() == 3
	if flat {
		heads, tables := c.int("num_heads"), c.node(2).Type.Shape
		if heads == 0 && tables.Rank() == 2 && tables.At(1) > 0 {
			heads = x.Type.Shape.At(2) / (2 * tables.At(1))
		}
		x = c.split(x, heads)
	}
	if x.Type.Shape.Rank() != 4 {
		c.refuse("it takes [B,S,H·D] or [B,H,S,D], not %v", x.Type)
	}
	if s := x.Type.Shape.At(2); at.Type.Shape.Elems() == 1 {
		at = c.plus(c.reshape(at, 1, 1), c.counting(graph.ShapeOf(1, s), 1))
	}
	y := c.rotated(x, c.atPositions(c.node(2), at), c.atPositions(c.node(3), at), n, c.flag("interleaved"))
	if flat {
		y = c.joined(y)
	}
	return one(y)
}
