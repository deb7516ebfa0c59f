package graphtest

import (
	"math"

	"fusec/graph"
)

// patterns write what passes recognise, in the usual forms, on values of the graph.
var patterns = []func(*generator) *graph.Node{
	(*generator).attentionByHand, (*generator).mixtureByHand, (*generator).linear, (*generator).linear,
	(*generator).activationByHand, (*generator).softmaxByHand, (*generator).normByHand, (*generator).batchNormByHand,
	(*generator).convolution, (*generator).crossEntropy, (*generator).cell, (*generator).embedding,
}

// pattern appends one of the patterns. Sometimes a value inside of it is also read elsewhere, so that it does not
// match.
func (g *generator) pattern() {
	before := len(g.graph.Nodes)
	i := g.r.IntN(len(patterns))
	// A special value that a mask or a gate hides has another effect once the pattern is recognised.
	if g.o.Draw == Special && i < 2 {
		i += 2
	}
	y := patterns[i](g)
	g.check(g.b.Err())
	if g.coin() && len(g.graph.Nodes) > before {
		n := g.graph.Nodes[before+g.r.IntN(len(g.graph.Nodes)-before)]
		if n.Type.DType.IsFloat() {
			g.nodes = append(g.nodes, n)
		}
	}
	g.add(y)
}

func (g *generator) one(of ...int) int { return of[g.r.IntN(len(of))] }

func (g *generator) writer() Writer {
	return Writer{R: g.r, B: g.b, D: g.floatType(), Operand: func(_ string, t graph.Type) *graph.Node { return g.of(t) }}
}

func (g *generator) attentionByHand() *graph.Node {
	w := AttentionWriter{Writer: g.writer(), Heads: g.one(1, 1, 2, 3), Groups: g.one(1, 1, 2, 3), Batch: g.one(1, 1, 2, 3),
		Queries: g.one(1, 1, 3, 5, 8), Keys: g.one(1, 3, 5, 7, 17), Depth: g.one(1, 3, 4, 8), Width: g.one(1, 2, 5, 8)}
	return w.Write()
}

func (g *generator) mixtureByHand() *graph.Node {
	w := MoEWriter{Writer: g.writer(), Experts: g.one(2, 3, 5), Hidden: g.one(1, 2, 5, 8), Result: g.one(1, 2, 3),
		Gated: g.coin(), Bias: g.coin(), Flat: g.coin(),
		Activation: []graph.Unary{{Fn: graph.Relu}, {Fn: graph.Silu}, {Fn: graph.GeluErf}, {Fn: graph.Tanh},
			{Fn: graph.LeakyRelu, Alpha: 0.25}}[g.r.IntN(5)]}
	if g.tame {
		w.Activation = graph.Unary{Fn: graph.Tanh}
	}
	dims := []int{g.one(1, 2, 5)}
	if g.coin() {
		dims = append(dims, g.one(1, 3))
	}
	w.X = g.of(graph.TypeOf(w.D, append(dims, g.one(1, 2, 4))...))
	return w.Write()
}

// linear is act(x·w + b) + r; the bias is a row, a scalar, or has the shape of the product.
func (g *generator) linear() *graph.Node {
	b := g.b
	x := g.ofRank(2, 3)
	n := g.dim()
	var y *graph.Node
	if g.coin() {
		y = b.MatMul(x, g.of(graph.TypeOf(x.Type.DType, last(x), n)), false, false)
	} else {
		y = b.MatMul(x, g.of(graph.TypeOf(x.Type.DType, n, last(x))), false, true)
	}
	switch g.r.IntN(4) {
	case 0:
		y = b.Binary(graph.Add, y, b.Broadcast(g.of(graph.TypeOf(x.Type.DType, n)), y.Type.Shape))
	case 1:
		y = b.Binary(graph.Add, g.of(y.Type), y)
	case 2:
		y = b.Binary(graph.Add, y, g.of(graph.TypeOf(x.Type.DType)))
	}
	if g.coin() {
		y = g.activated(y)
	}
	if g.coin() {
		y = b.Binary(graph.Add, y, g.of(y.Type))
	}
	if g.r.IntN(4) == 0 { // column sums of the product
		b.Output(g.name("y"), b.Reduce(graph.Sum, y, false, 0))
	}
	return y
}

