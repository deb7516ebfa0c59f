package cpu

import (
	"fmt"
	"math"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/conv"
	"fusec/kernels/cpu/gemm"
)

// ConvolvesIntegers reports, as an error that carries the reason, that there is no kernel for a convolution of images x of U8 with
// filters w of I8.
func ConvolvesIntegers(op graph.Conv2D, w graph.Type) error {
	if _, err := gemm.Quads(); err != nil {
		return err
	}
	if op.Layout != graph.NHWC {
		return fmt.Errorf("the CPU has convolutions of integers in %v only", graph.NHWC)
	}
	if c := w.Shape.At(2); c == 0 || c%quad != 0 {
		return fmt.Errorf("sums of integers are over four channels at a time, and a filter has %d", c)
	}
	return nil
}

// DotsIntegers reports whether convolutions of integers are computed by an instruction that multiplies four pairs and adds them
// to a sum, as processors with AVX512-VNNI and those of Arm have it. AVX2 takes several.
func DotsIntegers() bool {
	m, err := gemm.Quads()
	return err == nil && m.Dots
}

// quad is the number of channels that are one element for the kernels of package conv.
const quad = 4

// An integerConvolution is a convolution of images of U8 in NHWC with filters of I8.
type integerConvolution struct {
	convolution[float32]
	stored *bytesFinish // what is applied in registers, which end as bytes, or nil
}

// newConvIntegers compiles a Fusion anchored on a convolution of images of U8 in NHWC with filters of I8.
func newConvIntegers(b *body.Program, op graph.Conv2D, args, results []Operand, env *Env) (Kernel, error) {
	if err := ConvolvesIntegers(op, b.Anchor.Args[1].Type); err != nil {
		return nil, fmt.Errorf("%s: %w", b.Anchor.Where(), err)
	}
	x, w := b.Operands[0], b.Operands[1]
	k := &integerConvolution{convolution: convolution[float32]{x: x.Arg, w: w.Arg, frozen: args[w.Arg].Frozen}}
	k.env = env
	c, err := k.compileBytes(b, results)
	if err != nil {
		return nil, err
	}
	images, ok := quadsOf(x.Layout)
	if !ok {
		return nil, fmt.Errorf("%s: the channels of its images are not side by side", b.Anchor.Where())
	}
	s := w.Layout.Shape
	shape := graph.Contiguous(s.With(2, s.At(2)/quad))
	quads := make([]float32, shape.Shape.Elems())
	filters, err := conv.NewQuadFilters(op.Groups, shape, env.Pool)
	if err != nil {
		return nil, err
	}
	k.packed = int64(filters.Bytes()) + 4*int64(len(quads))
	k.pack = func(m Memory) error {
		conv.Quads(quads, elems[int8](m), w.Layout)
		return filters.Update(quads)
	}
	cfg := conv.Config[float32]{Op: op, X: images, W: shape, RowStride: c.Stride[0], Filters: filters}
	plan, err := conv.NewQuads(cfg, env.Pool, env.gemm)
	if err != nil {
		return nil, err
	}
	k.plan = plan
	k.cut(plan.Bands())
	return k, nil
}

// quadsOf is the layout of images of bytes as elements of four channels.
func quadsOf(l graph.Layout) (graph.Layout, bool) {
	if l.Stride[3] != 1 || l.Offset%quad != 0 {
		return l, false
	}
	l.Shape, l.Offset = l.Shape.With(3, l.Shape.At(3)/quad), l.Offset/quad
	for i := range 3 {
		if l.Stride[i]%quad != 0 && l.Shape.At(i) > 1 {
			return l, false
		}
		l.Stride[i] /= quad
	}
	return l, true
}

// readsQuads reports whether images of a convolution are read as they lie, if they are integers.
func readsQuads(d graph.DType, l graph.Layout) bool {
	_, ok := quadsOf(l)
	return ok || d != graph.U8
}

// Run implements [Kernel].
func (k *integerConvolution) Run(args, results []Memory) error {
	if k.stored == nil {
		return k.convolution.Run(args, results)
	}
	if err := k.packFilters(args); err != nil {
		return err
	}
	y := k.begin(args, results)
	defer k.release()
	finish := k.stored.start(args, results)
	defer k.stored.release()
	return k.plan.Run(elems[float32](args[k.x]), nil, y, finish, nil)
}

// compileBytes compiles what follows: in registers if it ends as bytes there, else as [matrixEpilogue.compileFinish] does. It
// returns the layout of the sums.
func (k *integerConvolution) compileBytes(b *body.Program, results []Operand) (graph.Layout, error) {
	columns := b.Space.Rank() - 1
	matrix := graph.ShapeOf(b.Space.With(columns, 1).Elems(), b.Space.At(columns))
	micro, err := gemm.Quads()
	if err != nil || !micro.StoresBytes {
		return k.compileFinish(b, true, results)
	}
	f := bytesFinishOf(b, columns)
	if f == nil {
		return k.compileFinish(b, true, results)
	}
	l, ok := f.to.Reshape(matrix)
	if !ok || !unitColumns(l) || overlaps(l) {
		return k.compileFinish(b, true, results)
	}
	if !k.env.fits(int64(matrix.Elems()) * 4) {
		return graph.Layout{}, k.env.refused
	}
	f.to, f.finish.Step = l, l.Stride[0]
	k.stored, k.home, k.own, k.c = f, -1, make([]float32, matrix.Elems()), graph.Contiguous(b.Space)
	return graph.Contiguous(matrix), nil
}

