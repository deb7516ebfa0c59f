package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// A gatherKernel multiplies rows of A that lie anywhere, each in pieces that
// lie at the same distances in every row, by a panel of B: the implicit matrix
// of a convolution's patches. There is a pointer for each row. One index walks
// along all of them, and jumps to the beginning of the next piece.
type gatherKernel struct {
	element
	width
	rows    int
	vectors int  // of B: the width of its panel
	shifts  bool // rows are shifted, not columns
	// quads multiplies integers: each element of A is four bytes without a sign, and each of B four with one. C is the sums of their
	// products, rounded to floating-point numbers.
	quads bool
}

// Heights of the blocks of C, the highest first. Two sums per row and vector register fill the register file; with one
// vector the loads of A bound the speed, and more rows do not change it.
var (
	gatherAVX512 = []int{12, 10, 8, 6, 4, 2}
	gatherAVX2   = []int{6, 4, 2}
)

// gatherUnroll is how many steps of the reduction a loop does, gatherAhead how many bytes it asks for that will be needed
// later.
const (
	gatherUnroll = 4
	gatherAhead  = 128
)

func gatherKernels() {
	columnMask()
	for _, e := range []element{float32s, float64s} {
		for _, vectors := range []int{vectorsB, 1} {
			for _, rows := range gatherAVX512 {
				gatherKernel{element: e, width: avx512, rows: rows, vectors: vectors}.generate()
			}
			for _, rows := range gatherAVX2 {
				gatherKernel{element: e, width: avx2, rows: rows, vectors: vectors}.generate()
			}
		}
	}
	for _, vectors := range []int{vectorsB, 1} {
		for _, rows := range gatherAVX512 {
			gatherKernel{element: float32s, width: avx512, rows: rows, vectors: vectors, quads: true}.generate()
		}
	}
	for _, rows := range gatherAVX2[1:] { // the even and the odd bytes of B have registers of their own
		gatherKernel{element: float32s, width: avx2, rows: rows, vectors: vectorsB, quads: true}.generate()
	}
	for _, rows := range gatherAVX2 {
		gatherKernel{element: float32s, width: avx2, rows: rows, vectors: 1, quads: true}.generate()
	}
}

func (k gatherKernel) lanes() int { return k.width.bytes / k.element.bytes }

func (k gatherKernel) isa() string {
	if k.width.bytes == avx512.bytes {
		return "AVX512"
	}
	return "AVX2"
}

func (k gatherKernel) name() string {
	suffix := k.suffix
	if k.quads {
		suffix = "Quads"
	}
	return fmt.Sprintf("gather%dx%d%s%s", k.rows, k.vectors*k.lanes(), k.isa(), suffix)
}

