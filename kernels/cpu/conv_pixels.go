package cpu

import (
	"math"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/conv"
)

// A pixelEpilogue is what follows a convolution of images of NHWC, whose result is a matrix with a row for each pixel. A bias, a
// residual and bounds are applied to sums in registers. Other programs run over each block of the result while it is in the
// cache, after a bias that they begin with.
type pixelEpilogue[T float] struct {
	epilogue[T]
	finish conv.Finish[T]
	fused  *fusedFinish[T] // what is applied in registers, or nil: the epilogue does the rest
	shift  *body.Value     // the bias that is applied in registers before the epilogue, or nil
}

// compileFinish compiles what follows, and returns the layout of the matrix. A residual may be added in registers, or not.
func (k *pixelEpilogue[T]) compileFinish(b *body.Program, residual bool, results []Operand) (graph.Layout, error) {
	out := b.Space
	matrix := graph.ShapeOf(out.At(0)*out.At(1)*out.At(2), out.At(3))
	rows := func(l graph.Layout) bool {
		l, ok := l.Reshape(matrix)
		return ok && unitColumns(l)
	}
	if f := fusedFinishOf[T](b, 3); f != nil && f.scale == nil && rows(b.Stores[0].Layout) &&
		(f.residual == nil || residual && rows(f.residual.Layout)) {
		k.fused, k.finish = f, conv.Finish[T]{Low: f.low, High: f.high, Gate: f.gate}
		k.home, k.c = 0, b.Stores[0].Layout
		if f.residual != nil {
			l, _ := f.residual.Layout.Reshape(matrix)
			k.finish.RowStride = l.Stride[0]
		}
	} else {
		if b, k.shift = withoutShift[T](b, 3); k.shift != nil {
			k.finish = conv.Finish[T]{Low: T(math.Inf(-1)), High: T(math.Inf(1))}
		}
		if err := k.compile(b, 3, results, rows); err != nil {
			return graph.Layout{}, err
		}
	}
	c, _ := k.c.Reshape(matrix)
	return c, nil
}

// start begins a run. It returns the memory of the matrix from its first element on, and what is applied to it.
func (k *pixelEpilogue[T]) start(args, results []Memory) (y []T, finish *conv.Finish[T], then conv.Epilogue) {
	y = k.begin(args, results)
	switch {
	case k.fused != nil:
		k.finish.Shift, _, k.finish.Residual = k.fused.operands(args)
		return y, &k.finish, nil
	case k.p != nil:
		then = k
	}
	if k.shift != nil {
		finish, k.finish.Shift = &k.finish, loadOf[T](k.shift, args)
	}
	return y, finish, then
}

// complete ends a run after the last block.
func (k *pixelEpilogue[T]) complete() error {
	if k.p == nil {
		return nil
	}
	return k.end()
}

// release drops what a run referred to.
func (k *pixelEpilogue[T]) release() {
	k.done()
	k.finish.Shift, k.finish.Residual = nil, nil
}

// Tile runs the epilogue over a finished block; see conv.Epilogue.
func (k *pixelEpilogue[T]) Tile(worker, band, row, col, rows, cols int) {
	k.tile(worker, band, row, col, rows, cols)
}
