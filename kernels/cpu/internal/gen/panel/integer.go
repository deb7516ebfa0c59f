package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// Products of integers: rows of 8 bits times weights of 8 or 4 bits, with sums of 32 bits for each block of weights that share a
// scale. AVX512-VNNI multiplies unsigned by signed numbers, so that a multiple of the sum of a row's numbers has to be taken off;
// the sums begin with that.

// constants are words that every element of a vector has.
var constants = map[string]Mem{}

// constant is a word in read-only memory, 8 times.
func constant(name string, word uint32) Mem {
	m, ok := constants[name]
	if !ok {
		m = GLOBL(name, RODATA|NOPTR)
		for i := range 8 {
			DATA(4*i, U32(word))
		}
		constants[name] = m
	}
	return m
}

// integers is a format of weights in products of integers.
type integers struct {
	name  string
	octet int // bytes of 8 rows of a panel
	doc   string
}

var integerFormats = []integers{
	{"i8", 8 * columns, "eight bits, four rows of a column side by side"},
	{"i4", 4 * columns, "four bits, eight rows of a column in a word"},
}

// The signatures of the functions, which all processors have.
const (
	byteSignature    = "func(octets int, x *byte, ldx int, q *byte, y *float32, ldy int)"
	integerSignature = "func(octets, block int, x *byte, xs *float32, q *byte, scale *float32, lds int, y *float32)"
	roundSignature   = "func(octets, block int, x *float32, q *byte, stride int, scales *float32, gap int, offset int, order *byte)"
)

// describe is the documentation of the kernel for a block of rows.
func (f integers) describe(name string, rows int) []string {
	return []string{
		fmt.Sprintf("%s adds the product of %d rows of integers and a panel of weights to y [%[2]d][32].", name, rows),
		fmt.Sprintf("The weights, octets of 8 rows, are stored in %s. x is [octets][%d][8],", f.doc, rows),
		fmt.Sprintf("and of each block of octets xs has [2][%d]: the rows' scales, and what their sums begin with, integers.", rows),
		"Each block of octets has 32 scales, those of the next block lds elements on. The last block may be shorter.",
	}
}

// describeRound is the documentation of what rounds a row.
func describeRound(name string) []string {
	return []string{
		name + " rounds a row of octets to eight bits, with a scale for each block of them: the largest size divided by 127.",
		"The integers of an octet, in an order, are stored stride bytes after those of the octet before it. The scale of a block",
		"is stored at scales, what sums of products begin with, −offset times the sum of its integers, gap bytes behind it, and",
		"those of the next block 2·gap bytes on.",
	}
}

// describeBytes is the documentation of the kernel for a block of rows of unsigned bytes.
func describeBytes(name string, rows int) []string {
	return []string{
		fmt.Sprintf("%s stores the product of %d rows of unsigned bytes and a panel of weights in y, whose rows have 32 elements.",
			name, rows),
		"The weights, octets of 8 rows, are stored in eight bits, four rows of a column side by side. The rows of x are ldx bytes apart,",
		"those of y ldy bytes. Sums are integers of 32 bits.",
	}
}

func (f integers) generate(w width, rows int, by scales) {
	name := fmt.Sprintf("%sIntegers%sx%d%s", f.name, by.infix, rows, w.name)
	start(name, by.signed(integerSignature), by.described(f.describe(name, rows))...)
	octets := param("octets")
	block := param("block")
	x := param("x")
	xs := param("xs")
	q := param("q")
	scale := param("scale")
	lds := param("lds")
	y := param("y")
	SHLQ(U8(by.shift), lds)

	acc := w.sums(rows)
	octet := f.wide(w, x, q, acc)
	if w.bytes == avx2.bytes {
		octet = f.narrow(w, x, q, acc)
	}
	left := GP64()

	Label("block")
	for r := range acc {
		for v := range acc[r] {
			VPBROADCASTD(Mem{Base: xs, Disp: 4 * (rows + r)}, acc[r][v])
		}
	}
	beginOctets(octets, block, left, q, f.octet)
	octet()
	endOctets("octet", x, q, left, 8*rows, f.octet)

	weights, factor := w.register(), w.register()
	for v := range w.vectors() {
		by.load(w, scale, v, weights)
		for r := range rows {
			sum, of := acc[r][v], Mem{Base: xs, Disp: 4 * r}
			VCVTDQ2PS(sum, sum)
			if w.bytes == avx2.bytes {
				VBROADCASTSS(of, factor)
				VMULPS(factor, weights, factor)
			} else {
				VMULPS_BCST(of, weights, factor)
			}
			to := Mem{Base: y, Disp: 4*columns*r + v*w.bytes}
			VFMADD213PS(to, factor, sum)
			VMOVUPS(sum, to)
		}
	}
	ADDQ(lds, scale)
	ADDQ(U32(8*rows), xs)
	endBlocks(octets)
}