func (g *generator) activationByHand() *graph.Node { return g.activated(g.any()) }

// activated applies an activation that is written out.
func (g *generator) activated(x *graph.Node) *graph.Node {
	b, d := g.b, x.Type.DType
	times := func(x, y *graph.Node) *graph.Node {
		if g.coin() {
			x, y = y, x
		}
		return b.Binary(graph.Mul, x, y)
	}
	compared := func(f graph.BinaryFn) *graph.Node { return b.BinaryScalar(f, x, 0) }
	kind := g.r.IntN(11)
	if g.tame {
		kind = 6 + g.r.IntN(5)
	}
	switch kind {
	case 0:
		return times(x, b.CastTo(d, compared(graph.Gt)))
	case 1:
		return b.BinaryScalar(graph.Max, x, 0)
	case 2:
		return b.Add(graph.Select{}, compared(graph.Gt), x, b.Scalar(d, 0))
	case 3:
		return b.Add(graph.Select{}, compared(graph.Gt), x, b.BinaryScalar(graph.Mul, x, 0.1))
	case 4:
		up, down := times(x, b.CastTo(d, compared(graph.Ge))), times(x, b.CastTo(d, compared(graph.Lt)))
		return b.Binary(graph.Add, up, b.BinaryScalar(graph.Mul, down, 0.2))
	case 5:
		return b.Add(graph.Unary{Fn: graph.Elu, Alpha: 0.5}, x)
	case 6: // GELU by tanh
		u := b.Binary(graph.Add, x, b.BinaryScalar(graph.Mul, b.Unary(graph.Cube, x), 0.044715))
		u = b.Unary(graph.Tanh, b.BinaryScalar(graph.Mul, u, math.Sqrt(2/math.Pi)))
		return times(b.BinaryScalar(graph.Mul, x, 0.5), b.BinaryScalar(graph.Add, u, 1))
	case 7: // GELU by erf
		u := b.BinaryScalar(graph.Add, b.Unary(graph.Erf, b.BinaryScalar(graph.Div, x, math.Sqrt2)), 1)
		return b.BinaryScalar(graph.Mul, times(x, u), 0.5)
	case 8:
		return times(x, b.Unary(graph.Sigmoid, x))
	case 9:
		return b.Binary(graph.Div, b.Scalar(d, 1), b.BinaryScalar(graph.Add, b.Unary(graph.Exp, b.Unary(graph.Neg, x)), 1))
	}
	return b.Unary(graph.Tanh, x)
}

// spread broadcasts a statistic of x along an axis, with or without that axis, to the shape of x.
func (g *generator) spread(s, x *graph.Node, axis int) *graph.Node {
	return g.b.Broadcast(g.b.Reshape(s, x.Type.Shape.With(axis, 1).Slice()...), x.Type.Shape)
}

func (g *generator) softmaxByHand() *graph.Node {
	b := g.b
	x := g.ofRank(1, 4)
	axis := x.Type.Shape.Rank() - 1
	if g.r.IntN(3) == 0 {
		axis = g.axis(x)
	}
	s := x
	if g.coin() {
		s = b.Binary(graph.Sub, x, g.spread(b.Reduce(graph.MaxOf, x, g.coin(), axis), x, axis))
	}
	e := b.Unary(graph.Exp, s)
	sum := b.Reduce(graph.Sum, e, g.coin(), axis)
	switch g.r.IntN(4) {
	case 0:
		return b.Binary(graph.Sub, s, g.spread(b.Unary(graph.Log, sum), x, axis))
	case 1:
		return b.Unary(graph.Log, b.Binary(graph.Div, e, g.spread(sum, x, axis)))
	case 2:
		return b.Unary(graph.Log, sum)
	}
	return b.Binary(graph.Div, e, g.spread(sum, x, axis))
}

