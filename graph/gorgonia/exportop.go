package gorgonia

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"fusec/graph"

	gorg "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

type nodeFunc = func(*gorg.Node) (*gorg.Node, error)

// chain applies functions one after the other until one fails.
func chain(x *gorg.Node, fs ...nodeFunc) (*gorg.Node, error) {
	var err error
	for _, f := range fs {
		if x, err = f(x); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// A writeFunc writes a node whose operands are written.
type writeFunc = func(e *exporter, n *graph.Node, args []*gorg.Node) (*gorg.Node, error)

// writers has how to write an operation; [primitive] leaves those that consist of others out.
var writers = graph.NewAnswers[writeFunc]("Gorgonia")

func init() {
	source := func(e *exporter, n *graph.Node, _ []*gorg.Node) (*gorg.Node, error) { return e.source(n) }
	first := func(_ *exporter, _ *graph.Node, args []*gorg.Node) (*gorg.Node, error) { return args[0], nil }
	writers.Add("input", source)
	writers.Add("param", source)
	writers.Add("state", source)
	writers.Add("copy", first)
	writers.Add(written(func(e *exporter, op graph.Const, _ []*gorg.Node, _ *graph.Node) (*gorg.Node, error) {
		return e.constant(op.Value), nil
	}))
	writers.Add(ofOne(func(e *exporter, op graph.Unary, x *gorg.Node, n *graph.Node) (*gorg.Node, error) {
		x, err := e.own(x, n.Args[0].Type.DType)
		if err != nil {
			return nil, err
		}
		return e.unary(op, x, n.Type.DType)
	}))
	writers.Add(ofTwo((*exporter).binary))
	writers.Add(written(func(e *exporter, _ graph.Select, args []*gorg.Node, n *graph.Node) (*gorg.Node, error) {
		return e.choose(args, n)
	}))
	writers.Add(ofOne(func(e *exporter, op graph.Cast, x *gorg.Node, _ *graph.Node) (*gorg.Node, error) {
		return e.cast(op.To, x)
	}))
	writers.Add(ofTwo((*exporter).matmul))
	writers.Add(ofTwo((*exporter).conv))
	writers.Add(ofTwo((*exporter).gather))
	writers.Add(ofOne((*exporter).reduce))
	writers.Add(ofOne((*exporter).slice))
	writers.Add(ofOne((*exporter).pad))
	writers.Add(ofOne((*exporter).pool))
	writers.Add(ofOne(func(e *exporter, op graph.Reshape, x *gorg.Node, _ *graph.Node) (*gorg.Node, error) {
		return e.reshape(x, op.Shape.Slice()...)
	}))
	writers.Add(ofOne(func(_ *exporter, op graph.Transpose, x *gorg.Node, _ *graph.Node) (*gorg.Node, error) {
		return gorg.Transpose(x, op.Perm.Slice()...)
	}))
	writers.Add(ofOne(func(e *exporter, op graph.Broadcast, x *gorg.Node, _ *graph.Node) (*gorg.Node, error) {
		return e.broadcast(x, op.Shape)
	}))
	writers.Add(written(func(_ *exporter, op graph.Concat, args []*gorg.Node, _ *graph.Node) (*gorg.Node, error) {
		if len(args) == 1 {
			return args[0], nil
		}
		return gorg.Concat(op.Axis, args...)
	}))
	writers.Add(ofOne(func(_ *exporter, op graph.Im2Col, x *gorg.Node, _ *graph.Node) (*gorg.Node, error) {
		if err := symmetric(op.Pad); err != nil {
			return nil, err
		}
		return gorg.Im2Col(x, op.Kernel.Slice(), op.Pad.Slice()[:2], op.Stride.Slice(), op.Dilation.Slice())
	}))
	writers.Add(ofOne(func(_ *exporter, op graph.Dropout, x *gorg.Node, _ *graph.Node) (*gorg.Node, error) {
		return gorg.Dropout(x, op.P)
	}))
	writers.Add(written(func(e *exporter, op graph.Random, _ []*gorg.Node, _ *graph.Node) (*gorg.Node, error) {
		return e.random(op), nil
	}))
	writers.Add(ofOne(func(_ *exporter, op graph.Softmax, x *gorg.Node, _ *graph.Node) (*gorg.Node, error) {
		return gorg.SoftMax(x, op.Axis)
	}))
	writers.Add(ofOne(func(e *exporter, op graph.LogSoftmax, x *gorg.Node, n *graph.Node) (*gorg.Node, error) {
		// Of an operand of its own: Gorgonia takes it for the softmax of the same operand and axis.
		x, err := gorg.HadamardProd(x, e.scalar(n.Type.DType, 1))
		if err != nil {
			return nil, err
		}
		return gorg.LogSoftMax(x, op.Axis)
	}))

	writers.Rest("there is no such function")
	writers.Refuse("it has no elements of few bits", "quantize", "dequantize", "pack_weights", "matmul_panels")
	writers.Refuse("it is a function of the program's own", "custom")
	writers.Refuse("a program of Gorgonia's runs alone", "reduce_scatter", "all_gather", "all_to_all", "part", "permute",
		"broadcast_from")
	if err := writers.Check(); err != nil {
		panic(err)
	}
}

// written is a writeFunc for operations of type O, with their name.
func written[O graph.Op](f func(e *exporter, op O, args []*gorg.Node, n *graph.Node) (*gorg.Node, error)) (string, writeFunc) {
	var of O
	return of.OpName(), func(e *exporter, n *graph.Node, args []*gorg.Node) (*gorg.Node, error) {
		return f(e, n.Op.(O), args, n)
	}
}

// ofOne is a writeFunc that reads the first operand, ofTwo one that reads the first two.
func ofOne[O graph.Op](f func(e *exporter, op O, x *gorg.Node, n *graph.Node) (*gorg.Node, error)) (string, writeFunc) {
	return written(func(e *exporter, op O, args []*gorg.Node, n *graph.Node) (*gorg.Node, error) {
		return f(e, op, args[0], n)
	})
}

func ofTwo[O graph.Op](f func(e *exporter, op O, x, y *gorg.Node, n *graph.Node) (*gorg.Node, error)) (string, writeFunc) {
	return written(func(e *exporter, op O, args []*gorg.Node, n *graph.Node) (*gorg.Node, error) {
		return f(e, op, args[0], args[1], n)
	})
}

// export writes one node; its operands are written.
func (e *exporter) export(n *graph.Node) (y *gorg.Node, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic in Gorgonia: %v", r)
		}
	}()
	write, err := writers.Of(n.Op)
	if err != nil {
		return nil, err
	}
	args := make([]*gorg.Node, len(n.Args))
	for i, a := range n.Args {
		args[i] = e.nodes[a]
	}
	return write(e, n, args)
}

