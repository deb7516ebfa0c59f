package main

import (
	"fmt"
	"strings"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// memoryFamily emits the kernels that move or convert values.
func memoryFamily(g *generator) {
	for _, w := range g.widths {
		mapKernel{
			name: "fill", doc: "sets dst[i] = s.", scalars: []string{"s"}, unroll: 4,
			body: func(e *emitter, _ []vec, s []splat) vec { return e.copy(s[0]) },
		}.emit(g, w)
	}
	if g.file != nil {
		neonMemory(g)
		return
	}
	transposeBlocks()
	transposeLines()
	interleave()
	widen()
	narrow()
	byteConversions()
	masks()
	halves()
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

// transposeLines emits the transposition by whole lines of the destination: of 16 rows, a register takes 4 columns of 4
// rows that are 4 apart, in its four parts; two levels of shuffles within the parts then make 4 columns of 16 rows.
func transposeLines() {
	TEXT("transposeLinesAVX512F32", attr.NOSPLIT, "func(dst *float32, ldDst int, src *float32, ldSrc, rows, cols int)")
	Pragma("noescape")
	Doc("transposeLinesAVX512F32 sets dst[j·ldDst + i] = src[i·ldSrc + j] for i < rows, a positive multiple of 16, and j < cols,",
		"one of 4.")
	dst := Load(Param("dst"), GP64())
	ldDst := Load(Param("ldDst"), GP64())
	src := Load(Param("src"), GP64())
	ldSrc := Load(Param("ldSrc"), GP64())
	rows := Load(Param("rows"), GP64())
	SHLQ(Imm(2), ldDst)
	SHLQ(Imm(2), ldSrc)
	ldSrc3 := GP64()
	LEAQ(Mem{Base: ldSrc, Index: ldSrc, Scale: 2}, ldSrc3)
	var parts [4]reg.Register // masks of a register's parts
	bits := GP64()
	for i := range parts {
		parts[i] = K()
		MOVQ(U32(0xf<<(4*i)), bits)
		KMOVW(bits.As32(), parts[i])
	}

	Label("rows")
	var from [4]reg.GPVirtual // of rows 0, 4, 8, 12
	for i := range from {
		from[i] = GP64()
		if i == 0 {
			MOVQ(src, from[0])
		} else {
			LEAQ(Mem{Base: from[i-1], Index: ldSrc, Scale: 4}, from[i])
		}
	}
	LEAQ(Mem{Base: from[3], Index: ldSrc, Scale: 4}, src)
	to, left := GP64(), GP64()
	MOVQ(dst, to)
	MOVQ(mustResolve("cols"), left)
	Label("cols")
	var in [4]reg.VecVirtual
	for i := range in {
		in[i] = ZMM()
		for part, row := range from {
			m := Mem{Base: row}
			switch i {
			case 1, 2:
				m.Index, m.Scale = ldSrc, uint8(i)
			case 3:
				m.Index, m.Scale = ldSrc3, 1
			}
			if part == 0 {
				VMOVUPS(m, in[i].AsX())
			} else {
				VBROADCASTF32X4(m, parts[part], in[i])
			}
		}
	}
	var pairs [4]reg.VecVirtual
	for i := 0; i < 4; i += 2 {
		pairs[i], pairs[i+1] = ZMM(), ZMM()
		VUNPCKLPS(in[i+1], in[i], pairs[i])
		VUNPCKHPS(in[i+1], in[i], pairs[i+1])
	}
	for c := range 4 {
		column := ZMM()
		if c%2 == 0 {
			VUNPCKLPD(pairs[2+c/2], pairs[c/2], column)
		} else {
			VUNPCKHPD(pairs[2+c/2], pairs[c/2], column)
		}
		VMOVUPS(column, Mem{Base: to})
		ADDQ(ldDst, to)
	}
	for _, row := range from {
		ADDQ(Imm(16), row)
	}
	SUBQ(Imm(4), left)
	JNE(LabelRef("cols"))
	ADDQ(Imm(64), dst)
	SUBQ(Imm(16), rows)
	JNE(LabelRef("rows"))
	VZEROUPPER()
	RET()
}

// mustResolve is a parameter in memory.
func mustResolve(name string) Mem {
	p, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return p.Addr
}

// interleave emits the transposition of three rows to one line.
func interleave() {
	const lanes, width = 16, 3
	table := GLOBL("interleaving", attr.RODATA|attr.NOPTR)
	for i := range 2 * width * lanes { // a register takes elements first of rows 0 and 1, then of these and row 2
		lane := i % lanes
		at := i/lanes/2*lanes + lane
		from := lane
		switch second, row := i/lanes%2 == 1, at%width; {
		case !second && row < 2:
			from = row*lanes + at/width
		case second && row == 2:
			from = lanes + at/width
		}
		DATA(i, U8(uint8(from)))
	}
	TEXT("interleaveAVX512F32", attr.NOSPLIT, "func(dst, src *float32, ldSrc, n int)")
	Pragma("noescape")
	Doc("interleaveAVX512F32 sets dst[3j + i] = src[i·ldSrc + j] for i < 3 and j < n, a positive multiple of 16.")
	dst := Load(Param("dst"), GP64())
	src := Load(Param("src"), GP64())
	ldSrc := Load(Param("ldSrc"), GP64())
	n := Load(Param("n"), GP64())
	var order [2 * width]reg.VecVirtual
	for i := range order {
		order[i] = ZMM()
		VPMOVZXBD(table.Offset(i*lanes), order[i])
	}
	Label("loop")
	var row [width]reg.VecVirtual
	for i := range row {
		row[i] = ZMM()
		m := Mem{Base: src}
		if i > 0 {
			m.Index, m.Scale = ldSrc, uint8(4*i)
		}
		VMOVUPS(m, row[i])
	}
	for out := range width {
		v := ZMM()
		VMOVAPS(row[0], v)
		VPERMT2PS(row[1], order[2*out], v)
		VPERMT2PS(row[2], order[2*out+1], v)
		VMOVUPS(v, Mem{Base: dst, Disp: out * 4 * lanes})
	}
	ADDQ(Imm(4*lanes), src)
	ADDQ(Imm(4*lanes*width), dst)
	SUBQ(Imm(lanes), n)
	JNE(LabelRef("loop"))
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

// byteConversions emits the conversions of integers of 8 bits to and from float32. Numbers become integers in range by packing with
// saturation; NaN becomes 0.
func byteConversions() {
	for _, t := range []struct {
		name, goType string
		widen, pack  func(...Op)
	}{{"u8", "uint8", func(o ...Op) { VPMOVZXBD(o[0], o[1]) }, func(o ...Op) { VPACKUSWB(o[0], o[1], o[2]) }},
		{"i8", "int8", func(o ...Op) { VPMOVSXBD(o[0], o[1]) }, func(o ...Op) { VPACKSSWB(o[0], o[1], o[2]) }}} {
		conversion(t.name+"ToF32Blocks", fmt.Sprintf("func(dst []float32, src []%s) (done int)", t.goType), 8,
			func(src, dst, i reg.Register) {
				v := YMM()
				t.widen(Mem{Base: src, Index: i, Scale: 1}, v)
				VCVTDQ2PS(v, v)
				VMOVUPS(v, Mem{Base: dst, Index: i, Scale: 4})
			})
		conversion("f32To"+strings.ToUpper(t.name)+"Blocks", fmt.Sprintf("func(dst []%s, src []float32) (done int)", t.goType), 8,
			func(src, dst, i reg.Register) {
				v, known, b := YMM(), YMM(), XMM()
				VMOVUPS(Mem{Base: src, Index: i, Scale: 4}, v)
				VCMPPS(Imm(ordered), v, v, known)
				VANDPS(known, v, v)
				VCVTTPS2DQ(v, v)
				VEXTRACTF128(Imm(1), v, b)
				VPACKSSDW(b, v.AsX(), b)
				t.pack(b, b, b)
				VMOVQ(b, Mem{Base: dst, Index: i, Scale: 1})
			})
	}
}

// ordered is the predicate of a comparison that holds for all but NaN.
const ordered = 7

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
