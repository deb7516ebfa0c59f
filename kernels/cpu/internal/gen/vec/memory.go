package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// memoryFamily emits the kernels that move or convert values.
func memoryFamily(g *generator) {
	for _, w := range bothWidths {
		mapKernel{
			name: "fill", doc: "sets dst[i] = s.", scalars: []string{"s"}, unroll: 4,
			body: func(e *emitter, _ []vec, s []splat) vec { return e.copy(s[0]) },
		}.emit(g, w)
	}
	transposeBlocks()
	widen()
	narrow()
	masks()
}

// transposeBlocks emits the transposition of a matrix whose sides are
// multiples of 8, block by block: unpack pairs of rows, shuffle pairs of pairs,
// then swap halves.
func transposeBlocks() {
	TEXT("transposeBlocksF32", attr.NOSPLIT, "func(dst *float32, ldDst int, src *float32, ldSrc, rows, cols int)")
	Pragma("noescape")
	Doc("transposeBlocksF32 sets dst[j·ldDst + i] = src[i·ldSrc + j] for i < rows, j < cols,",
		"both positive multiples of 8.")
	dst := Load(Param("dst"), GP64())
	ldDst := Load(Param("ldDst"), GP64())
	src := Load(Param("src"), GP64())
	ldSrc := Load(Param("ldSrc"), GP64())
	rows := Load(Param("rows"), GP64())
	cols := Load(Param("cols"), GP64())
	SHLQ(Imm(2), ldDst)
	SHLQ(Imm(2), ldSrc)
	from, to, row, left := GP64(), GP64(), GP64(), GP64()

	Label("rows")
	MOVQ(src, from)
	MOVQ(dst, to)
	MOVQ(cols, left)
	Label("cols")
	MOVQ(from, row)
	var in [8]reg.VecVirtual
	for i := range in {
		in[i] = YMM()
		VMOVUPS(Mem{Base: row}, in[i])
		if i < 7 {
			ADDQ(ldSrc, row)
		}
	}
	var pairs [8]reg.VecVirtual
	for i := 0; i < 8; i += 2 {
		pairs[i], pairs[i+1] = YMM(), YMM()
		VUNPCKLPS(in[i+1], in[i], pairs[i])
		VUNPCKHPS(in[i+1], in[i], pairs[i+1])
	}
	var quads [8]reg.VecVirtual // quads[4·h + c]: column c (and c+4) of rows 4h … 4h+3
	for h := range 2 {
		for c := range 4 {
			q := YMM()
			order := uint64(0x44)
			if c%2 == 1 {
				order = 0xee
			}
			VSHUFPS(Imm(order), pairs[4*h+2+c/2], pairs[4*h+c/2], q)
			quads[4*h+c] = q
		}
	}
	for j := range 8 {
		column := YMM()
		half := uint64(0x20)
		if j >= 4 {
			half = 0x31
		}
		VPERM2F128(Imm(half), quads[4+j%4], quads[j%4], column)
		VMOVUPS(column, Mem{Base: to})
		ADDQ(ldDst, to)
	}
	ADDQ(Imm(32), from)
	SUBQ(Imm(8), left)
	JNE(LabelRef("cols"))
	LEAQ(Mem{Base: src, Index: ldSrc, Scale: 8}, src)
	ADDQ(Imm(32), dst)
	SUBQ(Imm(8), rows)
	JNE(LabelRef("rows"))
	VZEROUPPER()
	RET()
}

// widen emits the conversion of float32 to float64, four at a time.
func widen() {
	conversion("widenBlocks", "func(dst []float64, src []float32) (done int)", 4, func(src, dst, i reg.Register) {
		v := YMM()
		VCVTPS2PD(Mem{Base: src, Index: i, Scale: 4}, v)
		VMOVUPD(v, Mem{Base: dst, Index: i, Scale: 8})
	})
}

