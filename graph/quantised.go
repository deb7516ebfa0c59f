package graph

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unsafe"
)

// The element types of few bits. They store weights, and other values that Quantize makes; nothing but Dequantize and what it
// is moved into reads them.
//
// I4 is a signed integer from −8 to 7 in two's complement. Two share a byte, the one with the even index in the lower half.
// A value of an odd number of elements has 0 in the upper half of its last byte.
//
// F8E4M3 and F8E5M2 are the 8-bit floating-point numbers of the Open Compute Project ("OCP 8-bit Floating Point
// Specification (OFP8)", 2023). F8E4M3 has 4 significant bits, goes up to 448, and has NaN but no infinities. F8E5M2 has 3
// significant bits, goes up to 57344, and has both.

// A byteFormat describes the bits of an 8-bit floating-point type.
type byteFormat struct {
	fraction int     // stored bits of the significand
	least    int     // exponent of the smallest normal number
	most     float64 // the largest finite number
	nan      uint8   // the bits of a NaN
}

var byteFormats = map[DType]byteFormat{
	F8E4M3: {3, -6, 448, 0x7f},
	F8E5M2: {2, -14, 57344, 0x7e},
}

// byteValues are the numbers of all bits of each 8-bit type.
var byteValues = map[DType]*[256]float32{F8E4M3: byteFormats[F8E4M3].values(), F8E5M2: byteFormats[F8E5M2].values()}

func (f byteFormat) values() *[256]float32 {
	var list [256]float32
	for i := range list {
		fraction, exponent := i&(1<<f.fraction-1), i&0x7f>>f.fraction
		v := math.Ldexp(float64(fraction), f.least-f.fraction)
		if exponent > 0 {
			v = math.Ldexp(float64(fraction|1<<f.fraction), f.least-f.fraction+exponent-1)
		}
		switch {
		case v <= f.most:
		case i&0x7f == 0x7c && f.nan != 0x7f:
			v = math.Inf(1)
		default:
			v = math.NaN()
		}
		if i > 0x7f {
			v = -v
		}
		list[i] = float32(v)
	}
	return &list
}

// bits rounds v to the format, to nearest and ties to even, and to the largest number if v is larger or infinite.
func (f byteFormat) bits(v float64) uint8 {
	sign := uint8(math.Float64bits(v)>>63) << 7
	if v != v {
		return sign | f.nan
	}
	v = min(math.Abs(v), f.most)
	e := f.least
	if v >= math.Ldexp(1, f.least) {
		e = math.Ilogb(v)
	}
	units := math.RoundToEven(math.Ldexp(v, f.fraction-e)) // of the last place; the leading bit adds 1 to the exponent
	return sign | uint8(uint64(e-f.least)<<f.fraction+uint64(units))
}

// Bits8 is the bits of the number of d, F8E4M3 or F8E5M2, nearest to v, ties to even. What is larger than the largest number
// gives that.
func (d DType) Bits8(v float64) uint8 { return byteFormats[d].bits(v) }

// Values8 are the numbers of d, F8E4M3 or F8E5M2, by their bits.
func (d DType) Values8() *[256]float32 { return byteValues[d] }

func byteRow(name string, d DType) dtypeRow {
	r := storedRow[uint8](name, storedKind)
	r.float = func(data any, i int) float64 { return float64(byteValues[d][data.([]uint8)[i]]) }
	r.setFloat = func(data any, i int, v float64) { data.([]uint8)[i] = d.Bits8(v) }
	return r
}

func nibbleRow(name string) dtypeRow {
	r := storedRow[uint8](name, storedKind)
	whole, equal := r.slice, r.constant
	r.constant = func(data any) bool { // false of an odd number of elements that are not 0
		x := data.([]uint8)
		return equal(data) && x[0]&15 == x[0]>>4
	}
	r.slice = func(p unsafe.Pointer, n int) any { return whole(p, n/2+n%2) }
	r.float = func(data any, i int) float64 { return float64(Nibble(data.([]uint8), i)) }
	r.setFloat = func(data any, i int, v float64) {
		SetNibble(data.([]uint8), i, int8(math.RoundToEven(max(-8, min(v, 7)))))
	}
	return r
}

// Nibble is element i of the bytes of an I4 value.
func Nibble(b []uint8, i int) int8 { return int8(b[i/2]<<(4-4*(i&1))) >> 4 }

// SetNibble sets element i of the bytes of an I4 value to v, of which only the lower 4 bits count.
func SetNibble(b []uint8, i int, v int8) {
	shift := 4 * (i & 1)
	b[i/2] = b[i/2]&^(15<<shift) | uint8(v&15)<<shift
}

// formatStored writes element i of a type that is only stored, as the number that it is.
func formatStored(t *Tensor, i int) string {
	v, b := t.Float(i), t.Data.([]uint8)
	switch {
	case t.Type.DType == I4:
		return strconv.Itoa(int(v))
	case v != v && b[i] != t.Type.DType.Bits8(math.NaN()):
		return fmt.Sprintf("nan.%02x", b[i])
	case v != v:
		return "nan"
	}
	return formatFloat(v)
}

// parseStored is the inverse of formatStored. It refuses what the type does not hold.
func parseStored(t *Tensor, i int, s string) error {
	d := t.Type.DType
	if d == I4 {
		v, err := strconv.ParseInt(s, 10, 8)
		if err != nil || v < -8 || v > 7 {
			return fmt.Errorf("expected a number of %v, found %s", d, s)
		}
		SetNibble(t.Data.([]uint8), i, int8(v))
		return nil
	}
	if hex, ok := strings.CutPrefix(s, "nan."); ok {
		b, err := strconv.ParseUint(hex, 16, 8)
		if v := d.Values8()[b&0xff]; err != nil || v == v {
			return fmt.Errorf("expected the bits of a NaN, found %s", s)
		}
		t.Data.([]uint8)[i] = uint8(b)
		return nil
	}
	v, err := parseFloat(s)
	if math.IsInf(v, 0) && d == F8E5M2 {
		t.Data.([]uint8)[i] = 0x7c | uint8(math.Float64bits(v)>>63)<<7
		return err
	}
	t.SetFloat(i, v)
	return err
}