// mean is a mean along axes: a sum that is divided, or the operation itself.
func (g *generator) mean(x *graph.Node, keep bool, axes ...int) *graph.Node {
	if g.coin() {
		return g.b.Reduce(graph.Mean, x, keep, axes...)
	}
	n := 1
	for _, a := range axes {
		n *= x.Type.Shape.At(a)
	}
	sum := g.b.Reduce(graph.Sum, x, keep, axes...)
	if n == 0 || g.coin() {
		return g.b.BinaryScalar(graph.Div, sum, float64(n))
	}
	return g.b.BinaryScalar(graph.Mul, sum, 1/float64(n))
}

func (g *generator) normByHand() *graph.Node {
	b := g.b
	x := g.ofRank(1, 4)
	axis := x.Type.Shape.Rank() - 1
	d := x
	if g.coin() {
		d = b.Binary(graph.Sub, x, g.spread(g.mean(x, g.coin(), axis), x, axis))
	}
	squares := b.Unary(graph.Square, d)
	if g.coin() {
		squares = b.Binary(graph.Mul, d, d)
	}
	v := b.BinaryScalar(graph.Add, g.mean(squares, g.coin(), axis), 1e-3)
	y := b.Binary(graph.Div, d, g.spread(b.Unary(graph.Sqrt, v), x, axis))
	if g.coin() {
		y = b.Binary(graph.Mul, d, g.spread(b.Unary(graph.Rsqrt, v), x, axis))
	}
	if g.coin() {
		y = b.Binary(graph.Mul, y, b.Broadcast(g.vector(x, last(x)), x.Type.Shape))
	}
	if g.coin() {
		y = b.Binary(graph.Add, y, b.Broadcast(g.vector(x, last(x)), x.Type.Shape))
	}
	return y
}

func (g *generator) batchNormByHand() *graph.Node {
	b := g.b
	x := g.image()
	c := x.Type.Shape.At(1)
	channel := func(s *graph.Node) *graph.Node { return b.Broadcast(b.Reshape(s, 1, c, 1, 1), x.Type.Shape) }
	d := b.Binary(graph.Sub, x, channel(g.mean(x, g.coin(), 0, 2, 3)))
	v := b.BinaryScalar(graph.Add, g.mean(b.Unary(graph.Square, d), g.coin(), 0, 2, 3), 1e-3)
	y := b.Binary(graph.Div, d, channel(b.Unary(graph.Sqrt, v)))
	return b.Binary(graph.Add, b.Binary(graph.Mul, y, channel(g.vector(x, c))), channel(g.vector(x, c)))
}

// convolution is one by patches or by the operation, with a bias, an activation and a pool, or a mean of it all.
func (g *generator) convolution() *graph.Node {
	b := g.b
	x := g.image()
	s := x.Type.Shape
	kernel, stride, dilation, pad := g.window(s.At(2), s.At(3))
	o := max(g.dim(), 1)
	w := g.of(graph.TypeOf(x.Type.DType, o, s.At(1), kernel.At(0), kernel.At(1)))
	var y *graph.Node
	if g.coin() {
		y = b.Add(graph.Conv2D{Stride: stride, Dilation: dilation, Pad: pad, Groups: 1}, x, w)
	} else {
		col := b.Add(graph.Im2Col{Kernel: kernel, Stride: stride, Dilation: dilation, Pad: pad}, x)
		c, z := col.Type.Shape, w.Type.Shape.Elems()/o
		y = b.MatMul(b.Reshape(col, c.At(0)*c.At(1)*c.At(2), z), b.Reshape(w, o, z), false, true)
		y = b.Transpose(b.Reshape(y, c.At(0), c.At(1), c.At(2), o), 0, 3, 1, 2)
	}
	if g.coin() {
		y = b.Binary(graph.Add, y, b.Broadcast(b.Reshape(g.vector(x, o), 1, o, 1, 1), y.Type.Shape))
	}
	if g.coin() {
		y = g.activated(y)
	}
	switch g.r.IntN(4) {
	case 0:
		y = g.mean(y, g.coin(), 2, 3)
	case 1:
		kernel, stride, _, pad := g.window(y.Type.Shape.At(2), y.Type.Shape.At(3))
		fn := oneOf(g, graph.Pools()).Fn
		if g.tame {
			fn = graph.AvgPool
		}
		y = b.Add(graph.Pool{Fn: fn, Kernel: kernel, Stride: stride, Pad: pad}, y)
	case 2:
		y = b.Reduce(graph.Sum, y, g.coin(), 0, 1, 2, 3)
	}
	return y
}