// sameNumbers converts one of two operands if they stand for Bools made from different types.
func (e *exporter) sameNumbers(x, y *gorg.Node) (*gorg.Node, *gorg.Node, error) {
	dx, err := e.dtype(x)
	if err != nil {
		return nil, nil, err
	}
	dy, err := e.dtype(y)
	if err != nil || dx == dy {
		return x, y, err
	}
	y, err = e.cast(dx, y)
	return x, y, err
}

// choose is cond ? a : b as cond⊙a + (1−cond)⊙b, Gorgonia having no selection: it is NaN where what is not chosen is
// infinite.
func (e *exporter) choose(args []*gorg.Node, n *graph.Node) (*gorg.Node, error) {
	d := n.Type.DType
	mask, err := e.cast(d, args[0])
	if err != nil {
		return nil, err
	}
	a, err := e.own(args[1], d)
	if err != nil {
		return nil, err
	}
	b, err := e.own(args[2], d)
	if err != nil {
		return nil, err
	}
	if a, err = gorg.HadamardProd(a, mask); err != nil {
		return nil, err
	}
	rest, err := gorg.Sub(e.scalar(d, 1), mask)
	if err != nil {
		return nil, err
	}
	if b, err = gorg.HadamardProd(b, rest); err != nil {
		return nil, err
	}
	return gorg.Add(a, b)
}

func (e *exporter) cast(to graph.DType, x *gorg.Node) (*gorg.Node, error) {
	from, err := e.dtype(x)
	if err != nil {
		return nil, err
	}
	if to == graph.Bool {
		return gorg.Ne(x, e.scalar(from, 0), true)
	}
	if from == to {
		return x, nil
	}
	// Gorgonia converts between floats and int only.
	if from == graph.I32 || to == graph.I32 {
		return nil, fmt.Errorf("no conversion of %v to %v in Gorgonia", from, to)
	}
	return gorg.ConvType(x, dtypeFor(from), dtypeFor(to))
}

