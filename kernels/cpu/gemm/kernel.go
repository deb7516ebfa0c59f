package gemm

import (
	"fusec/graph"
	"fusec/kernels/cpu/tiling"
)

// A kernel is the set of routines that one instruction set offers for one
// element type.
type kernel[T Float] struct {
	name string
	// mr and nr are the rows and columns of the block of C that tile holds
	// in registers, and so the widths of A's and B's panels.
	mr, nr int

	// tile computes a column of blocks of mr×nr, tiles of them: C = A·B, or
	// C += A·B if accumulate. a points to one panel of A, [kc][mr], for each
	// block; b to a panel of B, [kc][nr]; rows of c are ldc elements apart.
	// Neither tiles nor kc is 0.
	tile func(tiles, kc int, a, b, c *T, ldc int, accumulate bool)
	// tileAhead is tile, and asks for the panel of B that follows b in memory, for products that read B from there; nil
	// if there is no such routine.
	tileAhead func(tiles, kc int, a, b, c *T, ldc int, accumulate bool)
	// few is the kernel with fewer rows in registers, for products in which it computes fewer that are not needed; nil if
	// there is none. Its nr is the same.
	few *kernel[T]
	// narrow is tile with panels of A of narrowRows, fewer than mr; 0 and nil
	// if there is no such routine.
	narrowRows int
	narrow     func(tiles, kc int, a, b, c *T, ldc int, accumulate bool)
	// tileRows is tile, and tileColumns narrow, with A in place: rows or columns of A are lda elements apart. Both are nil
	// if there are none.
	tileRows, tileColumns func(tiles, kc, lda int, a, b, c *T, ldc int, accumulate bool)
	// gather lists the kernels for rows of A that lie anywhere, those for the widest panels of B first.
	gather []gatherPanel[T]
	// spread lists the kernels for rows of B that lie anywhere, those for the most columns first. It is empty if there are none.
	spread []spreadTile[T]
	// pack is as the function Pack, whose arguments have been checked.
	pack func(dst []T, width, k, n int, src []T, kStride, nStride int)
	// dot returns the dot product of n elements.
	dot func(n int, x, y *T) T
	// axpy4 adds alpha[0]·x₀ + … + alpha[3]·x₃ to y, n elements each; row xᵢ
	// starts i·stride elements after x.
	axpy4 func(n int, alpha, x *T, stride int, y *T)
	// axpy4Ahead is axpy4, and asks for the four rows that follow; nil if there is no such routine.
	axpy4Ahead func(n int, alpha, x *T, stride int, y *T)
	// fewVectors are the routines for a few vectors and many rows.
	fewVectors []Few[T, T]
	fewHalves  map[graph.DType][]Few[T, uint16]
	fewBytes   []Few[T, int8]
}

// fit returns k, or its kernel for few rows if blocks of it cover the rows with less to spare.
func (k *kernel[T]) fit(rows int) *kernel[T] {
	if f := k.few; f != nil && rows <= fewRows && tiling.RoundUp(rows, f.mr) < tiling.RoundUp(rows, k.mr) {
		return f
	}
	return k
}

// withFew gives k the routines for few rows.
func withFew[T Float](k *kernel[T], mr int, tile, tileAhead func(tiles, kc int, a, b, c *T, ldc int, accumulate bool)) {
	few := *k
	few.mr, few.tile, few.tileAhead = mr, tile, tileAhead
	k.few = &few
}

// The kernels that this processor can run, the preferred one first.
var (
	kernels32 = append(native32(), portable[float32]())
	kernels64 = append(native64(), portable[float64]())
)

// kernels returns the list for one element type.
func kernels[T Float]() []*kernel[T] {
	if list, ok := any(kernels32).([]*kernel[T]); ok {
		return list
	}
	list, _ := any(kernels64).([]*kernel[T])
	return list
}

// Kernel returns the name of the instruction set in use.
func Kernel[T Float]() string { return kernels[T]()[0].name }