// crossEntropy is the mean loss of logits for targets that are probabilities or classes.
func (g *generator) crossEntropy() *graph.Node {
	b := g.b
	x := g.ofRank(2, 2)
	p := b.Add(graph.LogSoftmax{Axis: 1}, x)
	if g.coin() {
		p = b.Unary(graph.Log, b.Add(graph.Softmax{Axis: 1}, x))
	}
	y := g.of(x.Type)
	if g.coin() && last(x) > 0 {
		classes := g.input(graph.TypeOf(graph.I64, x.Type.Shape.At(0), 1))
		t := graph.NewTensor(graph.TypeOf(graph.I64, last(x)))
		for i := range last(x) {
			t.SetFloat(i, float64(i))
		}
		hit := b.Binary(graph.Eq, b.Broadcast(classes, x.Type.Shape), b.Broadcast(b.Const(t), x.Type.Shape))
		y = b.CastTo(x.Type.DType, hit)
	}
	return b.Unary(graph.Neg, g.mean(b.Reduce(graph.Sum, b.Binary(graph.Mul, y, p), false, 1), false, 0))
}

// cell is a step of a recurrent network: gates that are slices of one product.
func (g *generator) cell() *graph.Node {
	b, d := g.b, g.floatType()
	batch, width := g.one(1, 2, 3), g.one(1, 2, 5)
	x, h, c := g.of(graph.TypeOf(d, batch, 3)), g.of(graph.TypeOf(d, batch, width)), g.of(graph.TypeOf(d, batch, width))
	y := b.Binary(graph.Add, b.MatMul(x, g.of(graph.TypeOf(d, 3, 4*width)), false, false),
		b.MatMul(h, g.of(graph.TypeOf(d, width, 4*width)), false, false))
	gate := func(i int, f graph.UnaryFn) *graph.Node { return b.Unary(f, b.Slice(y, 1, i*width, width, 1)) }
	c = b.Binary(graph.Add, b.Binary(graph.Mul, gate(0, graph.Sigmoid), c),
		b.Binary(graph.Mul, gate(1, graph.Sigmoid), gate(2, graph.Tanh)))
	g.nodes = append(g.nodes, c)
	return b.Binary(graph.Mul, gate(3, graph.Sigmoid), b.Unary(graph.Tanh, c))
}

// embedding gathers rows of a table, rotates them by their positions, and projects them back to the table.
func (g *generator) embedding() *graph.Node {
	b, d := g.b, g.floatType()
	n, width := g.one(1, 3, 5), g.one(2, 4, 8)
	table := g.param(graph.TypeOf(d, g.one(1, 3, 7), width))
	x := b.Add(graph.Gather{Axis: 0}, table, g.input(graph.TypeOf(graph.I64, n)))
	if g.coin() {
		x = b.Add(graph.RoPE{Base: 100, Interleaved: g.coin()}, x, g.i64(g.r.IntN(9)))
	}
	if g.coin() {
		return b.MatMul(x, table, false, true)
	}
	return x
}