func (e *exporter) matmul(op graph.MatMul, x, y *gorg.Node, n *graph.Node) (*gorg.Node, error) {
	var err error
	if n.Type.Shape.Rank() == 2 {
		if op.TransA {
			if x, err = gorg.Transpose(x); err != nil {
				return nil, err
			}
		}
		if op.TransB {
			if y, err = gorg.Transpose(y); err != nil {
				return nil, err
			}
		}
		return gorg.Mul(x, y)
	}
	batch, _, _, _ := op.Dims(n.Args[0].Type.Shape, n.Args[1].Type.Shape)
	for _, p := range []**gorg.Node{&x, &y} {
		s := (*p).Shape()
		if *p, err = e.broadcast(*p, graph.ShapeOf(append(slices.Clone(batch), s[len(s)-2:]...)...)); err != nil {
			return nil, err
		}
	}
	return gorg.BatchedMatMul(x, y, op.TransA, op.TransB)
}

func symmetric(pad graph.Ints) error {
	if pad.At(0) != pad.At(2) || pad.At(1) != pad.At(3) {
		return fmt.Errorf("padding %v: in Gorgonia both sides are padded alike", pad)
	}
	return nil
}

func (e *exporter) conv(op graph.Conv2D, x, w *gorg.Node, n *graph.Node) (*gorg.Node, error) {
	if err := symmetric(op.Pad); err != nil {
		return nil, err
	}
	k := w.Shape()[2:]
	one := func(x, w *gorg.Node) (*gorg.Node, error) {
		return gorg.Conv2d(x, w, k, op.Pad.Slice()[:2], op.Stride.Slice(), op.Dilation.Slice())
	}
	if op.Groups == 1 {
		return one(x, w)
	}
	parts := make([]*gorg.Node, op.Groups)
	in, out := x.Shape()[1]/op.Groups, w.Shape()[0]/op.Groups
	for g := range parts {
		xs, err := e.cut(x, 1, g*in, in)
		if err != nil {
			return nil, err
		}
		ws, err := e.cut(w, 0, g*out, out)
		if err != nil {
			return nil, err
		}
		if parts[g], err = one(xs, ws); err != nil {
			return nil, err
		}
	}
	return gorg.Concat(1, parts...)
}

// cut takes size elements of an axis; Gorgonia drops an axis of which one element is left. It takes slices of a value for the same
// that begin and end at the same numbers modulo 256, so that here all begin before.
func (e *exporter) cut(x *gorg.Node, axis, start, size int) (*gorg.Node, error) {
	const most = math.MaxUint8
	s := x.Shape()
	switch {
	case size == s[axis]:
		return x, nil
	case start > most:
		x, err := e.cut(x, axis, most, s[axis]-most)
		if err != nil {
			return nil, err
		}
		return e.cut(x, axis, start-most, size)
	}
	s[axis] = size
	sl := make([]tensor.Slice, axis+1)
	sl[axis] = gorg.S(start, start+size)
	y, err := gorg.Slice(x, sl...)
	if err != nil {
		return nil, err
	}
	return e.reshape(y, s...)
}

// reduceForm writes a reduction of the rows of a matrix of cols columns, or says why Gorgonia has none.
type reduceForm struct {
	write   func(e *exporter, x *gorg.Node, d graph.DType, cols int) (*gorg.Node, error)
	refused string
}

var reductions = map[graph.ReduceFn]reduceForm{
	graph.Sum: {write: func(_ *exporter, x *gorg.Node, _ graph.DType, _ int) (*gorg.Node, error) { return gorg.Sum(x, 1) }},
	graph.Mean: {write: func(e *exporter, x *gorg.Node, d graph.DType, cols int) (*gorg.Node, error) {
		return chain(x, func(x *gorg.Node) (*gorg.Node, error) { return gorg.Sum(x, 1) },
			func(x *gorg.Node) (*gorg.Node, error) { return gorg.HadamardDiv(x, e.scalar(d, float64(cols))) })
	}},
	graph.MaxOf: {write: func(_ *exporter, x *gorg.Node, _ graph.DType, _ int) (*gorg.Node, error) { return gorg.Max(x, 1) }},
	graph.MinOf: {write: func(e *exporter, x *gorg.Node, d graph.DType, _ int) (*gorg.Node, error) {
		x, err := e.own(x, d)
		if err != nil {
			return nil, err
		}
		return chain(x, gorg.Neg, func(x *gorg.Node) (*gorg.Node, error) { return gorg.Max(x, 1) }, gorg.Neg)
	}},
	graph.Prod: {refused: "it has no products of many numbers"},
}

