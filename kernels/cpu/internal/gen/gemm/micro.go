package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// A microKernel multiplies a panel of A, [k][mr], by a panel of B, [k][nr],
// with the mr×nr block of C in registers: per k it loads nr elements of B,
// broadcasts mr elements of A and issues mr·nr/lanes multiply-adds. The shape
// follows from the register file: with 16 registers 12 accumulators, two of B
// and two broadcasts; with 32 registers 24 accumulators, or 16 where fewer rows
// fit the product better.
type microKernel struct {
	name string
	element
	width
	mr     int
	unroll int
	from   source
	ahead  bool // it asks for the next panel of B
}

// A source is how a micro-kernel finds the elements of A.
type source uint8

const (
	panels  source = iota // packed, [k][mr]
	rows                  // in place, [mr][k], rows lda elements apart
	columns               // in place, [k][mr], rows of all tiles lda elements apart
)

// vectorsB is the number of vector registers that one row of a B panel fills.
const vectorsB = 2

var microKernels = []microKernel{
	{"tileAVX2F32", float32s, avx2, 6, 8, panels, false},
	{"tileAheadAVX2F32", float32s, avx2, 6, 8, panels, true},
	{"tile4AVX2F32", float32s, avx2, 4, 8, panels, false},
	{"tile4AheadAVX2F32", float32s, avx2, 4, 8, panels, true},
	{"tileAVX2F64", float64s, avx2, 6, 8, panels, false},
	{"tileAheadAVX2F64", float64s, avx2, 6, 8, panels, true},
	{"tile4AVX2F64", float64s, avx2, 4, 8, panels, false},
	{"tile4AheadAVX2F64", float64s, avx2, 4, 8, panels, true},
	{"tileAVX512F32", float32s, avx512, 12, 4, panels, false},
	{"tileAheadAVX512F32", float32s, avx512, 12, 4, panels, true},
	{"tileAVX512F64", float64s, avx512, 12, 4, panels, false},
	{"tileAheadAVX512F64", float64s, avx512, 12, 4, panels, true},
	{"tile8AVX512F32", float32s, avx512, 8, 4, panels, false},
	{"tile8AheadAVX512F32", float32s, avx512, 8, 4, panels, true},
	{"tile8AVX512F64", float64s, avx512, 8, 4, panels, false},
	{"tile8AheadAVX512F64", float64s, avx512, 8, 4, panels, true},
	{"tileRowsAVX512F32", float32s, avx512, 12, 4, rows, false},
	{"tileRowsAVX512F64", float64s, avx512, 12, 4, rows, false},
	{"tileColumnsAVX512F32", float32s, avx512, 8, 4, columns, false},
	{"tileColumnsAVX512F64", float64s, avx512, 8, 4, columns, false},
}

func (k microKernel) nr() int { return vectorsB * k.width.bytes / k.element.bytes }

// aRow is the number of bytes of one k of a panel of A, bRow of one of B.
func (k microKernel) aRow() int { return k.mr * k.element.bytes }
func (k microKernel) bRow() int { return vectorsB * k.width.bytes }

func (k microKernel) generate() {
	lda, operandA := "", fmt.Sprintf("tiles panels of A, each [kc][%d], one after another", k.mr)
	switch k.from {
	case rows:
		lda, operandA = "lda int, ", fmt.Sprintf("the rows of A, %d for each tile, lda elements apart", k.mr)
	case columns:
		lda, operandA = "lda int, ", fmt.Sprintf("the columns of A, %d for each tile, whose elements are lda apart", k.mr)
	}
	doc := []string{
		fmt.Sprintf("%s computes a column of tiles, each %d×%d: C = A·B, or C += A·B if accumulate.", k.name, k.mr, k.nr()),
		fmt.Sprintf("a points to %s; b to one panel of B, [kc][%d];", operandA, k.nr()),
		"c to the first tile, whose rows are ldc elements apart. Neither tiles nor kc may be 0.",
	}
	if k.ahead {
		doc = append(doc, "It asks for the panel that follows b in memory.")
	}
	begin(k.name,
		fmt.Sprintf("func(tiles, kc int, %sa, b, c *%s, ldc int, accumulate bool)", lda, k.goType),
		doc...)
	tiles, kc := param("tiles"), param("kc")
	a, bStart, c := param("a"), param("b"), param("c")
	at := k.operandA(a)
	ldc := strideParam("ldc", k.element)
	accumulate := Load(Param("accumulate"), GP8())

	acc := make([][vectorsB]VecVirtual, k.mr)
	for r := range acc {
		for j := range acc[r] {
			acc[r][j] = k.register()
		}
	}
	var bv [vectorsB]VecVirtual
	for j := range bv {
		bv[j] = k.register()
	}
	av := [2]VecVirtual{k.register(), k.register()}
	b, left, row := GP64(), GP64(), GP64()
	var ahead GPVirtual
	if k.ahead {
		ahead = GP64()
		IMUL3Q(U32(k.bRow()), kc, ahead)
	}

	Label("tile")
	k.prefetchC(c, ldc, row)
	for r := range acc {
		k.zeros(k.element, acc[r][:]...)
	}
	MOVQ(bStart, b)
	MOVQ(kc, left)
	at.start()

	step := func(i int) {
		for line := 0; k.ahead && line < k.bRow(); line += 64 {
			PREFETCHT1(Mem{Base: b, Index: ahead, Scale: 1, Disp: i*k.bRow() + line})
		}
		for j := range bv {
			k.load(Mem{Base: b, Disp: i*k.bRow() + j*k.width.bytes}, bv[j])
		}
		for r := range acc {
			k.splat(at.element(i, r), av[r%2])
			for j := range bv {
				k.fma(av[r%2], bv[j], acc[r][j])
			}
		}
	}
	advance := func(steps int) {
		at.advance(steps)
		ADDQ(U32(steps*k.bRow()), b)
		SUBQ(U32(steps), left)
	}

	Label("unrolled")
	CMPQ(left, U32(k.unroll))
	JLT(LabelRef("rest"))
	for i := range k.unroll {
		step(i)
	}
	advance(k.unroll)
	JMP(LabelRef("unrolled"))
	Label("rest")
	TESTQ(left, left)
	JE(LabelRef("finish"))
	step(0)
	advance(1)
	JMP(LabelRef("rest"))

	Label("finish")
	at.next()
	TESTB(accumulate, accumulate)
	JE(LabelRef("store"))
	MOVQ(c, row)
	for r := range acc {
		for j := range acc[r] {
			k.add(Mem{Base: row, Disp: j * k.width.bytes}, acc[r][j], acc[r][j])
		}
		ADDQ(ldc, row)
	}
	Label("store")
	for r := range acc {
		for j := range acc[r] {
			k.load(acc[r][j], Mem{Base: c, Disp: j * k.width.bytes})
		}
		ADDQ(ldc, c)
	}
	DECQ(tiles)
	JNE(LabelRef("tile"))
	VZEROUPPER()
	RET()
}

// prefetchC asks for the lines of C that the tile ends with, so that they
// arrive while it is computed.
func (k microKernel) prefetchC(c, ldc, row GPVirtual) {
	MOVQ(c, row)
	for range k.mr {
		for line := 0; line < k.bRow(); line += 64 {
			PREFETCHT0(Mem{Base: row, Disp: line})
		}
		ADDQ(ldc, row)
	}
}
