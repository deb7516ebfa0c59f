package graphtest

import (
	"fmt"
	"math"
	"reflect"
	"slices"

	"fusec/graph"
)

// makers has functions that append an operation with attributes and operands that fit, by its name. What is not here, is made of
// its row; see [generator.made].
var makers map[string]func(*generator)

func init() {
	makers = map[string]func(*generator){
		"input": func(g *generator) { g.input(g.source()) },
		"param": func(g *generator) { g.param(g.source()) },
		"state": func(g *generator) { g.add(g.b.State(g.name("s"), g.source())) },
		"const": makeConst,

		"unary": makeUnary, "binary": makeBinary, "select": makeSelect, "custom": makeCustom, "cast": makeCast,
		"matmul": makeMatMul, "reduce": makeReduce,
		"conv2d":             func(g *generator) { g.conv2D(makeConv2D) },
		"conv2d_transpose":   func(g *generator) { g.conv2D(makeConv2DTranspose) },
		"conv2d_filter_grad": func(g *generator) { g.conv2D(makeConv2DFilterGrad) },
		"separable_conv2d":   makeSeparable,
		"reshape":            makeReshape, "transpose": makeTranspose, "broadcast": makeBroadcast,
		"slice": makeSlice, "unslice": makeUnslice, "update_slice": makeUpdateSlice, "concat": makeConcat, "pad": makePad,
		"im2col": makeIm2Col, "col2im": makeCol2Im,
		"all_reduce": func(g *generator) {
			g.op(graph.AllReduce{Fn: []graph.ReduceFn{graph.Sum, graph.Mean, graph.MaxOf, graph.MinOf}[g.r.IntN(4)]}, g.any())
		},
		"gather": makeGather, "scatter_add": makeScatterAdd,
		"dropout": makeDropout, "random": makeRandom,
		"batch_norm": makeBatchNorm, "rope": makeRoPE,
		"recurrence":      makeRecurrence,
		"recurrence_grad": makeRecurrenceGrad,
		"attention":       func(g *generator) { g.attention(true) },
		"attention_grad":  makeAttentionGrad,
		"pool":            makePool, "pool_grad": makePoolGrad,
		"squared_norm": makeSquaredNorm,
		"sample":       makeSample,
		"top_k":        makeTopK, "route": makeRoute, "moe": makeMoE, "moe_grad": makeMoEGrad,
		"result":   makeBatchNorm, // whose further results it reads
		"quantize": makeQuantize, "dequantize": func(g *generator) { g.dequantize(g.quantize()) },
		"pack_weights": func(g *generator) { g.packed() }, "matmul_panels": makePanelMatMul,
		"fusion": makeFusion, "host": makeHost,
	}
	for _, row := range graph.Ops() {
		if makers[row.Name] != nil {
			continue
		}
		if row.Index != nil || row.Fails != nil || row.Class == graph.ClassSource {
			panic(fmt.Sprintf("graphtest: the row of %s does not say when one does not fail: it needs a maker", row.Name))
		}
		makers[row.Name] = func(g *generator) { g.made(row) }
	}
}

// made appends an operation of which only the row is known: attributes and operands are drawn until the type rule takes them.
func (g *generator) made(row *graph.OpInfo) {
	lo := 0 // the least rank of the first operand
	switch _, axis := reflect.TypeOf(row.Proto).FieldByName("Axis"); {
	case row.ChannelWeights:
		lo = 2
	case axis || row.RowAxes != nil:
		lo = 1
	}
	most := row.MaxArgs
	if most < 0 {
		most = row.MinArgs + 2
	}
	for range 8 {
		var x *graph.Node
		if row.Class == graph.ClassMove || row.Class == graph.ClassView {
			x = g.moved(lo, graph.MaxRank)
		} else {
			x = g.ofRank(lo, graph.MaxRank)
		}
		op, types := g.attributes(row.Proto, x), []graph.Type{x.Type}
		for range row.MinArgs - 1 + g.r.IntN(most-row.MinArgs+1) {
			t := x.Type
			switch {
			case row.RowWeights:
				t = graph.TypeOf(t.DType, last(x))
			case row.ChannelWeights:
				t = graph.TypeOf(t.DType, t.Shape.At(1))
			}
			types = append(types, t)
		}
		if results, err := row.Infer(op, types); err != nil || results[0].Shape.Elems() > maxElems {
			continue
		}
		args := []*graph.Node{x}
		for _, t := range types[1:] {
			args = append(args, g.of(t))
		}
		g.results(op, args...)
		return
	}
}