// pools are Gorgonia's pools of square padding.
var pools = map[graph.PoolFn]func(e *exporter, op graph.Pool, x *gorg.Node, to graph.Type) (*gorg.Node, error){
	graph.MaxPool: func(_ *exporter, op graph.Pool, x *gorg.Node, _ graph.Type) (*gorg.Node, error) {
		return gorg.MaxPool2D(x, op.Kernel.Slice(), op.Pad.Slice()[:2], op.Stride.Slice())
	},
	graph.AvgPool: (*exporter).meanPool,
}

func init() {
	if err := errors.Join(graph.CheckReductions("graph/gorgonia", reductions), graph.CheckPools("graph/gorgonia", pools)); err != nil {
		panic(err)
	}
}

// reduce moves the axes to the end and reduces a matrix along its rows, the form that Gorgonia gets right.
func (e *exporter) reduce(op graph.Reduce, x *gorg.Node, n *graph.Node) (*gorg.Node, error) {
	s, d := n.Args[0].Type.Shape, n.Type.DType
	axes := op.Axes.Slice()
	slices.Sort(axes)
	rest, rows := others(s, axes)
	cols := s.Elems() / max(rows, 1)
	var err error
	if perm := slices.Concat(rest, axes); s.Rank() > 0 {
		if x, err = gorg.Transpose(x, perm...); err != nil {
			return nil, err
		}
	}
	if x, err = e.reshape(x, rows, cols); err != nil {
		return nil, err
	}
	form := reductions[op.Fn]
	if form.refused != "" {
		return nil, fmt.Errorf("no reduction %v in Gorgonia: %s", op.Fn, form.refused)
	}
	x, err = form.write(e, x, d, cols)
	if err != nil {
		return nil, err
	}
	if n.Type.Shape.Rank() == 0 {
		return gorg.Sum(x) // one element, of rank 1
	}
	return e.reshape(x, n.Type.Shape.Slice()...)
}

// broadcast repeats x to shape s. Gorgonia repeats a node only to the shape of another, which is an input of zeros
// here, and along four axes at most.
func (e *exporter) broadcast(x *gorg.Node, s graph.Shape) (*gorg.Node, error) {
	from := x.Shape()
	if slices.Equal(from, s.Slice()) {
		return x, nil
	}
	d, err := e.dtype(x)
	if err != nil {
		return nil, err
	}
	if len(from) == 0 {
		zeros := e.tensor(graph.NewTensor(graph.Type{DType: d, Shape: s}))
		return gorg.Add(zeros, x)
	}
	dims := slices.Concat(slices.Repeat([]int{1}, s.Rank()-len(from)), []int(from))
	var axes []byte
	for i, k := range dims {
		if k != s.At(i) {
			axes = append(axes, byte(i))
		}
	}
	if x, err = e.reshape(x, dims...); err != nil || len(axes) == 0 {
		return x, err
	}
	if last := axes[len(axes)-1]; last > 3 {
		return nil, fmt.Errorf("broadcast along axis %d: in Gorgonia only the first four can be", last)
	}
	zeros := e.tensor(graph.NewTensor(graph.Type{DType: d, Shape: s}))
	y, _, err := gorg.Broadcast(x, zeros, gorg.NewBroadcastPattern(axes, nil))
	return y, err
}

func (e *exporter) slice(op graph.Slice, x *gorg.Node, n *graph.Node) (*gorg.Node, error) {
	at, ok := n.Args[1].ConstScalar()
	if !ok {
		return nil, fmt.Errorf("a slice with a computed start; in Gorgonia it is a constant")
	}
	start := int(at)
	if op.Step == 1 && op.Size > 0 {
		return e.cut(x, op.Axis, start, op.Size)
	}
	ix := graph.NewTensor(graph.TypeOf(graph.I64, op.Size))
	for i := range op.Size {
		ix.SetFloat(i, float64(start+i*op.Step))
	}
	return e.rows(x, e.tensor(ix), op.Axis)
}

// rows takes slices by index. Gorgonia is right for the first axis only.
func (e *exporter) rows(x, ix *gorg.Node, axis int) (*gorg.Node, error) {
	if axis == 0 && len(x.Shape()) > 1 {
		return gorg.ByIndices(x, ix, 0)
	}
	s := x.Shape()
	perm := []int{axis}
	for i := range s {
		if i != axis {
			perm = append(perm, i)
		}
	}
	t, err := gorg.Transpose(x, perm...)
	if err != nil {
		return nil, err
	}
	rest := elems(s) / max(s[axis], 1)
	if t, err = e.reshape(t, s[axis], rest); err != nil {
		return nil, err
	}
	if t, err = gorg.ByIndices(t, ix, 0); err != nil {
		return nil, err
	}
	dims := []int{ix.Shape()[0]}
	for _, p := range perm[1:] {
		dims = append(dims, s[p])
	}
	if t, err = e.reshape(t, dims...); err != nil {
		return nil, err
	}
	back := make([]int, len(perm))
	for i, p := range perm {
		back[p] = i
	}
	return gorg.Transpose(t, back...)
}