// narrow emits the conversion of float64 to float32, four at a time.
func narrow() {
	conversion("narrowBlocks", "func(dst []float32, src []float64) (done int)", 4, func(src, dst, i reg.Register) {
		v := XMM()
		VCVTPD2PSY(Mem{Base: src, Index: i, Scale: 8}, v)
		VMOVUPS(v, Mem{Base: dst, Index: i, Scale: 4})
	})
}

// masks emits the conversions of bool to and from floating-point numbers, half a cache line of float32 or float64 at a
// time. A comparison gives all bits of an element, which packing with saturation keeps.
func masks() {
	conversion("maskToF32Blocks", "func(dst []float32, src []bool) (done int)", 8, func(src, dst, i reg.Register) {
		b, v := XMM(), YMM()
		VMOVQ(Mem{Base: src, Index: i, Scale: 1}, b)
		VPMINUB(ones(), b, b)
		VPMOVZXBD(b, v)
		VCVTDQ2PS(v, v)
		VMOVUPS(v, Mem{Base: dst, Index: i, Scale: 4})
	})
	conversion("maskToF64Blocks", "func(dst []float64, src []bool) (done int)", 4, func(src, dst, i reg.Register) {
		b, v := XMM(), YMM()
		VMOVD(Mem{Base: src, Index: i, Scale: 1}, b)
		VPMINUB(ones(), b, b)
		VPMOVZXBD(b, b)
		VCVTDQ2PD(b, v)
		VMOVUPD(v, Mem{Base: dst, Index: i, Scale: 8})
	})
	conversion("maskOfF32Blocks", "func(dst []bool, src []float32) (done int)", 8, func(src, dst, i reg.Register) {
		zero, v := YMM(), YMM()
		VXORPS(zero, zero, zero)
		VCMPPS(Imm(notEqual), Mem{Base: src, Index: i, Scale: 4}, zero, v)
		VMOVQ(packed(v, VPACKSSWB), Mem{Base: dst, Index: i, Scale: 1})
	})
	conversion("maskOfF64Blocks", "func(dst []bool, src []float64) (done int)", 4, func(src, dst, i reg.Register) {
		zero, v := YMM(), YMM()
		VXORPD(zero, zero, zero)
		VCMPPD(Imm(notEqual), Mem{Base: src, Index: i, Scale: 8}, zero, v)
		VMOVD(packed(v, VPACKSSDW, VPACKSSWB), Mem{Base: dst, Index: i, Scale: 1})
	})
}

// packed has a byte that is 1 for each element of v whose bits are set: the halves of v are packed, then each pack
// halves the elements.
func packed(v reg.VecVirtual, packs ...func(ops ...Op)) reg.VecVirtual {
	b := XMM()
	VEXTRACTF128(Imm(1), v, b)
	VPACKSSDW(b, v.AsX(), b)
	for _, pack := range packs {
		pack(b, b, b)
	}
	VPABSB(b, b)
	return b
}

// notEqual is the predicate of a comparison that holds for NaN, too.
const notEqual = 4

// ones is a register of bytes that are 1.
func ones() reg.VecVirtual {
	x := XMM()
	VPCMPEQB(x, x, x)
	VPABSB(x, x)
	return x
}

// conversion emits a loop over the elements in groups; it returns how many
// elements they were and leaves the rest, less than a group, to its caller.
func conversion(name, signature string, group int, convert func(src, dst, i reg.Register)) {
	TEXT(name, attr.NOSPLIT, signature)
	Pragma("noescape")
	Doc(fmt.Sprintf("%s converts the elements in whole groups of %d and returns their number.", name, group))
	dst := Load(Param("dst").Base(), GP64())
	src := Load(Param("src").Base(), GP64())
	n := GP64()
	shortest(true, "dst", n)
	shortest(false, "src", n)
	i := GP64()
	XORQ(i, i)
	SUBQ(Imm(uint64(group)), n)
	JLT(LabelRef("done"))
	Label("loop")
	convert(src, dst, i)
	ADDQ(Imm(uint64(group)), i)
	CMPQ(i, n)
	JLE(LabelRef("loop"))
	Label("done")
	Store(i, ReturnIndex(0))
	VZEROUPPER()
	RET()
}
