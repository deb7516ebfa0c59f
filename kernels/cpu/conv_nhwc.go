package cpu

import (
	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/conv"
)

// A convolution kernel convolves images of NHWC, see package conv. A bias, a residual and bounds are applied to sums in
// registers. Other programs run over each band of the result while it is in the cache.
type convolution[T float] struct {
	epilogue[T]
	plan *conv.Plan[T]
	x, w int // arguments

	finish conv.Finish[T]
	fused  *fusedFinish[T] // what is applied in registers, or nil: the epilogue does it

	filters *conv.Filters[T] // of frozen filters
	warm    bool             // filters are packed
}

// newConvNHWC compiles a Fusion anchored on a Conv2D of NHWC.
func newConvNHWC[T float](b *body.Program, op graph.Conv2D, args, results []Operand, env *Env) (Kernel, error) {
	x, w, out := b.Operands[0], b.Operands[1], b.Space
	k := &convolution[T]{epilogue: epilogue[T]{env: env}, x: x.Arg, w: w.Arg}
	matrix := graph.ShapeOf(out.At(0)*out.At(1)*out.At(2), out.At(3))
	rows := func(l graph.Layout) bool {
		l, ok := l.Reshape(matrix)
		return ok && unitColumns(l)
	}
	if f := fusedFinishOf[T](b); f != nil && f.scale == nil && rows(b.Stores[0].Layout) &&
		(f.residual == nil || rows(f.residual.Layout)) {
		k.fused, k.finish = f, conv.Finish[T]{Low: f.low, High: f.high}
		k.home, k.c = 0, b.Stores[0].Layout
		if f.residual != nil {
			l, _ := f.residual.Layout.Reshape(matrix)
			k.finish.RowStride = l.Stride[0]
		}
	} else if err := k.compile(b, 3, results, rows); err != nil {
		return nil, err
	}
	c, _ := k.c.Reshape(matrix)
	cfg := conv.Config[T]{Op: op, X: x.Layout, W: w.Layout, RowStride: c.Stride[0], Band: env.Tuning.bandOf(op, x, w)}
	var err error
	if args[k.w].Frozen && matrix.At(0) > 0 {
		if k.filters, err = conv.NewFilters[T](op.Groups, w.Layout, env.Pool); err != nil {
			return nil, err
		}
		cfg.Filters = k.filters
	}
	if k.plan, err = conv.New(cfg, env.Pool, env.gemm); err != nil {
		return nil, err
	}
	k.cut(k.plan.Bands())
	return k, nil
}

func (k *convolution[T]) Run(args, results []Memory) error {
	w := elems[T](args[k.w])
	if k.filters != nil && !k.warm {
		if err := k.filters.Update(w); err != nil {
			return err
		}
		k.warm = true
	}
	y := k.begin(args, results)
	defer k.done()
	if k.fused != nil {
		k.finish.Shift, _, k.finish.Residual = k.fused.operands(args)
		defer func() { k.finish.Shift, k.finish.Residual = nil, nil }()
		return k.plan.Run(elems[T](args[k.x]), w, y, &k.finish, nil)
	}
	if k.p == nil {
		return k.plan.Run(elems[T](args[k.x]), w, y, nil, nil)
	}
	if err := k.plan.Run(elems[T](args[k.x]), w, y, nil, k); err != nil {
		return err
	}
	return k.end()
}

func (k *convolution[T]) thaw() { k.warm = false }

func (k *convolution[T]) bytes() int64 {
	n := k.epilogue.bytes() + k.plan.Bytes()
	if k.filters != nil {
		n += int64(k.filters.Bytes())
	}
	return n
}

// Tile runs the epilogue over a finished block; see conv.Epilogue.
func (k *convolution[T]) Tile(worker, band, row, col, rows, cols int) {
	k.tile(worker, band, row, col, rows, cols)
}
