package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// A spreadKernel multiplies a panel of A by rows of B that lie anywhere: filters by the channels of an image, or by lines of
// it. Its store is that of a gatherKernel.
type spreadKernel struct{ gatherKernel }

// Rows of a panel of A. With AVX2, sums of two vectors for each take half of the registers.
const (
	spreadAVX512 = 8
	spreadAVX2   = 4
)

func spreadKernels() {
	for _, e := range []element{float32s, float64s} {
		for _, vectors := range []int{vectorsB, 1} {
			spreadKernel{gatherKernel{element: e, width: avx512, rows: spreadAVX512, vectors: vectors, shifts: true}}.generate()
			spreadKernel{gatherKernel{element: e, width: avx2, rows: spreadAVX2, vectors: vectors, shifts: true}}.generate()
		}
	}
}

func (k spreadKernel) generate() {
	name := fmt.Sprintf("spread%dx%d%s%s", k.rows, k.vectors*k.lanes(), k.isa(), k.suffix)
	begin(name,
		fmt.Sprintf("func(at *int, steps int, a, b, c *%[1]s, ldc, height, cols int, accumulate bool, finish *int)", k.goType),
		fmt.Sprintf("%s computes the first height rows, at most %d, and cols columns, at most %d,", name, k.rows, k.vectors*k.lanes()),
		fmt.Sprintf("of C = A·B, or of C += A·B if accumulate. a points to a panel of A, [steps][%d]; row k of B begins at b[at[k]],",
			k.rows),
		"and has cols elements. Rows of c are ldc elements apart. None of these is 0.",
		fmt.Sprintf("If finish is not nil, it is the address of a Finish for the block, whose Shift has %d numbers, one for each row.",
			k.rows))
	k.prefetchC()
	at, a, b, steps := param("at"), param("a"), param("b"), param("steps")
	acc := make([][]VecVirtual, k.rows)
	for r := range acc {
		acc[r] = k.vector(k.vectors)
		k.zeros(k.element, acc[r]...)
	}
	bv, av, row, masks := k.vector(k.vectors), k.vector(2), GP64(), k.columns(param("cols"))
	Label("step")
	MOVQ(Mem{Base: at}, row)
	for j := range bv {
		k.some(Mem{Base: b, Index: row, Scale: uint8(k.element.bytes), Disp: j * k.width.bytes}, masks[j], bv[j])
	}
	for r := range acc {
		k.splat(Mem{Base: a, Disp: r * k.element.bytes}, av[r%2])
		for j := range bv {
			k.fma(av[r%2], bv[j], acc[r][j])
		}
	}
	ADDQ(U32(8), at)
	ADDQ(U32(k.rows*k.element.bytes), a)
	DECQ(steps)
	JNE(LabelRef("step"))
	k.store(acc, av)
	VZEROUPPER()
	RET()
}
