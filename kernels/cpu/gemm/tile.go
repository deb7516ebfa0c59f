package gemm

import (
	"errors"

	"fusec/graph"
	"fusec/kernels/cpu/tiling"
)

// A Micro is the innermost part of a product, for algorithms that pack their operands into panels themselves (see
// [Pack]) and process the result of a product in the cache before the next one.
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

	// TileRows is Tile with A in place: element (i, k) of the blocks' rows, MR for each, is a[i·lda + k]. TileColumns
	// is that with a[i + k·lda], and ColumnsMR rows for each block. They are nil where there are none.
	TileRows, TileColumns func(tiles, kc, lda int, a, b, c *T, ldc int, accumulate bool)
	ColumnsMR             int

	// Few are routines for a few vectors and many rows, those for the most vectors first. There may be none.
	Few []Few[T, T]
	// Halves are those for rows of BF16 and F16.
	Halves map[graph.DType][]Few[T, uint16]
	// Bytes are those for rows of I8, whose integers are multiplied as they are.
	Bytes []Few[T, int8]

	// Of routines of [Quads]: Dots says that one instruction multiplies four pairs and adds them to a sum, as AVX512-VNNI and Arm's
	// dot products do, and StoresBytes that Gather scales sums and stores bytes where a [Finish] says so.
	Dots, StoresBytes bool

	gather []gatherPanel[T] // see Gather
	spread []spreadTile[T]  // see Spread

	narrowRows int
	narrow     func(tiles, kc int, a, b, c *T, ldc int, accumulate bool)
}

// Few is products of so many vectors with many rows of elements E, each of which is read once. Elements of a vector and of a row
// are side by side, and as many as a multiple of Lanes.
type Few[T Float, E any] struct {
	Vectors, Lanes int
	// Dots sets s[r·lds+j] to the dot product of row r of q, of Vectors, and row j of x, of n. Rows have depth elements, not 0.
	Dots func(n, depth int, q *T, ldq int, x *E, ldx int, s *T, lds int)
	// Sums adds p[r·ldp+j] times row j of x, for all n of them, not 0, to row r of y, of Vectors.
	Sums func(n, width int, p *T, ldp int, x *E, ldx int, y *T, ldy int)
}

// Fit returns m with the panels of A in which a product of so many rows computes the fewest that it does not need.
func (m Micro[T]) Fit(rows int) Micro[T] {
	if n := m.narrow; n != nil && tiling.RoundUp(rows, m.narrowRows) < tiling.RoundUp(rows, m.MR) {
		m.MR, m.Tile = m.narrowRows, n
	}
	return m
}

// MicroOf returns the routines that this processor runs fastest.
func MicroOf[T Float]() Micro[T] { return kernels[T]()[0].micro() }

func (k *kernel[T]) micro() Micro[T] {
	return Micro[T]{MR: k.mr, NR: k.nr, Tile: k.tile, Dot: k.dot, Axpy4: k.axpy4,
		TileRows: k.tileRows, TileColumns: k.tileColumns, ColumnsMR: k.narrowRows, gather: k.gather, spread: k.spread,
		narrowRows: k.narrowRows, narrow: k.narrow, Few: k.fewVectors, Halves: k.fewHalves, Bytes: k.fewBytes}
}

// Quads returns routines whose Gather multiplies integers: an element of A is four bytes without a sign, one of B four with a sign,
// and their product is the sum of four products. Sums of 32 bits are rounded to C every [gatherSteps] elements. The error is that
// this processor has none.
func Quads() (Micro[float32], error) {
	list := quads()
	if list == nil {
		return Micro[float32]{}, errors.New("there are no kernels for sums of integers on this processor")
	}
	return list[0].micro(), nil
}

// quadKernel is what an instruction set has for [Quads].
type quadKernel struct {
	panels            []gatherPanel[float32]
	dots, storesBytes bool // see Micro
}

func (k quadKernel) micro() Micro[float32] {
	m := MicroOf[float32]()
	m.gather, m.NR, m.Dots, m.StoresBytes = k.panels, k.panels[0].width, k.dots, k.storesBytes
	return m
}

// Micros returns the routines of every instruction set that this processor runs, the fastest first, for tests.
func Micros[T Float]() []Micro[T] {
	var list []Micro[T]
	for _, k := range kernels[T]() {
		list = append(list, k.micro())
	}
	return list
}
