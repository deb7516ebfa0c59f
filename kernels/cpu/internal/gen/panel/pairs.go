package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// Products of numbers that have 16 bits on both sides: VDPBF16PS, of AVX512-BF16, multiplies two pairs and adds both products to a
// sum. Neither avo nor Go's assembler knows it, so it is written as bytes, and all registers are named here.

var (
	zmm       = []VecPhysical{Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15, Z16, Z17, Z18, Z19, Z20, Z21}
	pairsOf   = RSI // x: its number in instructions is 6
	pairsBase = byte(6)
)

// dotPairs emits VDPBF16PS: to every element of register sum it adds the products of the pair there of register weights and of the
// pair at disp(RSI), a multiple of 4 below 512 (Intel, Software Developer's Manual, volume 2: EVEX.512.F3.0F38.W0 52 /r).
func dotPairs(disp, weights, sum int) {
	not := func(number, bit int) byte { return byte(^number >> bit & 1) }
	code := [7]byte{0x62,
		not(sum, 3)<<7 | 1<<6 | 1<<5 | not(sum, 4)<<4 | 2,
		byte(^weights&15)<<3 | 1<<2 | 2,
		2<<5 | 1<<4 | not(weights, 4)<<3,
		0x52, 1<<6 | byte(sum&7)<<3 | pairsBase, byte(disp / 4)}
	Commentf("VDPBF16PS.BCST %d(SI), Z%d, Z%d", disp, weights, sum)
	emit := func(opcode string, value Op) { Instruction(&ir.Instruction{Opcode: opcode, Operands: []Op{value}}) }
	emit("LONG", U32(uint32(code[0])|uint32(code[1])<<8|uint32(code[2])<<16|uint32(code[3])<<24))
	emit("WORD", U16(uint16(code[4])|uint16(code[5])<<8))
	emit("BYTE", U8(code[6]))
}

// generatePairs makes the kernel for a block of rows. Two rows of a panel, 32 columns each, are brought side by side in registers,
// a half of the columns in each, and the sums to their order at the end. One row has two sums for each column, to cover latency.
func generatePairs(rows int) {
	name := fmt.Sprintf("pairsx%dAVX512", rows)
	start(name, "func(octets int, x *uint16, q *byte, y *float32)",
		fmt.Sprintf("%s sets y [%d][32] to the product of %[2]d rows and a panel of weights, both of bfloat16.", name, rows),
		fmt.Sprintf("The weights are octets of 8 rows, x is [octets][%d][8]. It needs AVX512-BF16.", rows))
	octets, q, y := RCX, RDI, RDX
	Load(Param("octets"), octets)
	Load(Param("x"), pairsOf)
	Load(Param("q"), q)
	Load(Param("y"), y)

	sets := 1
	if rows == 1 {
		sets = 2
	}
	sum := func(r, set, half int) int { return (r*sets+set)*2 + half }
	for i := range rows * sets * 2 {
		VPXORD(zmm[i], zmm[i], zmm[i])
	}
	const even, odd, low, high = 16, 17, 18, 19
	Label("octet")
	for line := 0; line < 16*columns; line += 64 {
		PREFETCHT0(Mem{Base: q, Disp: ahead + line})
	}
	for pair := range steps / 2 {
		VMOVDQU32(Mem{Base: q, Disp: 2 * columns * (2 * pair)}, zmm[even])
		VMOVDQU32(Mem{Base: q, Disp: 2 * columns * (2*pair + 1)}, zmm[odd])
		VPUNPCKLWD(zmm[odd], zmm[even], zmm[low])
		VPUNPCKHWD(zmm[odd], zmm[even], zmm[high])
		for half, weights := range []int{low, high} {
			for r := range rows {
				dotPairs(2*steps*r+4*pair, weights, sum(r, pair%sets, half))
			}
		}
	}
	ADDQ(U32(2*steps*rows), pairsOf)
	ADDQ(U32(16*columns), q)
	DECQ(octets)
	JNE(LabelRef("octet"))

	for r := range rows {
		a, b := zmm[sum(r, 0, 0)], zmm[sum(r, 0, 1)] // columns 0–3, 8–11, …, and 4–7, 12–15, …
		if sets == 2 {
			VADDPS(zmm[sum(r, 1, 0)], a, a)
			VADDPS(zmm[sum(r, 1, 1)], b, b)
		}
		for half, quarters := range []uint64{0x44, 0xee} {
			VSHUFF32X4(U8(quarters), b, a, zmm[low])
			VSHUFF32X4(U8(0xd8), zmm[low], zmm[low], zmm[low])
			VMOVUPS(zmm[low], Mem{Base: y, Disp: 4*columns*r + 64*half})
		}
	}
	VZEROUPPER()
	RET()
}