// wide multiplies an octet with AVX512-VNNI.
func (f integers) wide(w width, x, q GPVirtual, acc [][]VecVirtual) func() {
	if w.bytes == avx2.bytes {
		return nil
	}
	broadcast := func(name string, word uint32) VecVirtual {
		r := ZMM()
		VPBROADCASTD(constant(name, word), r)
		return r
	}
	at := func(r, quad int) Mem { return Mem{Base: x, Disp: 8*r + 4*quad} }
	if f.name == "i8" {
		flip := broadcast("flip8", 0x80808080)
		weights := ZMM()
		return func() {
			for quad := range 2 {
				for v := range w.vectors() {
					VPXORD(Mem{Base: q, Disp: 4*columns*quad + v*w.bytes}, flip, weights)
					for r := range acc {
						VPDPBUSD_BCST(at(r, quad), weights, acc[r][v])
					}
				}
			}
		}
	}
	flip, low := broadcast("flip4", 0x88888888), broadcast("low4", 0x0f0f0f0f)
	even, odd := ZMM(), ZMM()
	return func() {
		for v := range w.vectors() {
			VPXORD(Mem{Base: q, Disp: v * w.bytes}, flip, even)
			VPSRLD(U8(4), even, odd)
			VPANDD(low, even, even)
			VPANDD(low, odd, odd)
			for r := range acc {
				VPDPBUSD_BCST(at(r, 0), even, acc[r][v])
			}
			for r := range acc {
				VPDPBUSD_BCST(at(r, 1), odd, acc[r][v])
			}
		}
	}
}

// narrow multiplies an octet with AVX2: pairs of products have room in 16 bits, as |x| ≤ 127, and weights are −128 to 127 by
// their size and sign, or 0 to 15.
func (f integers) narrow(w width, x, q GPVirtual, acc [][]VecVirtual) func() {
	at := func(r, quad int) Mem { return Mem{Base: x, Disp: 8*r + 4*quad} }
	ones := constant("ones16", 0x00010001)
	add := func(pairs, sum VecVirtual) {
		VPMADDWD(ones, pairs, pairs)
		VPADDD(pairs, sum, sum)
	}
	first, second := YMM(), YMM()
	if f.name == "i8" {
		weights, sizes := YMM(), YMM()
		return func() {
			for quad := range 2 {
				for v := range w.vectors() {
					VMOVDQU(Mem{Base: q, Disp: 4*columns*quad + v*w.bytes}, weights)
					VPABSB(weights, sizes)
					for r := range acc {
						VPBROADCASTD(at(r, quad), first)
						VPSIGNB(weights, first, first)
						VPMADDUBSW(first, sizes, first)
						add(first, acc[r][v])
					}
				}
			}
		}
	}
	flip, low := constant("flip4", 0x88888888), constant("low4", 0x0f0f0f0f)
	even, odd := YMM(), YMM()
	return func() {
		for v := range w.vectors() {
			VMOVDQU(Mem{Base: q, Disp: v * w.bytes}, even)
			VPXOR(flip, even, even)
			VPSRLD(U8(4), even, odd)
			VPAND(low, even, even)
			VPAND(low, odd, odd)
			for r := range acc {
				VPBROADCASTD(at(r, 0), first)
				VPBROADCASTD(at(r, 1), second)
				VPMADDUBSW(first, even, first)
				VPMADDUBSW(second, odd, second)
				VPADDW(second, first, first)
				add(first, acc[r][v])
			}
		}
	}
}