// attributes draws those of an operation on x.
func (g *generator) attributes(proto graph.Op, x *graph.Node) graph.Op {
	op := reflect.New(reflect.TypeOf(proto)).Elem()
	for i := range op.NumField() {
		f := op.Field(i)
		switch f.Interface().(type) {
		case int:
			if f.SetInt(int64(g.r.IntN(4))); op.Type().Field(i).Name == "Axis" {
				f.SetInt(int64(g.axis(x)))
			}
		case float64:
			f.SetFloat(g.r.Float64())
		case bool:
			f.SetBool(g.coin())
		case graph.ReduceFn:
			f.Set(reflect.ValueOf(oneOf(g, []graph.ReduceFn{graph.Sum, graph.Mean}))) // others may have no gradient
		case graph.Group:
			f.Set(reflect.ValueOf(graph.Group{Parts: 1}))
		}
	}
	return op.Interface().(graph.Op)
}

func makeConst(g *generator) {
	t := g.source()
	switch g.r.IntN(4) {
	case 0:
		t = t.With(graph.I32)
	case 1:
		t = t.With(graph.Bool)
	}
	g.constant(t)
}

// smooth are functions without kinks, jumps and poles, that grow slowly.
var smooth = []graph.UnaryFn{graph.Neg, graph.Square, graph.Sin, graph.Cos, graph.Tanh, graph.Sigmoid, graph.Softplus,
	graph.Erf, graph.GeluTanh, graph.GeluErf, graph.Silu}

func makeUnary(g *generator) {
	if g.rarely(8) {
		g.unaryOfIntegers()
		return
	}
	f := oneOf(g, graph.UnaryFns())
	if g.tame {
		f = *oneOf(g, smooth).Info()
	}
	op := graph.Unary{Fn: f.Fn}
	if !f.Of.Has(graph.F32) {
		x := g.any()
		g.op(op, g.b.Binary(graph.Lt, x, g.like(x)))
		return
	}
	if f.Fn.HasAlpha() {
		op.Alpha = g.r.Float64()
	}
	if f.Kink {
		op.AtZero = graph.Slope(g.r.IntN(int(graph.MeanSlope) + 1))
	}
	g.op(op, g.any())
}

func makeBinary(g *generator) {
	if g.rarely(3) {
		g.binaryOfIntegers()
		return
	}
	f := oneOf(g, graph.BinaryFns()).Fn
	for f.Info().Of == graph.Integers {
		f = oneOf(g, graph.BinaryFns()).Fn
	}
	if g.tame {
		f %= graph.Div
	}
	x := g.any()
	y := g.like(x)
	if !f.Info().Of.Has(graph.F32) {
		a, b := g.b.Binary(graph.Lt, x, y), g.b.Binary(graph.Ge, x, g.like(x))
		g.op(graph.Binary{Fn: f}, a, b)
		return
	}
	if g.coin() {
		x, y = y, x
	}
	g.op(graph.Binary{Fn: f}, x, y)
}

func makeSelect(g *generator) {
	if g.rarely(3) {
		g.selectByAny()
		return
	}
	x := g.any()
	g.op(graph.Select{}, g.b.Binary(graph.Gt, x, g.like(x)), g.like(x), x)
}

func makeCast(g *generator) {
	to := []graph.DType{graph.F32, graph.F64, graph.I32, graph.I64, graph.Bool}[g.r.IntN(5)]
	if g.rarely(2) {
		to = oneOf(g, graph.IntegerTypes())
	}
	if g.o.Halves && g.coin() {
		to = g.halfType()
	}
	if to.IsFloat() && g.o.Floats != graph.Invalid {
		to = g.o.Floats
	}
	g.op(graph.Cast{To: to}, g.find(func(graph.Type) bool { return true }, g.float()))
}

