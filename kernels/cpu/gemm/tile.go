package gemm

// A Micro is the innermost part of a product, for algorithms that hold their operands in panels of their own making
// (see [Pack]) and work on what a product leaves in the cache before the next one.
type Micro[T Float] struct {
	// MR is the width of the panels of A, NR that of the panels of B.
	MR, NR int
	// Tile computes a column of blocks of MR×NR, tiles of them: C = A·B, or C += A·B if accumulate. a points to one
	// panel of A, [kc][MR], for each block, one after another; b to a panel of B, [kc][NR]; rows of c are ldc elements
	// apart. Neither tiles nor kc may be 0. With ldc = NR, C is a panel of B for a product to follow.
	Tile func(tiles, kc int, a, b, c *T, ldc int, accumulate bool)
	// Dot returns the dot product of n elements.
	Dot func(n int, x, y *T) T
	// Axpy4 adds alpha[0]·x₀ + … + alpha[3]·x₃ to y, n elements each; row xᵢ starts i·stride elements after x.
	Axpy4 func(n int, alpha, x *T, stride int, y *T)
}

// MicroOf returns the routines that this processor runs fastest.
func MicroOf[T Float]() Micro[T] {
	k := kernels[T]()[0]
	return Micro[T]{MR: k.mr, NR: k.nr, Tile: k.tile, Dot: k.dot, Axpy4: k.axpy4}
}
