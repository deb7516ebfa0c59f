package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// panelBytes are the panel widths of the micro-kernels, A's and B's:
// 6, 8 and 12 elements, and two vector registers.
var panelBytes = []int{24, 32, 48, 64, 96, 128}

// copyRows generates the packing of an operand that is contiguous across its
// panels: every row is cut into pieces of the panel's width.
func copyRows(bytes int) {
	name := fmt.Sprintf("copyRows%d", bytes)
	begin(name, "func(rows, panels int, src *byte, srcStride int, dst *byte, panelStride int)",
		fmt.Sprintf("%s cuts rows of panels·%d bytes, srcStride bytes apart, into pieces of %d bytes;", name, bytes, bytes),
		fmt.Sprintf("piece j of row i goes to dst + j·panelStride + i·%d. Neither rows nor panels may be 0.", bytes))
	rows, panels := param("rows"), param("panels")
	src, srcStride := param("src"), param("srcStride")
	dst, panelStride := param("dst"), param("panelStride")
	from, to, left := GP64(), GP64(), GP64()

	Label("row")
	MOVQ(src, from)
	MOVQ(dst, to)
	MOVQ(panels, left)
	Label("piece")
	copyBytes(bytes, from, to)
	ADDQ(U32(bytes), from)
	ADDQ(panelStride, to)
	DECQ(left)
	JNE(LabelRef("piece"))
	ADDQ(srcStride, src)
	ADDQ(U32(bytes), dst)
	DECQ(rows)
	JNE(LabelRef("row"))
	VZEROUPPER()
	RET()
}

// copyBytes copies a fixed number of bytes, a multiple of 8, with the widest
// moves that do not pass its end.
func copyBytes(bytes int, from, to GPVirtual) {
	type part struct {
		at   int
		move func(Op, Op)
		reg  Op
	}
	var parts []part
	for at := 0; at < bytes; {
		switch left := bytes - at; {
		case left >= 32:
			parts = append(parts, part{at, func(s, d Op) { VMOVUPS(s, d) }, YMM()})
			at += 32
		case left >= 16:
			parts = append(parts, part{at, func(s, d Op) { VMOVUPS(s, d) }, XMM()})
			at += 16
		default:
			parts = append(parts, part{at, func(s, d Op) { MOVQ(s, d) }, GP64()})
			at += 8
		}
	}
	for _, p := range parts {
		p.move(Mem{Base: from, Disp: p.at}, p.reg)
	}
	for _, p := range parts {
		p.move(p.reg, Mem{Base: to, Disp: p.at})
	}
}

// transposer holds the parameters that the transposing kernels share.
type transposer struct {
	blocks, src, srcStride, dst, dstStride GPVirtual
}

// beginTranspose starts a kernel that turns rows of columns·blocks elements
// into as many short rows.
func beginTranspose(rows, columns int, e element) transposer {
	name := fmt.Sprintf("transpose%d%s", rows, e.suffix)
	begin(name, fmt.Sprintf("func(blocks int, src *%s, srcStride int, dst *%[1]s, dstStride int)", e.goType),
		fmt.Sprintf("%s transposes %d rows of %d·blocks elements, srcStride elements apart,", name, rows, columns),
		fmt.Sprintf("into %d·blocks rows of %d elements, dstStride elements apart. blocks may not be 0.", columns, rows))
	return transposer{
		blocks: param("blocks"), src: param("src"), srcStride: strideParam("srcStride", e),
		dst: param("dst"), dstStride: strideParam("dstStride", e),
	}
}

// load reads one vector of each row at src and moves src on.
func (t transposer) load(rows int, e element) []VecVirtual {
	v := make([]VecVirtual, rows)
	row := GP64()
	MOVQ(t.src, row)
	for i := range v {
		v[i] = YMM()
		e.load(Mem{Base: row}, v[i])
		if i < rows-1 {
			ADDQ(t.srcStride, row)
		}
	}
	ADDQ(U32(avx2.bytes), t.src)
	return v
}

// next moves on to the next short row of the destination.
func (t transposer) next() { ADDQ(t.dstStride, t.dst) }

// end closes the loop over blocks that starts at the label "block".
func (t transposer) end() {
	DECQ(t.blocks)
	JNE(LabelRef("block"))
	VZEROUPPER()
	RET()
}

// interleave unpacks the low and the high halves of two registers.
func interleave(low, high func(ops ...Op), x, y VecVirtual) (lo, hi VecVirtual) {
	lo, hi = YMM(), YMM()
	low(y, x, lo)
	high(y, x, hi)
	return lo, hi
}

// upper returns the upper 128 bits of v in a register of their own.
func upper(v VecVirtual) VecVirtual {
	x := XMM()
	VEXTRACTF128(U8(1), v, x)
	return x
}

// transpose4F32 transposes 4×4 blocks within 128-bit lanes; the lower lanes
// hold columns 0 to 3 and the upper ones columns 4 to 7.
func transpose4F32() {
	t := beginTranspose(4, 8, float32s)
	Label("block")
	r := t.load(4, float32s)
	lo01, hi01 := interleave(VUNPCKLPS, VUNPCKHPS, r[0], r[1])
	lo23, hi23 := interleave(VUNPCKLPS, VUNPCKHPS, r[2], r[3])
	c0, c1 := interleave(VUNPCKLPD, VUNPCKHPD, lo01, lo23)
	c2, c3 := interleave(VUNPCKLPD, VUNPCKHPD, hi01, hi23)
	columns := []VecVirtual{c0, c1, c2, c3}
	for _, c := range columns {
		VMOVUPS(c.AsX(), Mem{Base: t.dst})
		t.next()
	}
	for _, c := range columns {
		VEXTRACTF128(U8(1), c, Mem{Base: t.dst})
		t.next()
	}
	t.end()
}

// transpose2F32 interleaves two rows and stores the pairs.
func transpose2F32() {
	t := beginTranspose(2, 8, float32s)
	Label("block")
	r := t.load(2, float32s)
	lo, hi := interleave(VUNPCKLPS, VUNPCKHPS, r[0], r[1])
	for _, pairs := range []Op{lo.AsX(), hi.AsX(), upper(lo), upper(hi)} {
		VMOVLPS(pairs, Mem{Base: t.dst})
		t.next()
		VMOVHPS(pairs, Mem{Base: t.dst})
		t.next()
	}
	t.end()
}

// transpose4F64 transposes 4×4 blocks: pairs within lanes, then lanes.
func transpose4F64() {
	t := beginTranspose(4, 4, float64s)
	Label("block")
	r := t.load(4, float64s)
	lo01, hi01 := interleave(VUNPCKLPD, VUNPCKHPD, r[0], r[1])
	lo23, hi23 := interleave(VUNPCKLPD, VUNPCKHPD, r[2], r[3])
	for _, lanes := range []uint64{0x20, 0x31} {
		for _, pair := range [][2]VecVirtual{{lo01, lo23}, {hi01, hi23}} {
			column := YMM()
			VPERM2F128(U8(lanes), pair[1], pair[0], column)
			VMOVUPD(column, Mem{Base: t.dst})
			t.next()
		}
	}
	t.end()
}

// transpose2F64 interleaves two rows and stores the pairs.
func transpose2F64() {
	t := beginTranspose(2, 4, float64s)
	Label("block")
	r := t.load(2, float64s)
	lo, hi := interleave(VUNPCKLPD, VUNPCKHPD, r[0], r[1])
	for _, pair := range []Op{lo.AsX(), hi.AsX(), upper(lo), upper(hi)} {
		VMOVUPD(pair, Mem{Base: t.dst})
		t.next()
	}
	t.end()
}