func makeMatMul(g *generator) {
	x := g.half(g.ofRank(2, 4))
	s := x.Type.Shape
	op := graph.MatMul{TransA: g.coin(), TransB: g.coin()}
	inner := s.At(s.Rank() - 1)
	if op.TransA {
		inner = s.At(s.Rank() - 2)
	}
	k, n := inner, g.dim()
	if op.TransB {
		k, n = n, k
	}
	var batch []int
	if lead := s.Rank() - 2; lead > 0 && g.coin() {
		batch = s.Slice()[:lead]
		if g.coin() {
			batch[0] = 1
		}
	}
	g.op(op, x, g.of(graph.TypeOf(x.Type.DType, append(batch, k, n)...)))
}

// image returns a value [n,c,h,w].
func (g *generator) image() *graph.Node { return g.ofRank(4, 4) }

// window makes attributes of a window that fits into height h and width w.
func (g *generator) window(h, w int) (kernel, stride, dilation, pad graph.Ints) {
	var k, st, dil [2]int
	var p [4]int
	for i, size := range []int{h, w} {
		p[i], p[i+2] = g.r.IntN(2), g.r.IntN(2)
		if size+p[i]+p[i+2] == 0 {
			p[i] = 1
		}
		size += p[i] + p[i+2]
		k[i] = 1 + g.r.IntN(min(size, 3))
		st[i] = 1 + g.r.IntN(2)
		dil[i] = 1
		if k[i] > 1 && g.r.IntN(3) == 0 && 2*(k[i]-1)+1 <= size {
			dil[i] = 2
		}
	}
	return graph.IntsOf(k[:]...), graph.IntsOf(st[:]...), graph.IntsOf(dil[:]...), graph.IntsOf(p[:]...)
}

// layout draws an image layout.
func (g *generator) layout() graph.ImageLayout { return graph.ImageLayout(g.r.IntN(2)) }

// conv2D calls f with a convolution and the types of its images, filters and result.
func (g *generator) conv2D(f func(g *generator, op graph.Conv2D, x *graph.Node, w, y graph.Type)) {
	x, l := g.image(), g.layout()
	n, c, height, width := l.ImageDims(x.Type.Shape)
	kernel, stride, dilation, pad := g.window(height, width)
	groups := 1
	if g.coin() {
		groups = max(c, 1)
	}
	o := groups * (1 + g.r.IntN(3))
	op := graph.Conv2D{Stride: stride, Dilation: dilation, Pad: pad, Groups: groups, Layout: l}
	positions := func(i, size int) int {
		return (size+pad.At(i)+pad.At(i+2)-dilation.At(i)*(kernel.At(i)-1)-1)/stride.At(i) + 1
	}
	w := graph.Type{DType: x.Type.DType, Shape: l.Filters(o, c/groups, kernel.At(0), kernel.At(1))}
	f(g, op, x, w, graph.Type{DType: x.Type.DType, Shape: l.Image(n, o, positions(0, height), positions(1, width))})
}

func makeConv2D(g *generator, op graph.Conv2D, x *graph.Node, w, _ graph.Type) {
	winograd := op
	winograd.Winograd = 2 + 2*g.r.IntN(2)
	if _, err := graph.InfoOf(op).Infer(winograd, []graph.Type{x.Type, w}); err == nil && g.coin() {
		op = winograd
	}
	g.op(op, x, g.of(w))
}

func makeConv2DTranspose(g *generator, op graph.Conv2D, x *graph.Node, w, y graph.Type) {
	_, _, height, width := op.Layout.ImageDims(x.Type.Shape)
	t := graph.Conv2DTranspose{Stride: op.Stride, Dilation: op.Dilation, Pad: op.Pad, Groups: op.Groups, H: height, W: width,
		Layout: op.Layout}
	winograd := t
	winograd.Winograd = 2 + 2*g.r.IntN(2)
	if _, err := graph.InfoOf(t).Infer(winograd, []graph.Type{y, w}); err == nil && g.coin() {
		t = winograd
	}
	g.op(t, g.of(y), g.of(w))
}

