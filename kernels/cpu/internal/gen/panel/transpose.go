package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// generateTranspose makes the kernel that transposes blocks of 8×8 elements of 16 bits: three times, the rows of a block are
// interleaved, by words, by pairs of words, and by halves of a register.
func generateTranspose() {
	start("transposeOctetsAVX2",
		"func(blocks int, src *uint16, srcStride, srcStep int, dst *uint16, dstStride, dstStep int)",
		"transposeOctetsAVX2 transposes blocks of 8×8 elements of 16 bits. Strides are the distances of the rows of a block,",
		"and steps those of blocks, in bytes. blocks may not be 0.")
	load := func(name string) GPVirtual {
		r := GP64()
		Load(Param(name), r)
		return r
	}
	blocks, src, srcStride, srcStep := load("blocks"), load("src"), load("srcStride"), load("srcStep")
	dst, dstStride, dstStep := load("dst"), load("dstStride"), load("dstStep")
	// rows are the places of 8 rows from base on.
	rows := func(base, stride, three GPVirtual) (list []Mem) {
		fourth := GP64()
		LEAQ(Mem{Base: base, Index: stride, Scale: 4}, fourth)
		for _, b := range []GPVirtual{base, fourth} {
			list = append(list, Mem{Base: b}, Mem{Base: b, Index: stride, Scale: 1}, Mem{Base: b, Index: stride, Scale: 2},
				Mem{Base: b, Index: three, Scale: 1})
		}
		return list
	}
	threeOf := func(stride GPVirtual) GPVirtual {
		three := GP64()
		LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, three)
		return three
	}
	srcThree, dstThree := threeOf(srcStride), threeOf(dstStride)
	// interleaved are the lower and the upper halves of x and y, element by element.
	interleaved := func(low, high func(ops ...Op), x, y VecVirtual) (lo, hi VecVirtual) {
		lo, hi = XMM(), XMM()
		low(y, x, lo)
		high(y, x, hi)
		return lo, hi
	}

	Label("block")
	var in, words, pairs [8]VecVirtual
	for i, at := range rows(src, srcStride, srcThree) {
		in[i] = XMM()
		VMOVDQU(at, in[i])
	}
	ADDQ(srcStep, src)
	for i := 0; i < 8; i += 2 { // columns 0 to 3 and 4 to 7 of two rows
		words[i], words[i+1] = interleaved(VPUNPCKLWD, VPUNPCKHWD, in[i], in[i+1])
	}
	for i := 0; i < 8; i += 4 { // two columns each, of four rows
		pairs[i], pairs[i+1] = interleaved(VPUNPCKLDQ, VPUNPCKHDQ, words[i], words[i+2])
		pairs[i+2], pairs[i+3] = interleaved(VPUNPCKLDQ, VPUNPCKHDQ, words[i+1], words[i+3])
	}
	to := rows(dst, dstStride, dstThree)
	for i := range 4 {
		even, odd := interleaved(VPUNPCKLQDQ, VPUNPCKHQDQ, pairs[i], pairs[i+4])
		VMOVDQU(even, to[2*i])
		VMOVDQU(odd, to[2*i+1])
	}
	ADDQ(dstStep, dst)
	DECQ(blocks)
	JNE(LabelRef("block"))
	RET()
}