func (k gatherKernel) generate() {
	nr := k.vectors * k.lanes()
	var more []string
	if k.quads {
		more = []string{"An element of A is four bytes without a sign, one of B four with a sign; their product is that of four pairs,",
			"whose sums have 32 bits and are rounded at the end."}
		if k.width.bytes == avx512.bytes {
			more[1] += " It needs AVX512-VNNI."
			more = append(more, "If the Finish says where, bytes are stored in place of C.")
		}
	}
	begin(k.name(),
		fmt.Sprintf("func(pieces *int, n int, rows *int, a, b *%[1]s, ahead int, c *%[1]s, ldc, height, cols int, accumulate bool, "+
			"finish *int)", k.goType),
		append([]string{
			fmt.Sprintf("%s computes the first height rows, at most %d, and cols columns, at most %d,", k.name(), k.rows, nr),
			"of C = A·B, or of C += A·B if accumulate. Row i of A consists of n pieces: piece p has pieces[2p+1]",
			fmt.Sprintf("elements from a[rows[i]+pieces[2p]] on. There are %d rows whatever the height is. b points to a panel", k.rows),
			fmt.Sprintf("of B, [elements of all pieces][%d]; rows of c are ldc elements apart. None of these is 0.", nr),
			fmt.Sprintf("Of each %d bytes of B, %d are asked for that are ahead bytes on.", gatherUnroll*k.vectors*k.width.bytes,
				gatherAhead),
			"If finish is not nil, it is the address of a Finish for the block."}, more...)...)
	k.prefetchC()

	at := make([]GPVirtual, k.rows)
	list := param("rows")
	a := param("a")
	for i := range at {
		at[i] = GP64()
		MOVQ(Mem{Base: list, Disp: 8 * i}, at[i])
		LEAQ(Mem{Base: a, Index: at[i], Scale: uint8(k.element.bytes)}, at[i])
	}
	b := param("b")
	acc := make([][]VecVirtual, k.rows)
	for r := range acc {
		acc[r] = k.vector(k.vectors)
		k.zeros(k.element, acc[r]...)
	}
	bv, av := k.vector(k.vectors), k.vector(2)
	index, ahead, end := GP64(), param("ahead"), AllocLocal(8)
	step := func(i int) {
		for j := range bv {
			k.load(Mem{Base: b, Disp: (i*k.vectors + j) * k.width.bytes}, bv[j])
		}
		for r := range acc {
			k.splat(Mem{Base: at[r], Index: index, Scale: uint8(k.element.bytes), Disp: i * k.element.bytes}, av[r%2])
			for j := range bv {
				if k.quads {
					VPDPBUSD(bv[j], av[r%2], acc[r][j])
				} else {
					k.fma(av[r%2], bv[j], acc[r][j])
				}
			}
		}
	}
	if k.quads && k.width.bytes == avx2.bytes {
		step = k.halves(at, index, b, acc, bv, av)
	}
	advance := func(steps int) {
		ADDQ(U32(steps), index)
		ADDQ(U32(steps*k.vectors*k.width.bytes), b)
		CMPQ(index, end)
	}

	// The arguments in memory, and the end of the piece, are variables that do not fit the registers.
	Label("piece")
	MOVQ(place("pieces"), index)
	MOVQ(Mem{Base: index, Disp: 8}, index)
	MOVQ(index, end)
	MOVQ(place("pieces"), index)
	MOVQ(Mem{Base: index}, index)
	ADDQ(index, end)
	ADDQ(U32(16), place("pieces"))
	SUBQ(U32(gatherUnroll), end)
	CMPQ(index, end)
	JGT(LabelRef("rest"))
	Label("unrolled")
	for i := range gatherUnroll {
		step(i)
	}
	for line := 0; line < gatherAhead; line += 64 {
		PREFETCHT1(Mem{Base: b, Index: ahead, Scale: 1, Disp: line})
	}
	advance(gatherUnroll)
	JLE(LabelRef("unrolled"))
	Label("rest")
	ADDQ(U32(gatherUnroll), end)
	CMPQ(index, end)
	JE(LabelRef("next"))
	Label("single")
	step(0)
	advance(1)
	JLT(LabelRef("single"))
	Label("next")
	DECQ(place("n"))
	JNE(LabelRef("piece"))
	for r := range acc {
		for _, v := range acc[r] {
			if k.quads {
				VCVTDQ2PS(v, v)
			}
		}
	}
	k.store(acc, av)
	VZEROUPPER()
	RET()
}

// halves gives the function that does a step of integers with AVX2: VPMADDWD sums pairs of products of numbers of 16 bits, the even
// and then the odd bytes. Pairs of products of bytes may have no room in 16 bits.
func (k gatherKernel) halves(at []GPVirtual, index, b GPVirtual, acc [][]VecVirtual, bv, av []VecVirtual) func(i int) {
	if low8.Base == nil {
		low8 = GLOBL("low8", RODATA|NOPTR)
		for i := range 8 {
			DATA(4*i, U32(0x00ff00ff))
		}
	}
	low, product, even := k.register(), k.register(), k.vector(k.vectors)
	VMOVDQU(low8, low)
	return func(i int) {
		for j, odd := range bv {
			VMOVDQU(Mem{Base: b, Disp: (i*k.vectors + j) * k.width.bytes}, odd)
			VPSLLW(U8(8), odd, even[j])
			VPSRAW(U8(8), even[j], even[j])
			VPSRAW(U8(8), odd, odd)
		}
		for r := range acc {
			VPBROADCASTD(Mem{Base: at[r], Index: index, Scale: 4, Disp: 4 * i}, av[0])
			VPSRLW(U8(8), av[0], av[1])
			VPAND(low, av[0], av[0])
			for j := range bv {
				for half, of := range []VecVirtual{even[j], bv[j]} {
					VPMADDWD(av[half], of, product)
					VPADDD(product, acc[r][j], acc[r][j])
				}
			}
		}
	}
}

