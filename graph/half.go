package graph

import (
	"math"

	"fusec/graph/safetensors"
)

// The 16-bit element types. F16 is IEEE 754 binary16: 11 significant bits, up to 65504. BF16 is the upper half of an
// F32: 8 significant bits and the range of an F32. Both are for operands of contractions; sums and all other
// computations are in F32 (see [DType.Accumulator]). A Tensor of them holds their bits as []uint16.

// halfFormat describes the bits of a 16-bit type.
type halfFormat struct {
	fraction int // stored bits of the significand
	least    int // exponent of the smallest normal number
}

var halfFormats = [...]halfFormat{BF16: {7, -126}, F16: {10, -14}}

// bits rounds v to the format, to nearest and ties to even, in one step. A number that is too large becomes infinite. A
// NaN stays a NaN and keeps the upper bits of its payload.
func (f halfFormat) bits(v float64) uint16 {
	b := math.Float64bits(v)
	sign, inf := uint16(b>>63)<<15, uint16(1<<15-1<<f.fraction)
	if math.IsNaN(v) {
		quiet := uint16(1) << (f.fraction - 1)
		return sign | inf | quiet | uint16(b>>(52-f.fraction))&(quiet-1)
	}
	b &^= 1 << 63
	if b < uint64(1023+f.least)<<52 {
		// A number below the least normal is rounded as it is added to one whose last place is a unit of the format.
		one := uint64(1023+52+f.least-f.fraction) << 52
		return sign | uint16(math.Float64bits(math.Float64frombits(b)+math.Float64frombits(one))-one)
	}
	drop := 52 - f.fraction // what is rounded up carries into the exponent
	b += 1<<(drop-1) - 1 + b>>drop&1
	return sign | uint16(min(b>>drop-uint64(1022+f.least)<<f.fraction, uint64(inf)))
}

// BF16FromFloat32 is the bits of the BF16 nearest to x, ties to even.
func BF16FromFloat32(x float32) uint16 {
	b := math.Float32bits(x)
	if x != x {
		return uint16(b>>16) | 1<<6 // quiet, so that dropping bits cannot make it infinite
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// BF16ToFloat32 is the value of a BF16 given by its bits.
func BF16ToFloat32(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// F16FromFloat32 is the bits of the F16 nearest to x, ties to even; infinite from 65520 on.
func F16FromFloat32(x float32) uint16 { return halfFormats[F16].bits(float64(x)) }

// F16ToFloat32 is the value of an F16 given by its bits.
func F16ToFloat32(h uint16) float32 { return safetensors.Float16(h) }

// Bits16 is the bits of the value of a 16-bit type nearest to v, ties to even, in one rounding.
func (d DType) Bits16(v float64) uint16 { return halfFormats[d].bits(v) }

// From16 is the value of 16 bits in a 16-bit type.
func (d DType) From16(bits uint16) float32 {
	if d == BF16 {
		return BF16ToFloat32(bits)
	}
	return F16ToFloat32(bits)
}

// Epsilon is the largest relative error of rounding to a 16-bit type: half a unit of the last place. It is 0 for other
// types.
func (d DType) Epsilon() float64 {
	if !d.Is16() {
		return 0
	}
	return math.Ldexp(1, -1-halfFormats[d].fraction)
}

// Tolerance is how far a result of the type may be off, as a multiple of the sum of the sizes of its terms: what every kernel
// is held to.
func (d DType) Tolerance() float64 {
	switch d {
	case F64:
		return 1e-12
	case BF16, F16:
		return d.Epsilon()
	}
	return 1e-5
}

// Round is v rounded to a 16-bit type, and v itself for other types.
func (d DType) Round(v float64) float64 {
	if !d.Is16() {
		return v
	}
	return float64(d.From16(d.Bits16(v)))
}

// Contracts reports whether op multiplies operand i with another operand in a contraction, so that it may have 16 bits.
func Contracts(op Op, i int) bool {
	info := InfoOf(op)
	return info != nil && info.Contracts != nil && info.Contracts(op, i)
}

// factors is [OpInfo.Contracts] of an operation all of whose operands meet in products.
func factors(Op, int) bool { return true }
