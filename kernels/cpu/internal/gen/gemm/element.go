package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// An element is a floating-point type with the instructions that handle it.
type element struct {
	suffix   string // of function names
	goType   string
	bytes    int
	shift    uint64 // log2(bytes)
	load     func(ops ...Op)
	splat    func(ops ...Op) // one element from memory to every lane
	zero     func(ops ...Op)
	add      func(ops ...Op)
	mul      func(ops ...Op)
	max, min func(ops ...Op)
	fma      func(ops ...Op) // fma(x, y, acc): acc += x·y
	loadOne  func(ops ...Op)
	fmaOne   func(ops ...Op)
	maskMove func(mxy, xy, mxy1 Op)
}

var float32s = element{
	suffix: "F32", goType: "float32", bytes: 4, shift: 2,
	load: VMOVUPS, splat: VBROADCASTSS, zero: VXORPS, add: VADDPS, mul: VMULPS, max: VMAXPS, min: VMINPS, fma: VFMADD231PS,
	loadOne: VMOVSS, fmaOne: VFMADD231SS, maskMove: VMASKMOVPS,
}

var float64s = element{
	suffix: "F64", goType: "float64", bytes: 8, shift: 3,
	load: VMOVUPD, splat: VBROADCASTSD, zero: VXORPD, add: VADDPD, mul: VMULPD, max: VMAXPD, min: VMINPD, fma: VFMADD231PD,
	loadOne: VMOVSD, fmaOne: VFMADD231SD, maskMove: VMASKMOVPD,
}

// A width is a vector register width.
type width struct {
	bytes    int
	register func() VecVirtual
}

var (
	avx2   = width{32, YMM}
	avx512 = width{64, ZMM}
)

// zeros clears registers. VXORPS on ZMM needs AVX512DQ, so those are cleared
// through integers, which AVX512F can do.
func (w width) zeros(e element, registers ...VecVirtual) {
	for _, r := range registers {
		if w.bytes == avx512.bytes {
			VPXORD(r, r, r)
		} else {
			e.zero(r, r, r)
		}
	}
}

// param loads an integer or pointer parameter into a register of its own.
func param(name string) GPVirtual {
	return Load(Param(name), GP64()).(GPVirtual)
}

// strideParam loads a stride counted in elements and turns it into bytes.
func strideParam(name string, e element) GPVirtual {
	r := param(name)
	SHLQ(U8(e.shift), r)
	return r
}

// begin starts a function.
func begin(name, signature string, doc ...string) {
	TEXT(name, NOSPLIT, signature)
	Pragma("noescape")
	Doc(doc...)
}