func makeConv2DFilterGrad(g *generator, op graph.Conv2D, x *graph.Node, w, y graph.Type) {
	_, _, kh, kw := op.Layout.FilterDims(w.Shape)
	g.op(graph.Conv2DFilterGrad{Stride: op.Stride, Dilation: op.Dilation, Pad: op.Pad, Groups: op.Groups, KH: kh, KW: kw,
		Layout: op.Layout}, x, g.of(y))
}

func makeSeparable(g *generator) {
	x := g.image()
	if x.Type.Shape.Elems() == 0 {
		x = g.of(graph.TypeOf(x.Type.DType, 1, 3, 2, 2))
	}
	_, c, height, width := graph.NHWC.ImageDims(x.Type.Shape)
	kernel, stride, dilation, pad := g.window(height, width)
	op := graph.SeparableConv2D{Stride: stride, Dilation: dilation, Pad: pad, Low: -1, High: math.Inf(1)}
	d, channels := x.Type.DType, c
	var first []*graph.Node
	if g.coin() {
		channels = 1 + g.r.IntN(3)
		first = []*graph.Node{g.of(graph.TypeOf(d, 1, 1, c, channels)), g.vector(x, channels)}
	}
	args := []*graph.Node{x, g.of(graph.TypeOf(d, kernel.At(0), kernel.At(1), 1, channels)), g.vector(x, channels),
		g.of(graph.TypeOf(d, 1, 1, channels, g.dim()))}
	g.op(op, append(args, first...)...)
}

func makeReduce(g *generator) {
	x := g.any()
	row := oneOf(g, graph.Reductions())
	if g.tame && row.Bound != graph.OfTerms {
		row = *graph.Sum.Info()
	}
	op := graph.Reduce{Fn: row.Fn}
	if row.Of.Has(graph.I32) && g.rarely(5) {
		x = g.integer()
	}
	op.Axes, op.Keep = g.axes(x), g.coin()
	g.op(op, x)
}

func makeReshape(g *generator) {
	x := g.moved(0, graph.MaxRank)
	dims := x.Type.Shape.Slice()
	switch {
	case len(dims) > 1 && g.coin():
		dims = append([]int{dims[0] * dims[1]}, dims[2:]...)
	case len(dims) < 5:
		dims = append(dims, 1)
	}
	g.op(graph.Reshape{Shape: graph.ShapeOf(dims...)}, x)
}

func makeTranspose(g *generator) {
	x := g.moved(0, graph.MaxRank)
	g.op(graph.Transpose{Perm: graph.IntsOf(g.r.Perm(x.Type.Shape.Rank())...)}, x)
}

func makeBroadcast(g *generator) {
	x := g.moved(0, 4)
	dims := x.Type.Shape.Slice()
	for i, d := range dims {
		if d == 1 {
			dims[i] = g.dim()
		}
	}
	s := graph.ShapeOf(append([]int{g.dim()}, dims...)...)
	if s.Elems() <= maxElems {
		g.op(graph.Broadcast{Shape: s}, x)
	}
}

func makeSlice(g *generator) {
	x := g.moved(1, 5)
	axis := g.axis(x)
	dim := x.Type.Shape.At(axis)
	if dim == 0 || g.rarely(16) {
		g.op(graph.Slice{Axis: axis, Size: 0, Step: 1}, x, g.i64(0))
		return
	}
	step := 1 + g.r.IntN(2)
	size := 1 + g.r.IntN((dim-1)/step+1)
	start := g.r.IntN(dim - (size-1)*step)
	g.op(graph.Slice{Axis: axis, Size: size, Step: step}, x, g.i64(start))
}

func makeUnslice(g *generator) {
	x := g.ofRank(1, 5)
	axis, step, start := g.axis(x), 1+g.r.IntN(2), g.r.IntN(3)
	size := start + max(x.Type.Shape.At(axis)-1, 0)*step + 1 + g.r.IntN(2)
	if x.Type.Shape.With(axis, size).Elems() <= maxElems {
		g.op(graph.Unslice{Axis: axis, Size: size, Step: step}, x, g.i64(start))
	}
}