// roundRow makes the function that rounds a row to integers.
func roundRow() {
	start("roundRowAVX2", roundSignature, describeRound("roundRowAVX2")...)
	octets := param("octets")
	block := param("block")
	x := param("x")
	q := param("q")
	stride := param("stride")
	scales := param("scales")
	gap := param("gap")
	offset := param("offset")
	order := XMM()
	at := param("order")
	VMOVDQU(Mem{Base: at}, order)
	size := YMM()
	VMOVDQU(constant("size32", 0x7fffffff), size)
	most := constant("most8", 0x42fe0000) // 127

	left, from := GP64(), GP64()
	Label("block")
	MOVQ(block, left)
	CMPQ(octets, left)
	CMOVQLT(octets, left)
	SUBQ(left, octets)

	largest, v := YMM(), YMM()
	VPXOR(largest, largest, largest)
	MOVQ(x, from)
	n := GP64()
	MOVQ(left, n)
	Label("largest")
	VPAND(Mem{Base: from}, size, v)
	VPMAXSD(v, largest, largest) // the order of the bits is that of the numbers; NaN is above all
	ADDQ(U32(32), from)
	DECQ(n)
	JNE(LabelRef("largest"))
	VEXTRACTI128(U8(1), largest, v.AsX())
	VPMAXSD(v.AsX(), largest.AsX(), largest.AsX())
	VPSHUFD(U8(0x4e), largest.AsX(), v.AsX())
	VPMAXSD(v.AsX(), largest.AsX(), largest.AsX())
	VPSHUFD(U8(0xb1), largest.AsX(), v.AsX())
	VPMAXSD(v.AsX(), largest.AsX(), largest.AsX())
	VDIVSS(most, largest.AsX(), largest.AsX())
	VMOVSS(largest.AsX(), Mem{Base: scales})
	scale := YMM()
	VBROADCASTSS(largest.AsX(), scale)
	zeros := YMM()
	VXORPS(zeros, zeros, zeros)
	isZero := YMM()
	VCMPPS(U8(0), zeros, scale, isZero) // 0 ÷ 0 is 0 here

	sum := YMM()
	VPXOR(sum, sum, sum)
	Label("round")
	VMOVUPS(Mem{Base: x}, v)
	VDIVPS(scale, v, v)
	VANDNPS(v, isZero, v)
	VCVTPS2DQ(v, v)
	VPADDD(v, sum, sum)
	high := XMM()
	VEXTRACTI128(U8(1), v, high)
	VPACKSSDW(high, v.AsX(), v.AsX())
	VPACKSSWB(v.AsX(), v.AsX(), v.AsX())
	VPSHUFB(order, v.AsX(), v.AsX())
	VMOVQ(v.AsX(), Mem{Base: q})
	ADDQ(U32(32), x)
	ADDQ(stride, q)
	DECQ(left)
	JNE(LabelRef("round"))
	VEXTRACTI128(U8(1), sum, v.AsX())
	VPADDD(v.AsX(), sum.AsX(), sum.AsX())
	VPSHUFD(U8(0x4e), sum.AsX(), v.AsX())
	VPADDD(v.AsX(), sum.AsX(), sum.AsX())
	VPSHUFD(U8(0xb1), sum.AsX(), v.AsX())
	VPADDD(v.AsX(), sum.AsX(), sum.AsX())
	total := GP32()
	VMOVD(sum.AsX(), total)
	IMULL(offset.As32(), total)
	NEGL(total)
	MOVL(total, Mem{Base: scales, Index: gap, Scale: 1})
	LEAQ(Mem{Base: scales, Index: gap, Scale: 2}, scales)
	TESTQ(octets, octets)
	JNE(LabelRef("block"))
	VZEROUPPER()
	RET()
}

// wideBytes multiplies four rows of weights with AVX512-VNNI; at is where a row's four numbers are.
func wideBytes(acc [][]VecVirtual) func(q Mem, at func(r int) Mem) {
	weights := make([]VecVirtual, len(acc[0]))
	for v := range weights {
		weights[v] = ZMM()
	}
	numbers := []VecVirtual{ZMM(), ZMM()}
	return func(q Mem, at func(r int) Mem) {
		for v := range weights {
			VMOVDQU32(q.Offset(v*avx512.bytes), weights[v])
		}
		for r := range acc {
			of := numbers[r%len(numbers)]
			VPBROADCASTD(at(r), of)
			for v := range weights {
				VPDPBUSD(weights[v], of, acc[r][v])
			}
		}
	}
}

