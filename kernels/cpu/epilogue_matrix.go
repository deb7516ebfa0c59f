package cpu

import (
	"math"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/gemm"
)

// A matrixEpilogue is what follows a product that reads its rows where they lie, or a convolution of images of NHWC, whose result
// is a matrix with a row for each pixel. A bias, a residual and bounds are applied to sums in registers. Other programs run over
// each block of the result while it is in the cache, after a bias that they begin with.
type matrixEpilogue[T float] struct {
	epilogue[T]
	finish gemm.MatrixFinish[T]
	fused  *fusedFinish[T] // what is applied in registers, or nil: the epilogue does the rest
	shift  *body.Value     // the bias that is applied in registers before the epilogue, or nil
}

// compileFinish compiles what follows, and returns the layout of the matrix, whose columns are the last axis. A residual may be
// added in registers, or not.
func (k *matrixEpilogue[T]) compileFinish(b *body.Program, residual bool, results []Operand) (graph.Layout, error) {
	columns := b.Space.Rank() - 1
	matrix := graph.ShapeOf(b.Space.With(columns, 1).Elems(), b.Space.At(columns))
	rows := func(l graph.Layout) bool {
		l, ok := l.Reshape(matrix)
		return ok && unitColumns(l)
	}
	if f := fusedFinishOf[T](b, columns); f != nil && f.scale == nil && rows(b.Stores[0].Layout) &&
		(f.residual == nil || residual && rows(f.residual.Layout)) {
		k.fused, k.finish = f, gemm.MatrixFinish[T]{Low: f.low, High: f.high, Gate: f.gate}
		k.home, k.c = 0, b.Stores[0].Layout
		if f.residual != nil {
			l, _ := f.residual.Layout.Reshape(matrix)
			k.finish.RowStride = l.Stride[0]
		}
	} else {
		if b, k.shift = withoutShift[T](b, columns); k.shift != nil {
			k.finish = gemm.MatrixFinish[T]{Low: T(math.Inf(-1)), High: T(math.Inf(1))}
		}
		if err := k.compile(b, columns, results, rows); err != nil {
			return graph.Layout{}, err
		}
	}
	c, _ := k.c.Reshape(matrix)
	return c, nil
}

// start begins a run. It returns the memory of the matrix from its first element on, and what is applied to it.
func (k *matrixEpilogue[T]) start(args, results []Memory) (y []T, finish *gemm.MatrixFinish[T], then gemm.Epilogue) {
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
func (k *matrixEpilogue[T]) complete() error {
	if k.p == nil {
		return nil
	}
	return k.end()
}

// release drops what a run referred to.
func (k *matrixEpilogue[T]) release() {
	k.done()
	k.finish.Shift, k.finish.Residual = nil, nil
}

// Tile runs the epilogue over a finished block; see conv.Epilogue.
func (k *matrixEpilogue[T]) Tile(worker, band, row, col, rows, cols int) {
	k.tile(worker, band, row, col, rows, cols)
}