// makeUpdateSlice overwrites part of a value, or of a state, whose update it becomes.
func makeUpdateSlice(g *generator) {
	x := g.ofRank(1, 5)
	if g.coin() {
		x = g.add(g.b.State(g.name("cache"), x.Type))
	}
	axis := g.axis(x)
	if x.Type.Shape.At(axis) == 0 {
		return
	}
	size := 1 + g.r.IntN(x.Type.Shape.At(axis))
	update := g.of(x.Type.Reshaped(x.Type.Shape.With(axis, size)))
	g.op(graph.UpdateSlice{Axis: axis}, x, update, g.i64(g.r.IntN(x.Type.Shape.At(axis)-size+1)))
}

func makeConcat(g *generator) {
	x := g.ofRank(1, 5)
	if g.rarely(3) {
		x = g.moved(1, 5)
	}
	axis := g.axis(x)
	args := []*graph.Node{x}
	for range g.r.IntN(3) {
		args = append(args, g.of(x.Type.Reshaped(x.Type.Shape.With(axis, g.dim()))))
	}
	g.op(graph.Concat{Axis: axis}, args...)
}

func makePad(g *generator) {
	x := g.ofRank(0, 4)
	if g.rarely(3) {
		x = g.moved(0, 4)
	}
	lo, hi := make([]int, x.Type.Shape.Rank()), make([]int, x.Type.Shape.Rank())
	for i := range lo {
		lo[i], hi[i] = g.r.IntN(2), g.r.IntN(3)
	}
	if x.Type.Shape.Elems() <= maxElems/16 {
		g.op(graph.Pad{Lo: graph.IntsOf(lo...), Hi: graph.IntsOf(hi...), Value: g.r.NormFloat64()}, x)
	}
}

func makeIm2Col(g *generator) {
	x := g.image()
	kernel, stride, dilation, pad := g.window(x.Type.Shape.At(2), x.Type.Shape.At(3))
	g.op(graph.Im2Col{Kernel: kernel, Stride: stride, Dilation: dilation, Pad: pad}, x)
}

func makeCol2Im(g *generator) {
	h, w := g.dim(), g.dim()
	kernel, stride, dilation, pad := g.window(h, w)
	x := g.of(graph.TypeOf(g.floatType(), g.dim(), g.dim(), h, w))
	cols := g.b.Add(graph.Im2Col{Kernel: kernel, Stride: stride, Dilation: dilation, Pad: pad}, x)
	g.op(graph.Col2Im{Kernel: kernel, Stride: stride, Dilation: dilation, Pad: pad, H: h, W: w}, cols)
}

// indices is a constant of indices below n.
func (g *generator) indices(n int) *graph.Node {
	d := graph.I64
	if g.coin() {
		d = graph.I32
	}
	t := graph.NewTensor(graph.TypeOf(d, g.dims(g.r.IntN(3))...))
	if n == 0 { // nothing can be picked
		t = graph.NewTensor(graph.TypeOf(d, 0))
	}
	if g.rarely(2) {
		return g.input(t.Type)
	}
	for i := range t.Type.Shape.Elems() {
		t.SetFloat(i, float64(g.r.IntN(n)))
	}
	return g.b.Const(t)
}

func makeGather(g *generator) {
	x := g.moved(1, 4)
	axis := g.axis(x)
	ix := g.indices(x.Type.Shape.At(axis))
	if x.Type.Shape.Elems()*ix.Type.Shape.Elems() <= maxElems {
		g.op(graph.Gather{Axis: axis}, x, ix)
	}
}

func makeScatterAdd(g *generator) {
	size := g.dim()
	ix := g.indices(size)
	before, after := g.dims(g.r.IntN(2)), g.dims(g.r.IntN(2))
	dims := append(append(append([]int{}, before...), ix.Type.Shape.Slice()...), after...)
	g.op(graph.ScatterAdd{Axis: len(before), Size: size}, ix, g.of(graph.TypeOf(g.floatType(), dims...)))
}

func makeDropout(g *generator) {
	g.op(graph.Dropout{P: g.r.Float64()}, g.any(), g.i64(g.r.IntN(100)))
}

func makeRandom(g *generator) {
	op := graph.Random{Dist: graph.Dist(g.r.IntN(int(graph.Bernoulli) + 1)), A: g.r.Float64() / 2, B: 1, Type: g.float()}
	g.op(op, g.i64(g.r.IntN(100)))
}

