package gemm

import (
	"errors"
	"fmt"

	"fusec/kernels/cpu/pool"
	"fusec/kernels/cpu/tiling"
)

// A Prepacked is an operand B in packed form, for weights that stay the same
// over many runs. Any number of plans may read it at the same time, whatever
// their M.
type Prepacked[T Float] struct {
	k, n, matrices int
	width          int
	layout         Layout
	kern           *kernel[T]
	pool           *pool.Pool
	need           int // elements of the source
	src            []T // during Update
	data           []T // [matrix][panel][k][width]
}

// Prepack packs a batch of k×n matrices in b with the given layout, on the workers of p. If layout has no Offsets, one
// matrix serves every member of a plan's batch; otherwise there is one for each offset.
func Prepack[T Float](k, n int, layout Layout, b []T, p *pool.Pool) (*Prepacked[T], error) {
	return prepack(k, n, layout, b, p, kernels[T]()[0])
}

func prepack[T Float](k, n int, layout Layout, b []T, p *pool.Pool, kern *kernel[T]) (*Prepacked[T], error) {
	if p == nil {
		return nil, errors.New("gemm: no pool")
	}
	if k < 0 || n < 0 {
		return nil, fmt.Errorf("gemm: negative size: B is %d×%d", k, n)
	}
	pre := &Prepacked[T]{
		k: k, n: n, matrices: 1,
		width: kern.nr, layout: layout, kern: kern, pool: p,
	}
	if layout.Offsets != nil {
		pre.matrices = len(layout.Offsets)
	}
	var err error
	if pre.need, err = layout.extent("B", pre.matrices, k, n); err != nil {
		return nil, err
	}
	pre.data = Aligned[T](pre.matrices * pre.stride())
	return pre, pre.Update(b)
}

// Update packs b again after its elements have changed. No plan may read the
// operand at the same time. It allocates nothing.
func (q *Prepacked[T]) Update(b []T) error {
	if len(b) < q.need {
		return fmt.Errorf("gemm: B (%d×%d) needs %d elements, the slice has %d", q.k, q.n, q.need, len(b))
	}
	q.src = b
	q.pool.Run(q.matrices*q.groups(), (*prepackTask[T])(q))
	q.src = nil
	return nil
}

// Bytes returns the size of the packed operand.
func (q *Prepacked[T]) Bytes() int { return len(q.data) * lineBytes / lineElements[T](1) }

// stride is the number of elements of one packed matrix, groups the number of packing items for it.
func (q *Prepacked[T]) stride() int { return PackedLen(q.width, q.k, q.n) }
func (q *Prepacked[T]) groups() int { return tiling.CeilDiv(q.n, packPanels*q.width) }

// panels returns the packed panels of a matrix from step k0 of the reduction on, starting with the panel of column col.
func (q *Prepacked[T]) panels(batch, k0, col int) []T {
	if q.matrices == 1 {
		batch = 0
	}
	return q.data[batch*q.stride()+k0*q.width+col*q.k:]
}

// fits reports whether the operand can be B of a product.
func (q *Prepacked[T]) fits(k, n, batch, width int) error {
	switch {
	case q.k != k || q.n != n:
		return fmt.Errorf("gemm: prepacked B is %d×%d, the product needs %d×%d", q.k, q.n, k, n)
	case q.layout.Offsets != nil && q.matrices != batch:
		return fmt.Errorf("gemm: prepacked B has %d matrices for a batch of %d", q.matrices, batch)
	case q.width != width:
		return fmt.Errorf("gemm: B is prepacked in panels of %d, the kernel needs %d", q.width, width)
	}
	return nil
}

// prepackTask packs some panels.
type prepackTask[T Float] Prepacked[T]

func (t *prepackTask[T]) Do(_, item int) {
	q := (*Prepacked[T])(t)
	matrix, col := item/q.groups(), item%q.groups()*packPanels*q.width
	cols := min(packPanels*q.width, q.n-col)
	src := q.src[q.layout.at(matrix)+col*q.layout.ColStride:]
	q.kern.pack(q.panels(matrix, 0, col), q.width, q.k, cols, src, q.layout.RowStride, q.layout.ColStride)
}
