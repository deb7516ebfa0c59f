package cpu

import (
	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/conv"
	"fusec/kernels/cpu/depthwise"
	"fusec/kernels/cpu/gemm"
)

// A planesConv convolves images of NCHW of one group, see [conv.Planes]. A bias, a residual and bounds are applied to sums in
// registers. Other programs run over each band of the result while it is in the cache.
type planesConv[T float] struct {
	epilogue[T]
	plan         *conv.Planes[T]
	x, w         int // arguments
	finish       conv.PlanesFinish[T]
	fused        *fusedFinish[T] // what is applied in registers, or nil: the epilogue does it
	frozen, warm bool            // filters are frozen; they are packed
}

// newConvPlanes compiles a Fusion anchored on a Conv2D of NCHW. The kernel is nil if there is none for its operands on this
// processor.
func newConvPlanes[T float](b *body.Program, op graph.Conv2D, args, results []Operand, env *Env) (Kernel, error) {
	x, w, out := b.Operands[0], b.Operands[1], b.Space
	if op.Groups > 1 {
		return newPlanewise[T](b, op, results, env)
	}
	if x.Layout.Stride[3] != 1 && x.Layout.Shape.At(3) > 1 || x.Layout.Shape.At(1) == 0 {
		return nil, nil
	}
	planes, side := planesOf(out)
	distances := func(l graph.Layout) (image, plane int) {
		l, _ = l.Reshape(planes)
		return l.Stride[0], l.Stride[1]
	}
	k := &planesConv[T]{epilogue: epilogue[T]{env: env}, x: x.Arg, w: w.Arg, frozen: args[w.Arg].Frozen}
	if f := fusedFinishOf[T](b, 1); f != nil && f.scale == nil && side(b.Stores[0].Layout) &&
		(f.residual == nil || side(f.residual.Layout)) {
		k.fused, k.finish = f, conv.PlanesFinish[T]{Low: f.low, High: f.high, Gate: f.gate}
		k.home, k.c = 0, b.Stores[0].Layout
		if f.residual != nil {
			k.finish.Image, k.finish.Plane = distances(f.residual.Layout)
		}
	} else if err := k.compile(b, 2, results, side); err != nil {
		return nil, err
	}
	cfg := conv.PlanesConfig{Op: op, X: x.Layout, W: w.Layout}
	cfg.Image, cfg.Plane = distances(k.c)
	var err error
	if k.plan, err = conv.NewPlanes[T](cfg, env.Pool, env.gemm); err != nil || k.plan == nil {
		return nil, err
	}
	k.cut(k.plan.Bands())
	return k, nil
}

// Run implements [Kernel].
func (k *planesConv[T]) Run(args, results []Memory) error {
	if !k.warm {
		if err := k.plan.Pack(elems[T](args[k.w])); err != nil {
			return err
		}
		k.warm = k.frozen
	}
	y := k.begin(args, results)
	defer k.release()
	x := elems[T](args[k.x])
	switch {
	case k.fused != nil:
		k.finish.Shift, _, k.finish.Residual = k.fused.operands(args)
		return k.plan.Run(x, y, &k.finish, nil)
	case k.p == nil:
		return k.plan.Run(x, y, nil, nil)
	}
	if err := k.plan.Run(x, y, nil, k); err != nil {
		return err
	}
	return k.end()
}

// release drops what a run referred to.
func (k *planesConv[T]) release() {
	k.done()
	k.finish.Shift, k.finish.Residual = nil, nil
}

func (k *planesConv[T]) thaw() { k.warm = false }

func (k *planesConv[T]) bytes() int64 { return k.epilogue.bytes() + k.plan.Bytes() }

// Tile runs the epilogue over a finished block; see conv.Epilogue.
func (k *planesConv[T]) Tile(worker, band, row, col, rows, cols int) {
	k.tile(worker, band, row, col, rows, cols)
}