// vector returns a value [n] to go with x.
func (g *generator) vector(x *graph.Node, n int) *graph.Node {
	return g.of(graph.TypeOf(x.Type.DType, n))
}

// last is the size of x's last axis.
func last(x *graph.Node) int { return x.Type.Shape.At(x.Type.Shape.Rank() - 1) }

// attention attends from any value of at least two axes to new keys, sometimes with grouped heads, or to pages of keys.
func (g *generator) attention(pages bool) *graph.Node {
	q := g.ofRank(2, 4)
	d, s := q.Type.DType, q.Type.Shape
	op := graph.Attention{Scale: 0.5, Causal: g.coin(), Window: g.r.IntN(4)}
	lead := s.Slice()[:s.Rank()-2]
	if n := len(lead); n > 0 && lead[n-1]%2 == 0 && g.coin() {
		lead[n-1] /= 2
	}
	sizes := func(last ...int) graph.Type { return graph.TypeOf(d, append(append([]int(nil), lead...), last...)...) }
	keys := g.dim()
	args := []*graph.Node{q, g.of(sizes(keys, last(q))), g.of(sizes(keys, g.dim()))}
	if op.HasMask = g.coin(); op.HasMask {
		args = append(args, g.of(graph.TypeOf(d, s.At(s.Rank()-2), keys)))
	}
	if pages && len(lead) > 0 && g.coin() {
		op, args = g.paged(op, q, lead[len(lead)-1])
	} else if g.o.Wide {
		op, args = g.widerAttention(op, args, lead)
	}
	if g.o.Wide {
		return g.results(op, args...)
	}
	return g.op(op, args...)
}

func makeAttentionGrad(g *generator) {
	y := g.attention(false)
	lse := g.op(graph.Result{Index: 1}, y)
	args := append(slices.Clone(y.Args), y, lse, g.of(y.Type))
	op := graph.AttentionGrad{Attention: y.Op.(graph.Attention), HasDlse: g.coin()}
	if op.HasDlse {
		args = append(args, g.of(lse.Type))
	}
	dq := g.op(op, args...)
	g.op(graph.Result{Index: 1 + g.r.IntN(2)}, dq)
}

func makeRoPE(g *generator) {
	x := g.ofRank(2, 4)
	if last(x)%2 != 0 {
		x = g.of(x.Type.Reshaped(x.Type.Shape.With(x.Type.Shape.Rank()-1, 2*last(x))))
	}
	op := graph.RoPE{Base: 1 + 100*g.r.Float64(), Interleaved: g.coin(), Inverse: g.coin()}
	args := []*graph.Node{x, g.i64(g.r.IntN(100))}
	if g.coin() {
		divisors := graph.NewTensor(graph.TypeOf(graph.F64, last(x)/2))
		for i := range last(x) / 2 {
			divisors.SetFloat(i, 1+7*g.r.Float64())
		}
		args = append(args, g.b.Const(divisors))
	}
	g.op(op, args...)
}

// recurrent makes the operands of a recurrence whose weights are those of a product of x.
func (g *generator) recurrent() (graph.Recurrence, []*graph.Node) {
	op := graph.Recurrence{Cell: graph.Cell(g.r.IntN(int(graph.GRUAfter) + 1)), Reverse: g.coin()}
	if g.tame && op.Cell == graph.ReluCell {
		op.Cell = graph.TanhCell
	}
	x := g.ofRank(3, 3)
	d, s, h := x.Type.DType, x.Type.Shape, max(g.dim(), 1)
	of := func(dims ...int) *graph.Node { return g.of(graph.TypeOf(d, dims...)) }
	args := []*graph.Node{of(max(s.At(0), 1), s.At(1), op.Cell.Gates()*h), of(h, op.Cell.Gates()*h), of(s.At(1), h)}
	switch op.Cell {
	case graph.LSTM:
		args = append(args, of(s.At(1), h))
	case graph.GRUAfter:
		args = append(args, of(h))
	}
	return op, args
}

func makeRecurrence(g *generator) {
	op, args := g.recurrent()
	g.op(op, args...)
}