// low8 is the mask of the even bytes of words.
var low8 Mem

// vector returns n registers.
func (k gatherKernel) vector(n int) []VecVirtual {
	v := make([]VecVirtual, n)
	for i := range v {
		v[i] = k.register()
	}
	return v
}

// place is a parameter in memory.
func place(name string) Mem {
	p, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return p.Addr
}

// prefetchC asks for the lines of C and of a residual that the kernel ends with, so that they arrive while it computes.
func (k gatherKernel) prefetchC() {
	rows := func(row, stride GPVirtual) {
		for r := range k.rows {
			for line := 0; line < k.vectors*k.width.bytes; line += 64 {
				PREFETCHT0(Mem{Base: row, Disp: line})
			}
			if r < k.rows-1 {
				ADDQ(stride, row)
			}
		}
	}
	rows(param("c"), strideParam("ldc", k.element))
	finish := param("finish")
	TESTQ(finish, finish)
	JE(LabelRef("asked"))
	row, stride := GP64(), GP64()
	MOVQ(Mem{Base: finish, Disp: 8 * finishResidual}, row)
	TESTQ(row, row)
	JE(LabelRef("asked"))
	MOVQ(Mem{Base: finish, Disp: 8 * finishStride}, stride)
	SHLQ(U8(k.element.shift), stride)
	rows(row, stride)
	Label("asked")
}

// Words of a Finish, and the elements behind them.
const (
	finishShift = iota
	finishResidual
	finishStride
	finishElements
)

// The elements: bounds, and a gate.
const (
	finishLow = iota
	finishHigh
	finishSlope
	finishOffset
	finishFloor
	finishCeiling
)

// Behind the elements of a Finish of float32 there are the words for bytes, and the zero point of 32 bits.
const (
	finishScale = 8*finishElements + 6*4 + 8*iota
	finishBytes
	finishStep
	finishZero
	finishBias
)

// storesBytes reports whether the kernel scales sums, and stores bytes if it is asked to.
func (k gatherKernel) storesBytes() bool { return k.quads && k.width.bytes == avx512.bytes }

// bytes rounds the sums, which have been finished, to bytes, and stores them, if a Finish says where.
func (k gatherKernel) bytes(acc [][]VecVirtual, tmp []VecVirtual, masks []Register, finish GPVirtual) {
	row := GP64()
	MOVQ(Mem{Base: finish, Disp: finishBytes}, row)
	TESTQ(row, row)
	JE(LabelRef("sums"))
	step, height := GP64(), param("height")
	MOVQ(Mem{Base: finish, Disp: finishStep}, step)
	VPBROADCASTD(Mem{Base: finish, Disp: finishZero}, tmp[0])
	for r := range acc {
		for j, v := range acc[r] {
			VCVTPS2DQ(v, v)
			VPADDD(tmp[0], v, v)
			VPMOVDB(v, masks[j], Mem{Base: row, Disp: j * k.lanes()})
		}
		if r < len(acc)-1 {
			ADDQ(step, row)
			DECQ(height)
			JE(LabelRef("done"))
		}
	}
	JMP(LabelRef("done"))
}