// planesOf is the shape of images of NCHW with the pixels of a plane in one axis, and whether these stand side by side in a layout.
func planesOf(out graph.Shape) (planes graph.Shape, side func(graph.Layout) bool) {
	planes = graph.ShapeOf(out.At(0), out.At(1), out.At(2)*out.At(3))
	return planes, func(l graph.Layout) bool {
		l, ok := l.Reshape(planes)
		return ok && unitColumns(l)
	}
}

// A planewise kernel convolves each channel of images of NCHW with a filter of its own, see [depthwise.Planes]. A bias and
// bounds are applied to sums in registers. Other programs run over the planes of an item while they are in the cache.
type planewise[T float] struct {
	epilogue[T]
	plan      *depthwise.Planes[T]
	x, w      int             // arguments
	fused     *fusedFinish[T] // what is applied in registers, or nil: the epilogue does it
	low, high T
	channels  int
}

// newPlanewise compiles a Fusion anchored on such a convolution. The kernel is nil if there is none for its operands on this
// processor.
func newPlanewise[T float](b *body.Program, op graph.Conv2D, results []Operand, env *Env) (Kernel, error) {
	x, w, out := b.Operands[0], b.Operands[1], b.Space
	_, side := planesOf(out)
	none := depthwise.Unfinished[T]()
	k := &planewise[T]{epilogue: epilogue[T]{env: env}, x: x.Arg, w: w.Arg, low: none.Low, high: none.High, channels: out.At(1)}
	if f := fusedFinishOf[T](b, 1); f != nil && f.scale == nil && f.residual == nil && f.gate.Slope == 0 && side(b.Stores[0].Layout) {
		k.fused, k.low, k.high = f, f.low, f.high
		k.home, k.c = 0, b.Stores[0].Layout
	} else if err := k.compile(b, 2, results, side); err != nil {
		return nil, err
	}
	y := k.c
	y.Offset = 0
	cfg := depthwise.PlanesConfig{Op: op, X: x.Layout, W: w.Layout, Y: y}
	if k.plan = depthwise.NewPlanes[T](cfg, env.Pool.Workers()); k.plan == nil {
		return nil, nil
	}
	k.cut(k.plan.Items())
	return k, nil
}

// Run implements [Kernel].
func (k *planewise[T]) Run(args, results []Memory) error {
	y := k.begin(args, results)
	defer k.done()
	var shift []T
	if k.fused != nil {
		shift, _, _ = k.fused.operands(args)
	}
	k.plan.Bind(elems[T](args[k.x]), elems[T](args[k.w]), y, shift, k.low, k.high)
	defer k.plan.Bind(nil, nil, nil, nil, 0, 0)
	k.env.Pool.Run(k.plan.Items(), k)
	if k.p == nil {
		return nil
	}
	return k.end()
}

// Do computes an item; see pool.Task.
func (k *planewise[T]) Do(worker, item int) {
	k.plan.Do(worker, item)
	if k.p != nil {
		image, lo, hi := k.plan.Channels(item)
		k.tile(worker, item, image*k.channels+lo, 0, hi-lo, k.c.Shape.At(2)*k.c.Shape.At(3))
	}
}

func (k *planewise[T]) bytes() int64 { return k.epilogue.bytes() + k.plan.Bytes() }

// TakesPlanes reports whether this processor has a kernel for a convolution of images of NCHW as they lie, with filters of such a
// shape: see [conv.Planes] and [depthwise.Planes]. Others are products of packed patches.
func TakesPlanes(op graph.Conv2D, filters graph.Shape) bool {
	o, _, kh, kw := graph.NCHW.FilterDims(filters)
	if op.Layout != graph.NCHW || op.Groups == 1 {
		return op.Layout == graph.NCHW && gemm.MicroOf[float32]().SpreadRows() > 0
	}
	return depthwise.TakesPlanes[float32](op, o, kh, kw)
}