// narrowBytes does so with AVX2. The even and the odd bytes of words become numbers of 16 bits, since two products of bytes may
// have no room there, and VPMADDWD sums pairs of products in 32 bits.
func narrowBytes(acc [][]VecVirtual) func(q Mem, at func(r int) Mem) {
	low := YMM()
	VMOVDQU(constant("low8", 0x00ff00ff), low)
	product := YMM()
	add := func(x, weights [2]VecVirtual, sum VecVirtual) {
		for i := range x {
			VPMADDWD(x[i], weights[i], product)
			VPADDD(product, sum, sum)
		}
	}
	// Of weights and of numbers, those of which there are fewer stay in registers.
	kept := make([][2]VecVirtual, min(len(acc), len(acc[0])))
	for i := range kept {
		kept[i] = [2]VecVirtual{YMM(), YMM()}
	}
	other := [2]VecVirtual{YMM(), YMM()}
	return func(q Mem, at func(r int) Mem) {
		numbers := func(r int, to [2]VecVirtual) {
			VPBROADCASTD(at(r), to[0])
			VPSRLW(U8(8), to[0], to[1])
			VPAND(low, to[0], to[0])
		}
		weights := func(v int, to [2]VecVirtual) {
			VMOVDQU(q.Offset(v*avx2.bytes), to[1])
			VPSLLW(U8(8), to[1], to[0])
			VPSRAW(U8(8), to[0], to[0])
			VPSRAW(U8(8), to[1], to[1])
		}
		if len(acc) < len(acc[0]) {
			for r := range acc {
				numbers(r, kept[r])
			}
			for v := range acc[0] {
				weights(v, other)
				for r := range acc {
					add(kept[r], other, acc[r][v])
				}
			}
			return
		}
		for v := range acc[0] {
			weights(v, kept[v])
		}
		for r := range acc {
			numbers(r, other)
			for v := range acc[0] {
				add(other, kept[v], acc[r][v])
			}
		}
	}
}

// byteRows are the blocks that there are kernels for whose rows are unsigned bytes.
var byteRows = map[int][]int{avx2.bytes: {1, 2, 4}, avx512.bytes: {1, 2, 4, 8}}

// byteTile makes the kernel for a block of rows of unsigned bytes. The columns of a panel are computed in slices whose sums fit the
// registers.
func byteTile(w width, rows int) {
	name := fmt.Sprintf("i8Bytesx%d%s", rows, w.name)
	start(name, byteSignature, describeBytes(name, rows)...)
	octets := param("octets")
	x := param("x")
	ldx := param("ldx")
	q := param("q")
	// Row r is r distances from x: a register has each odd multiple, which addresses double.
	odd := map[int]GPVirtual{1: ldx}
	for m := 3; m < rows; m += 2 {
		odd[m] = GP64()
		LEAQ(Mem{Base: ldx, Index: ldx, Scale: 2}, odd[m])
		if m > 3 {
			LEAQ(Mem{Base: odd[m-2], Index: ldx, Scale: 2}, odd[m])
		}
	}
	at := func(r, disp int) Mem {
		m := Mem{Base: x, Disp: disp}
		if r > 0 {
			scale := r & -r
			m.Index, m.Scale = odd[r/scale], uint8(scale)
		}
		return m
	}
	acc := w.sums(rows)
	multiply := wideBytes
	if w.bytes == avx2.bytes {
		multiply = narrowBytes
		for r := range acc { // half of the registers have sums
			acc[r] = acc[r][:min(len(acc[r]), 8/rows)]
		}
	}
	add := multiply(acc)
	slices := w.vectors() / len(acc[0])
	for slice := range slices {
		from := slice * len(acc[0]) * w.bytes // of the bytes of a row of y, and of a quad of weights
		label := "octet"
		if slices > 1 {
			label += fmt.Sprint(slice)
		}
		if slice > 0 {
			Load(Param("octets"), octets)
			Load(Param("x"), x)
			Load(Param("q"), q)
		}
		for r := range acc {
			for v := range acc[r] {
				zero(w, acc[r][v])
			}
		}
		Label(label)
		for quad := range 2 {
			add(Mem{Base: q, Disp: 4*columns*quad + from}, func(r int) Mem { return at(r, 4*quad) })
		}
		endOctets(label, x, q, octets, 8, 8*columns)

		y := param("y")
		ldy := param("ldy")
		for r := range acc {
			for v := range acc[r] {
				VCVTDQ2PS(acc[r][v], acc[r][v])
				VMOVUPS(acc[r][v], Mem{Base: y, Disp: from + v*w.bytes})
			}
			if r < rows-1 {
				ADDQ(ldy, y)
			}
		}
	}
	VZEROUPPER()
	RET()
}

// generateIntegers makes all functions of products of integers.
func generateIntegers() {
	for _, f := range integerFormats {
		for _, w := range []width{avx2, avx512} {
			for _, rows := range w.rows {
				f.generate(w, rows, wholeScales)
			}
			f.generate(w, 1, halfScales)
		}
	}
	roundRow()
	for _, w := range []width{avx2, avx512} {
		for _, rows := range byteRows[w.bytes] {
			byteTile(w, rows)
		}
	}
}