// store finishes the rows and columns of C that exist, and writes them.
func (k gatherKernel) store(acc [][]VecVirtual, tmp []VecVirtual) {
	accumulate := Load(Param("accumulate"), GP8())
	finish := param("finish")
	TESTQ(finish, finish)
	JE(LabelRef("sums"))
	masks := k.columns(param("cols"))
	k.finish(acc, tmp, masks, accumulate, finish)
	if k.storesBytes() {
		k.bytes(acc, tmp, masks, finish)
	}
	Label("sums")
	row, ldc := param("c"), strideParam("ldc", k.element)
	height, cols := param("height"), param("cols")
	rows := func(label string, each func(v VecVirtual, j int, m Mem, accumulate bool)) {
		for r := range acc {
			for _, add := range []bool{true, false} {
				if add {
					TESTB(accumulate, accumulate)
					JE(LabelRef(fmt.Sprintf("%s%d", label, r)))
				} else {
					Label(fmt.Sprintf("%s%d", label, r))
				}
				for j, v := range acc[r] {
					each(v, j, Mem{Base: row, Disp: j * k.width.bytes}, add)
				}
			}
			if r < len(acc)-1 {
				ADDQ(ldc, row)
				DECQ(height)
				JE(LabelRef("done"))
			}
		}
	}
	if k.width.bytes == avx512.bytes {
		masks := k.columns(cols)
		rows("store", func(v VecVirtual, j int, m Mem, accumulate bool) {
			if accumulate {
				k.addTo(v, m, masks[j], tmp[0])
				return
			}
			k.load(v, masks[j], m)
		})
		Label("done")
		return
	}
	CMPQ(cols, U32(k.vectors*k.lanes()))
	JNE(LabelRef("masked"))
	rows("store", func(v VecVirtual, _ int, m Mem, accumulate bool) {
		if accumulate {
			k.add(m, v, v)
			return
		}
		k.load(v, m)
	})
	JMP(LabelRef("done"))

	Label("masked")
	masks = k.columns(cols)
	rows("part", func(v VecVirtual, j int, m Mem, accumulate bool) {
		if accumulate {
			k.addTo(v, m, masks[j], tmp[0])
			return
		}
		k.maskMove(v, masks[j], m)
	})
	Label("done")
}

// columns returns the masks of the vectors of so many columns. It changes cols.
func (k gatherKernel) columns(cols GPVirtual) []Register {
	masks := make([]Register, k.vectors)
	if k.width.bytes == avx512.bytes {
		mask := GP64()
		MOVQ(I32(-1), mask)
		BZHIQ(cols, mask, mask)
		for j := range masks {
			m := K()
			KMOVW(mask.As32(), m)
			if masks[j] = m; j < k.vectors-1 {
				SHRQ(U8(uint64(k.lanes())), mask)
			}
		}
		return masks
	}
	SHLQ(U8(k.shift), cols)
	table := GP64()
	LEAQ(Mem{Symbol: Symbol{Name: maskName, Static: true}, Base: StaticBase}, table)
	SUBQ(cols, table)
	for j := range masks {
		m := k.register()
		k.load(Mem{Base: table, Disp: maskBytes + j*k.width.bytes}, m)
		masks[j] = m
	}
	return masks
}

// some loads the columns of a mask, and zeros for the others.
func (k gatherKernel) some(m Mem, mask Register, v VecVirtual) {
	switch {
	case k.width.bytes != avx512.bytes:
		k.maskMove(m, mask, v)
	case k.element.bytes == 4:
		VMOVUPS_Z(m, mask, v)
	default:
		VMOVUPD_Z(m, mask, v)
	}
}

// addTo adds the columns of a mask in memory.
func (k gatherKernel) addTo(v VecVirtual, m Mem, mask Register, tmp VecVirtual) {
	if k.width.bytes == avx512.bytes {
		k.add(m, v, mask, v)
		return
	}
	k.maskMove(m, mask, tmp)
	k.add(tmp, v, v)
}