func (e *exporter) gather(op graph.Gather, x, ix *gorg.Node, n *graph.Node) (*gorg.Node, error) {
	t := n.Args[1].Type
	if t.DType != graph.I64 {
		return nil, fmt.Errorf("indices of type %v; in Gorgonia they are i64", t.DType)
	}
	ix, err := e.reshape(ix, t.Shape.Elems())
	if err != nil {
		return nil, err
	}
	y, err := e.rows(x, ix, op.Axis)
	if err != nil {
		return nil, err
	}
	return e.reshape(y, n.Type.Shape.Slice()...)
}

// pad joins constant tensors to the operand.
func (e *exporter) pad(op graph.Pad, x *gorg.Node, n *graph.Node) (*gorg.Node, error) {
	s := n.Args[0].Type.Shape
	for axis := range s.Rank() {
		parts := make([]*gorg.Node, 0, 3)
		fill := func(k int) {
			if k > 0 {
				parts = append(parts, e.tensor(graph.Filled(graph.Type{DType: n.Type.DType, Shape: s.With(axis, k)}, op.Value)))
			}
		}
		fill(op.Lo.At(axis))
		parts = append(parts, x)
		fill(op.Hi.At(axis))
		if len(parts) == 1 {
			continue
		}
		var err error
		if x, err = gorg.Concat(axis, parts...); err != nil {
			return nil, err
		}
		s = s.With(axis, n.Type.Shape.At(axis))
	}
	return x, nil
}

// random makes a random node with a name: Gorgonia takes those without one for the same if their types are.
func (e *exporter) random(op graph.Random) *gorg.Node {
	d, s, scratch := dtypeFor(op.Type.DType), op.Type.Shape.Slice(), gorg.NewGraph()
	var x *gorg.Node
	switch op.Dist {
	case graph.Uniform:
		x = gorg.UniformRandomNode(scratch, d, op.A, op.B, s...)
	case graph.Normal:
		x = gorg.GaussianRandomNode(scratch, d, op.A, op.B, s...)
	default:
		x = gorg.BinomialRandomNode(scratch, d, 1, op.A, s...)
	}
	return gorg.NewUniqueNode(gorg.WithType(x.Type()), gorg.WithOp(x.Op()), gorg.In(e.Graph), gorg.WithShape(s...),
		e.name("random"))
}

func (e *exporter) pool(op graph.Pool, x *gorg.Node, n *graph.Node) (*gorg.Node, error) {
	if err := symmetric(op.Pad); err != nil {
		return nil, err
	}
	return pools[op.Fn](e, op, x, n.Type)
}

// meanPool writes a mean as Gorgonia's, which divides by the width of the image, times that over the size of the window.
func (e *exporter) meanPool(op graph.Pool, x *gorg.Node, to graph.Type) (*gorg.Node, error) {
	pad, stride := op.Pad.Slice()[:2], op.Stride.Slice()
	if !op.CountPad && (pad[0] > 0 || pad[1] > 0) {
		return nil, fmt.Errorf("a mean that does not count the padding; in Gorgonia it does")
	}
	// Not by AveragePool2D, whose divisor is wrong on Gorgonia's machines and right when it is imported.
	y, err := gorg.Im2Col(x, op.Kernel.Slice(), pad, stride, tensor.Shape{1, 1})
	if err != nil {
		return nil, err
	}
	s, window := to.Shape, op.Kernel.At(0)*op.Kernel.At(1)
	rows := func(y *gorg.Node) (*gorg.Node, error) { return gorg.Reshape(y, tensor.Shape{s.Elems(), window}) }
	sum := func(y *gorg.Node) (*gorg.Node, error) { return gorg.Sum(y, 1) }
	mean := func(y *gorg.Node) (*gorg.Node, error) {
		return gorg.HadamardProd(y, e.scalar(to.DType, 1/float64(window)))
	}
	image := func(y *gorg.Node) (*gorg.Node, error) {
		return gorg.Reshape(y, tensor.Shape{s.At(0), s.At(2), s.At(3), s.At(1)})
	}
	turn := func(y *gorg.Node) (*gorg.Node, error) { return gorg.Transpose(y, 0, 3, 1, 2) }
	return chain(y, rows, sum, mean, image, turn)
}