// A bytesFinish is a body that adds a bias to each channel of the sums, scales and shifts it, rounds, moves by a zero point, limits
// and stores bytes: a quantisation.
type bytesFinish struct {
	bias, scale, shift *channelNumbers
	to                 graph.Layout
	finish             gemm.MatrixFinish[float32]
}

// channelNumbers is a number for each channel: what a load reads, or one for all.
type channelNumbers struct {
	load *body.Value
	all  []float32
}

func (n *channelNumbers) of(args []Memory) []float32 {
	switch {
	case n == nil:
		return nil
	case n.load != nil:
		return loadOf[float32](n.load, args)
	}
	return n.all
}

// start is what is applied in a run.
func (f *bytesFinish) start(args, results []Memory) *gemm.MatrixFinish[float32] {
	f.finish.Bias, f.finish.Scale, f.finish.Shift = f.bias.of(args), f.scale.of(args), f.shift.of(args)
	f.finish.Bytes = results[0][f.to.Offset:]
	return &f.finish
}

// release drops what a run referred to.
func (f *bytesFinish) release() {
	f.finish.Bias, f.finish.Scale, f.finish.Shift, f.finish.Bytes = nil, nil, nil, nil
}

// bytesFinishOf reads a body of one result as such; nil if it is another.
func bytesFinishOf(b *body.Program, channels int) *bytesFinish {
	if s := b.Stores; len(s) != 1 || s[0].Sums || s[0].PerRow || s[0].Pool != nil || s[0].Node.Type.DType != graph.U8 {
		return nil
	}
	uses := make([]int, len(b.Values))
	for i := range b.Values {
		for _, a := range b.Values[i].Args {
			uses[a]++
		}
	}
	at := b.Stores[0].Value
	// step is the operation of the value that is next, which nothing else reads, and goes on to the operand of it that is no load or
	// constant; with is the other one.
	step := func(fits func(op graph.Op) bool) (with *body.Value, ok bool) {
		v := &b.Values[at]
		if v.Kind != body.Elementwise || !fits(v.Node.Op) || uses[at] > 1 {
			return nil, false
		}
		if at = v.Args[0]; len(v.Args) == 1 {
			return nil, true
		}
		other := v.Args[1]
		if kind := b.Values[at].Kind; kind == body.Load || kind == body.Constant {
			at, other = other, at
		}
		return &b.Values[other], true
	}
	is := func(op graph.Op) func(graph.Op) bool { return func(o graph.Op) bool { return o == op } }
	relu := func(op graph.Op) bool { // of any gradient
		u, ok := op.(graph.Unary)
		return ok && u.Fn == graph.Relu
	}
	numbers := func(v *body.Value) *channelNumbers {
		switch {
		case v.Kind == body.Load && v.Node.Type.DType == graph.F32 && perChannel(v.Layout, channels):
			return &channelNumbers{load: v}
		case v.Kind == body.Constant && v.Number.Type.DType == graph.F32:
			all := make([]float32, b.Space.At(channels))
			for i := range all {
				all[i] = float32(v.Number.Float(0))
			}
			return &channelNumbers{all: all}
		}
		return nil
	}
	whole := func(v *body.Value) (float64, bool) {
		if v.Kind != body.Constant {
			return 0, false
		}
		c := v.Number.Float(0)
		return c, c == math.Trunc(c) && c >= 0 && c <= 255
	}
	if _, ok := step(is(graph.Cast{To: graph.U8})); !ok {
		return nil
	}
	low, high, zero := math.Inf(-1), math.Inf(1), 0.
	for {
		if _, ok := step(relu); ok {
			low = max(low, 0)
			continue
		}
		with, ok := step(is(graph.Binary{Fn: graph.Max}))
		larger := ok
		if !ok {
			with, ok = step(is(graph.Binary{Fn: graph.Min}))
		}
		if !ok {
			break
		}
		c, ok := whole(with)
		switch {
		case !ok:
			return nil
		case larger:
			low = max(low, c)
		default:
			high = min(high, c)
		}
	}
	if with, ok := step(is(graph.Binary{Fn: graph.Add})); ok {
		if zero, ok = whole(with); !ok {
			return nil
		}
	}
	if _, ok := step(is(graph.Unary{Fn: graph.Round})); !ok || !(low >= 0 && low <= high && high <= 255) {
		return nil
	}
	f := &bytesFinish{to: b.Stores[0].Layout}
	if with, ok := step(is(graph.Binary{Fn: graph.Add})); ok {
		if f.shift = numbers(with); f.shift == nil {
			return nil
		}
	}
	if with, ok := step(is(graph.Binary{Fn: graph.Mul})); ok {
		if f.scale = numbers(with); f.scale == nil {
			return nil
		}
		if with, ok := step(is(graph.Binary{Fn: graph.Add})); ok {
			if f.bias = numbers(with); f.bias == nil {
				return nil
			}
		}
	}
	if b.Values[at].Kind != body.AnchorResult || uses[at] > 1 {
		return nil
	}
	f.finish = gemm.MatrixFinish[float32]{Low: float32(low - zero), High: float32(high - zero), Zero: int32(zero)}
	return f
}