// finish applies a Finish to the sums. Those that C has are added first, if they are to be, and accumulate is cleared.
func (k gatherKernel) finish(acc [][]VecVirtual, tmp []VecVirtual, masks []Register, accumulate, finish Register) {
	arg := func(i int) Mem { return Mem{Base: finish, Disp: 8 * i} }
	// addRows adds rows in memory, a stride apart.
	addRows := func(label string, row, stride GPVirtual) {
		height := param("height")
		for r := range acc {
			for j, v := range acc[r] {
				k.addTo(v, Mem{Base: row, Disp: j * k.width.bytes}, masks[j], tmp[0])
			}
			if r < len(acc)-1 {
				ADDQ(stride, row)
				DECQ(height)
				JE(LabelRef(label))
			}
		}
		Label(label)
	}
	TESTB(accumulate, accumulate)
	JE(LabelRef("added"))
	addRows("added", param("c"), strideParam("ldc", k.element))
	XORB(accumulate, accumulate)

	p := GP64()
	// columns applies an operation of sums and a number for each column.
	columns := func(op func(...Op)) {
		for j := range k.vectors {
			k.some(Mem{Base: p, Disp: j * k.width.bytes}, masks[j], tmp[0])
			for r := range acc {
				op(tmp[0], acc[r][j], acc[r][j])
			}
		}
	}
	if k.storesBytes() {
		MOVQ(Mem{Base: finish, Disp: finishBias}, p)
		TESTQ(p, p)
		JE(LabelRef("biased"))
		columns(k.add)
		Label("biased")
		MOVQ(Mem{Base: finish, Disp: finishScale}, p)
		TESTQ(p, p)
		JE(LabelRef("scaled"))
		columns(k.mul)
		Label("scaled")
	}
	MOVQ(arg(finishShift), p)
	TESTQ(p, p)
	JE(LabelRef("shifted"))
	if k.shifts {
		for r := range acc {
			k.splat(Mem{Base: p, Disp: r * k.element.bytes}, tmp[0])
			for _, v := range acc[r] {
				k.add(tmp[0], v, v)
			}
		}
	} else {
		columns(k.add)
	}
	Label("shifted")
	MOVQ(arg(finishResidual), p)
	TESTQ(p, p)
	JE(LabelRef("bound"))
	stride := GP64()
	MOVQ(arg(finishStride), stride)
	SHLQ(U8(k.element.shift), stride)
	addRows("bound", p, stride)
	bound := func(i int) Mem { return Mem{Base: finish, Disp: 8*finishElements + i*k.element.bytes} }
	k.gate(acc, bound)
	// Where one is a NaN, the result is the second operand, which is the sum.
	infinite := GP64()
	for i, op := range []func(...Op){k.max, k.min} {
		skip := fmt.Sprint("unbounded", i)
		if k.element.bytes == 4 {
			MOVL(U32(math.Float32bits(float32(math.Inf(2*i-1)))), infinite.As32())
			CMPL(infinite.As32(), bound(finishLow+i))
		} else {
			MOVQ(U64(math.Float64bits(math.Inf(2*i-1))), infinite)
			CMPQ(infinite, bound(finishLow+i))
		}
		JE(LabelRef(skip))
		k.splat(bound(finishLow+i), tmp[0])
		for r := range acc {
			for _, v := range acc[r] {
				op(v, tmp[0], v)
			}
		}
		Label(skip)
	}
}

// gate applies a gate to the sums, unless its slope is 0. Two registers are free.
func (k gatherKernel) gate(acc [][]VecVirtual, element func(i int) Mem) {
	if k.element.bytes == 4 {
		CMPL(element(finishSlope), Imm(0))
	} else {
		CMPQ(element(finishSlope), Imm(0))
	}
	JE(LabelRef("gated"))
	t, with := k.register(), k.register()
	for r := range acc {
		for _, v := range acc[r] {
			k.splat(element(finishSlope), t)
			k.mul(v, t, t)
			for i, op := range []func(...Op){k.add, k.max, k.min} {
				k.splat(element(finishOffset+i), with)
				op(with, t, t)
			}
			k.mul(t, v, v)
		}
	}
	Label("gated")
}

// The mask of n bytes, in any number of registers that follow one another, is maskBytes-n bytes after the table's start.
const (
	maskName  = "columnMask"
	maskBytes = vectorsB * 32
)

func columnMask() {
	GLOBL(maskName, RODATA|NOPTR)
	for i := 0; i < maskBytes; i += 8 {
		DATA(i, U64(1<<64-1))
	}
	for i := 0; i < maskBytes; i += 8 {
		DATA(maskBytes+i, U64(0))
	}
}
