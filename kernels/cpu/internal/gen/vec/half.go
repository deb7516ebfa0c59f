package main

import (
	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"fusec/kernels/cpu/internal/gen/arm64"
)

// The conversions between float32 and the types of 16 bits, eight numbers at a time. A bfloat16 is the upper half of a float32;
// it is rounded to nearest, ties to even, by an addition to the lower half. A NaN becomes quiet, so that it stays one.

// The signatures of the conversions to float32, from it, and of rounding in place.
const (
	widens  = "func(dst []float32, src []uint16) (done int)"
	narrows = "func(dst []uint16, src []float32) (done int)"
	rounds  = "func(dst, src []float32) (done int)"
)

const (
	halfGroup = 8
	justBelow = 0x7fff  // what is added to the lower half, and 1 more if the upper one is odd
	quiet     = 1 << 22 // the bit of a NaN that is kept in a bfloat16
)

// words is a register of constants of 32 bits, eight of the same.
func words(name string, v uint32) Mem {
	m := GLOBL(name, attr.RODATA|attr.NOPTR)
	for i := range halfGroup {
		DATA(4*i, U32(v))
	}
	return m
}

// halves emits the conversions for AVX2. Processors that have it have the conversions of binary16, too.
func halves() {
	half := func(base, i reg.Register) Mem { return Mem{Base: base, Index: i, Scale: 2} }
	single := func(base, i reg.Register) Mem { return Mem{Base: base, Index: i, Scale: 4} }
	conversion("widenF16Blocks", widens, halfGroup, func(src, dst, i reg.Register) {
		v := YMM()
		VCVTPH2PS(half(src, i), v)
		VMOVUPS(v, single(dst, i))
	})
	conversion("widenBF16Blocks", widens, halfGroup, func(src, dst, i reg.Register) {
		v := YMM()
		VPMOVZXWD(half(src, i), v)
		VPSLLD(Imm(16), v, v)
		VMOVUPS(v, single(dst, i))
	})
	toF16 := func(src, i reg.Register) reg.VecVirtual {
		v, h := YMM(), XMM()
		VMOVUPS(single(src, i), v)
		VCVTPS2PH(Imm(0), v, h)
		return h
	}
	conversion("narrowF16Blocks", narrows, halfGroup, func(src, dst, i reg.Register) { VMOVUPS(toF16(src, i), half(dst, i)) })
	conversion("roundF16Blocks", rounds, halfGroup, func(src, dst, i reg.Register) {
		v := YMM()
		VCVTPH2PS(toF16(src, i), v)
		VMOVUPS(v, single(dst, i))
	})
	below, bit := words("justBelow", justBelow), words("quiet", quiet)
	toBF16 := func(src, i reg.Register) reg.VecVirtual { // in the upper halves
		v, sum, odd, nan := YMM(), YMM(), YMM(), YMM()
		VMOVUPS(single(src, i), v)
		VPSLLD(Imm(15), v, odd)
		VPSRLD(Imm(31), odd, odd)
		VPADDD(below, v, sum)
		VPADDD(odd, sum, sum)
		VCMPPS(Imm(predUnord), v, v, nan)
		VPOR(bit, v, v)
		VBLENDVPS(nan, v, sum, sum)
		return sum
	}
	conversion("narrowBF16Blocks", narrows, halfGroup, func(src, dst, i reg.Register) {
		v, upper := toBF16(src, i), XMM()
		VPSRLD(Imm(16), v, v)
		VEXTRACTI128(Imm(1), v, upper)
		VPACKUSDW(upper, v.AsX(), upper)
		VMOVUPS(upper, half(dst, i))
	})
	conversion("roundBF16Blocks", rounds, halfGroup, func(src, dst, i reg.Register) {
		v := toBF16(src, i)
		VPSRLD(Imm(16), v, v)
		VPSLLD(Imm(16), v, v)
		VMOVUPS(v, single(dst, i))
	})
}

// neonHalves emits them for NEON.
func neonHalves(g *generator) {
	f := func() *arm64.Func { return g.fn }
	vector := arm64.Vector
	store := func(dst reg.Register, convert func(upper bool, d Op)) {
		low, high := vector(), vector()
		convert(false, low)
		convert(true, high)
		f().StorePair(dst, 0, low, high)
	}
	named := func(name string, upper bool) string {
		if upper {
			return name + "2"
		}
		return name
	}
	widenF16 := func(v Op) func(upper bool, d Op) {
		return func(upper bool, d Op) { f().Change(named("fcvtl", upper), arm64.S4, d, v) }
	}
	g.neonConversion("widenF16Blocks", widens, halfGroup, 2, 4, func(src, dst reg.Register) {
		v := vector()
		f().Load(v, Mem{Base: src})
		store(dst, widenF16(v))
	})
	g.neonConversion("widenBF16Blocks", widens, halfGroup, 2, 4, func(src, dst reg.Register) {
		v := vector()
		f().Load(v, Mem{Base: src})
		store(dst, func(upper bool, d Op) { f().WidenBF16(upper, d, v) })
	})
	toF16 := func(src reg.Register) reg.VecVirtual {
		v, low, high := vector(), vector(), vector()
		f().LoadPair(low, high, src, 0)
		f().Change("fcvtn", arm64.H4, v, low)
		f().Change("fcvtn2", arm64.H8, v, high)
		return v
	}
	g.neonConversion("narrowF16Blocks", narrows, halfGroup, 4, 2, func(src, dst reg.Register) {
		f().Store(Mem{Base: dst}, toF16(src))
	})
	g.neonConversion("roundF16Blocks", rounds, halfGroup, 4, 4, func(src, dst reg.Register) { store(dst, widenF16(toF16(src))) })
	toBF16 := func(src reg.Register) reg.VecVirtual { // the upper halves of rounded numbers
		low, high := vector(), vector()
		f().LoadPair(low, high, src, 0)
		constant := func(v uint64) reg.VecVirtual {
			c := vector()
			f().Load(c, g.file.Constant(v|v<<32, v|v<<32))
			return c
		}
		below, bit := constant(justBelow), constant(quiet)
		round := func(v reg.VecVirtual) reg.VecVirtual {
			odd, number := vector(), vector()
			f().Shift("shl", arm64.S4, 15, odd, v)
			f().Shift("ushr", arm64.S4, 31, odd, odd)
			f().Three("add", arm64.S4, odd, odd, below)
			f().Three("add", arm64.S4, odd, odd, v)
			f().Three("fcmeq", arm64.S4, number, v, v)
			f().Three("orr", arm64.B16, v, v, bit)
			f().Three("bsl", arm64.B16, number, odd, v)
			return number
		}
		v := vector()
		f().Three("uzp2", arm64.H8, v, round(low), round(high))
		return v
	}
	g.neonConversion("narrowBF16Blocks", narrows, halfGroup, 4, 2, func(src, dst reg.Register) {
		f().Store(Mem{Base: dst}, toBF16(src))
	})
	g.neonConversion("roundBF16Blocks", rounds, halfGroup, 4, 4, func(src, dst reg.Register) {
		v := toBF16(src)
		store(dst, func(upper bool, d Op) { f().WidenBF16(upper, d, v) })
	})
}