func makeRecurrenceGrad(g *generator) {
	op, args := g.recurrent()
	x := args[0].Type.Shape
	for range 2 * op.Cell.Results() {
		args = append(args, g.of(graph.TypeOf(args[0].Type.DType, x.At(0), x.At(1), args[1].Type.Shape.At(0))))
	}
	g.op(graph.RecurrenceGrad(op), args...)
}

// paged makes the operands of an attention from q to keys of some heads in pages of a pool.
func (g *generator) paged(op graph.Attention, q *graph.Node, heads int) (graph.Attention, []*graph.Node) {
	op.Page, op.HasLengths, op.HasMask, op.Tail = g.dim(), true, false, g.coin()
	d, s := q.Type.DType, q.Type.Shape
	batch := s.Slice()[:s.Rank()-3]
	pages, n := g.dim(), 1+g.r.IntN(3)
	if g.o.Wide {
		op.Page, pages = max(op.Page, 1), max(pages, 1)
	}
	integers := func(limit int, dims ...int) *graph.Node {
		t := graph.NewTensor(graph.TypeOf(graph.I64, dims...))
		if g.rarely(2) {
			return g.input(t.Type)
		}
		for i := range t.Type.Shape.Elems() {
			t.SetFloat(i, float64(g.r.IntN(limit)))
		}
		return g.b.Const(t)
	}
	pool := func(depth int) *graph.Node { return g.of(graph.TypeOf(d, pages, heads, op.Page, depth)) }
	return op, []*graph.Node{q, pool(last(q)), pool(g.dim()),
		integers(n*op.Page+1, batch...), integers(pages, append(batch, n)...)}
}

func makeBatchNorm(g *generator) {
	x := g.ofRank(2, 4)
	c := x.Type.Shape.At(1)
	variance := g.b.Unary(graph.Square, g.vector(x, c))
	op := graph.BatchNorm{Eps: 1e-5, Momentum: 0.9, Train: g.coin()}
	args := []*graph.Node{x, g.vector(x, c), g.vector(x, c), g.vector(x, c), variance}
	if g.o.Wide {
		g.results(op, args...)
		return
	}
	y := g.op(op, args...)
	g.op(graph.Result{Index: 1 + g.r.IntN(2)}, y)
}

func (g *generator) pool() (graph.Pool, *graph.Node) {
	x, l := g.image(), g.layout()
	_, _, height, width := l.ImageDims(x.Type.Shape)
	kernel, stride, _, pad := g.window(height, width)
	op := graph.Pool{Fn: oneOf(g, graph.Pools()).Fn, Kernel: kernel, Stride: stride, Pad: pad, Layout: l}
	if g.tame {
		op.Fn = graph.AvgPool
	}
	op.CountPad = op.Fn == graph.AvgPool && g.coin()
	return op, x
}

func makePool(g *generator) {
	op, x := g.pool()
	g.op(op, x)
}

func makePoolGrad(g *generator) {
	op, x := g.pool()
	y := g.b.Add(op, x)
	g.op(graph.PoolGrad(op), x, g.of(y.Type))
}

// makeFusion makes an elementwise chain with two results.
func makeFusion(g *generator) {
	x := g.any()
	y := g.of(x.Type)
	body := graph.New("body")
	b := graph.Extend(body)
	u, v := b.Add(graph.Input{Type: x.Type}), b.Add(graph.Input{Type: y.Type})
	sum := b.Binary(graph.Add, u, v)
	b.Output("sum", sum)
	b.Output("tanh", b.Unary(graph.Tanh, b.BinaryScalar(graph.Mul, sum, g.r.Float64())))
	g.check(b.Err())
	op := graph.Fusion{Anchor: graph.AnchorNone, Kind: graph.KindElementwise, Body: body}
	if g.o.Wide {
		g.results(op, x, y)
		return
	}
	n := g.op(op, x, y)
	g.op(graph.Result{Index: 1}, n)
}

func makeSquaredNorm(g *generator) { g.op(graph.SquaredNorm{}, g.any(), g.any(), g.any()) }

func makeHost(g *generator) {
	if g.o.Wide {
		g.reversed()
		return
	}
	g.op(graph.Host{Name: g.name("op"), Type: g.float()}, g.any(), g.any())
}
