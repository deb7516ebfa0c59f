package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"fusec/kernels/cpu/internal/gen/arm64"
)

// instr emits one instruction, operands in the order of Go's assembler.
type instr = func(...Op)

// width is an element type together with the instructions that work on it.
type width struct {
	goType string // float32 or float64
	suffix string // F32 or F64, the end of every kernel's name
	size   int    // bytes an element
	lanes  int    // elements in one register
	shift  uint64 // log2(size)

	register                           func() reg.VecVirtual
	load, broadcast                    instr
	add, sub, mul, div, max, min, sqrt instr
	and, or, xor, andn                 instr
	fma213, fma231, fnma231            instr
	cmp                                instr
	intAdd, intSub, intMax, intEqual   instr // of integers as wide as the elements
	shiftLeft, shiftRight, toFloat     instr // of integers of 32 bits; to the right with their sign
	blend                              func(mask, b, a, dst Op)
	round                              func(mode, x, dst Op)
	maskMove                           func(a, b, c Op)
	moveMask                           func(x, r Op)
	bits                               func(float64) uint64 // of a value in this format
	sign, one                          uint64               // bit patterns of −0 and 1

	neon        bool // registers are those of NEON: see neon.go
	arrangement arm64.Arrangement
}

// bytes is the size of a register.
func (w *width) bytes() int { return w.lanes * w.size }

var f32 = &width{
	goType: "float32", suffix: "F32", size: 4, lanes: 8, shift: 2, register: YMM,
	load: VMOVUPS, broadcast: VBROADCASTSS,
	add: VADDPS, sub: VSUBPS, mul: VMULPS, div: VDIVPS, max: VMAXPS, min: VMINPS, sqrt: VSQRTPS,
	and: VANDPS, or: VORPS, xor: VXORPS, andn: VANDNPS,
	fma213: VFMADD213PS, fma231: VFMADD231PS, fnma231: VFNMADD231PS,
	cmp:    VCMPPS,
	intAdd: VPADDD, intSub: VPSUBD, intMax: VPMAXSD, intEqual: VPCMPEQD, shiftLeft: VPSLLD, shiftRight: VPSRAD, toFloat: VCVTDQ2PS,
	blend: VBLENDVPS, round: VROUNDPS, maskMove: VMASKMOVPS, moveMask: VMOVMSKPS,
	bits: func(v float64) uint64 { return uint64(math.Float32bits(float32(v))) },
	sign: 1 << 31, one: 0x3f800000,
}

var f64 = &width{
	goType: "float64", suffix: "F64", size: 8, lanes: 4, shift: 3, register: YMM,
	load: VMOVUPD, broadcast: VBROADCASTSD,
	add: VADDPD, sub: VSUBPD, mul: VMULPD, div: VDIVPD, max: VMAXPD, min: VMINPD, sqrt: VSQRTPD,
	and: VANDPD, or: VORPD, xor: VXORPD, andn: VANDNPD,
	fma213: VFMADD213PD, fma231: VFMADD231PD, fnma231: VFNMADD231PD,
	cmp:    VCMPPD,
	intAdd: VPADDQ, intEqual: VPCMPEQQ,
	blend: VBLENDVPD, round: VROUNDPD, maskMove: VMASKMOVPD, moveMask: VMOVMSKPD,
	bits: math.Float64bits,
	sign: 1 << 63, one: 0x3ff0000000000000,
}

// f32x16 is f32 in ZMM registers, for what AVX-512 F has under the same names.
var f32x16 = func() *width {
	w := *f32
	w.suffix, w.lanes, w.register = "AVX512F32", 16, ZMM
	w.and, w.or, w.xor = VPANDD, VPORD, VPXORD
	return &w
}()
