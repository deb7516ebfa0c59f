package graph

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unsafe"
)

// DType is the type of one element.
type DType uint8

// The element types. Bool is stored as one byte, 0 or 1. BF16 and F16 are for operands of contractions; see half.go. I4,
// F8E4M3 and F8E5M2 only store what Quantize makes and Dequantize reads; see quantised.go.
const (
	Invalid DType = iota
	F32
	F64
	I32
	I64
	Bool
	BF16
	F16
	I8
	U8
	I16
	U16
	U32
	U64
	I4
	F8E4M3
	F8E5M2
	endDType
)

// numberKind is what the bits of an element stand for.
type numberKind uint8

const (
	invalidKind numberKind = iota
	floatKind
	halfKind // see halfFormats
	boolKind
	signedKind
	unsignedKind
	storedKind // see quantised.go
)

// A dtypeRow is what is known of an element type. What depends on the element type reads the row.
type dtypeRow struct {
	name string
	kind numberKind
	size int // bytes

	slice    func(p unsafe.Pointer, n int) any          // the n elements from p on as a Go slice
	elems    func(data any) (unsafe.Pointer, int, bool) // the reverse; false for another type of slice
	float    func(data any, i int) float64              // element i; true is 1
	setFloat func(data any, i int, v float64)           // of floats, and of the types that are only stored
	integer  func(data any, i int) int64                // of integers and Bools; of U64 the int64 with the same bits
	setInt   func(data any, i int, v int64)             // of integers and Bools
	constant func(data any) bool                        // whether all elements are equal
}

var dtypes = [endDType]dtypeRow{
	Invalid: {name: "invalid", float: func(any, int) float64 { return 0 }, setFloat: func(any, int, float64) {}},
	F32:     floatRow[float32]("f32"),
	F64:     floatRow[float64]("f64"),
	I32:     integerRow[int32]("i32"),
	I64:     integerRow[int64]("i64"),
	Bool:    boolRow(),
	BF16:    halfRow("bf16", BF16),
	F16:     halfRow("f16", F16),
	I8:      integerRow[int8]("i8"),
	U8:      integerRow[uint8]("u8"),
	I16:     integerRow[int16]("i16"),
	U16:     integerRow[uint16]("u16"),
	U32:     integerRow[uint32]("u32"),
	U64:     integerRow[uint64]("u64"),
	I4:      nibbleRow("i4"),
	F8E4M3:  byteRow("f8e4m3", F8E4M3),
	F8E5M2:  byteRow("f8e5m2", F8E5M2),
}

// Integer constrains the Go types of integers.
type Integer interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64
}

// Elem constrains the Go types of elements. That of BF16 and F16, uint16, is also that of U16.
type Elem interface {
	Integer | float32 | float64 | bool
}

// storedRow is a row with what all elements that are Go values of type E have in common.
func storedRow[E Elem](name string, kind numberKind) dtypeRow {
	return dtypeRow{name: name, kind: kind, size: int(unsafe.Sizeof(*new(E))),
		slice: func(p unsafe.Pointer, n int) any { return unsafe.Slice((*E)(p), n) },
		elems: func(data any) (unsafe.Pointer, int, bool) {
			x, ok := data.([]E)
			return unsafe.Pointer(unsafe.SliceData(x)), len(x), ok
		},
		constant: func(data any) bool {
			x := data.([]E)
			for i := 1; i < len(x); i++ {
				if x[i] != x[0] {
					return false
				}
			}
			return len(x) > 0
		}}
}

func floatRow[E float32 | float64](name string) dtypeRow {
	r := storedRow[E](name, floatKind)
	r.float = func(data any, i int) float64 { return float64(data.([]E)[i]) }
	r.setFloat = func(data any, i int, v float64) { data.([]E)[i] = E(v) }
	return r
}

func integerRow[E Integer](name string) dtypeRow {
	kind := signedKind
	if name[0] == 'u' {
		kind = unsignedKind
	}
	r := storedRow[E](name, kind)
	r.float = func(data any, i int) float64 { return float64(data.([]E)[i]) }
	r.integer = func(data any, i int) int64 { return int64(data.([]E)[i]) }
	r.setInt = func(data any, i int, v int64) { data.([]E)[i] = E(v) }
	return r
}

func boolRow() dtypeRow {
	r := storedRow[bool]("bool", boolKind)
	r.float = func(data any, i int) float64 { return b2f(data.([]bool)[i]) }
	r.integer = func(data any, i int) int64 { return truth(data.([]bool)[i]) }
	r.setInt = func(data any, i int, v int64) { data.([]bool)[i] = v != 0 }
	return r
}

func halfRow(name string, d DType) dtypeRow {
	r := storedRow[uint16](name, halfKind)
	r.float = func(data any, i int) float64 { return float64(d.From16(data.([]uint16)[i])) }
	r.setFloat = func(data any, i int, v float64) { data.([]uint16)[i] = d.Bits16(v) }
	r.constant = func(data any) bool { // of values, which are equal for both zeros and for no two NaNs
		x := data.([]uint16)
		for i := 1; i < len(x); i++ {
			if d.From16(x[i]) != d.From16(x[0]) {
				return false
			}
		}
		return len(x) > 0
	}
	return r
}

// DTypes lists the element types that operations compute with or move: all but [StoredTypes].
func DTypes() []DType { return slices.DeleteFunc(allDTypes(), DType.IsStored) }

// StoredTypes lists the element types that are only stored: I4, F8E4M3 and F8E5M2.
func StoredTypes() []DType {
	return slices.DeleteFunc(allDTypes(), func(d DType) bool { return !d.IsStored() })
}

func allDTypes() []DType {
	l := make([]DType, 0, endDType-1)
	for d := Invalid + 1; d < endDType; d++ {
		l = append(l, d)
	}
	return l
}

// IntegerTypes lists the element types of integers.
func IntegerTypes() []DType {
	return slices.DeleteFunc(DTypes(), func(d DType) bool { return !d.IsInt() })
}

// DTypeOf is the DType of the Go type T.
func DTypeOf[T Elem]() DType { return DTypeOfSlice([]T(nil)) }

// DTypeOfSlice is the type of the elements of a Go slice, or Invalid. That of a []uint16 is U16, that of a []uint8 U8.
func DTypeOfSlice(data any) DType {
	for d := range endDType {
		if r := &dtypes[d]; r.elems != nil && r.kind != halfKind && r.kind != storedKind {
			if _, _, ok := r.elems(data); ok {
				return d
			}
		}
	}
	return Invalid
}

// String gives the name used in the text form: f32, f64, i32, i64, bool, bf16, f16, i8, u8, i16, u16, u32, u64, i4, f8e4m3,
// f8e5m2.
func (d DType) String() string { return dtypes[d].name }

// Size is the number of bytes of one element. Of I4, two of which share a byte, it is 1; see [DType.Span].
func (d DType) Size() int { return dtypes[d].size }

// Span is the number of bytes of n elements that follow one another.
func (d DType) Span(n int64) int64 {
	if d == I4 {
		return n/2 + n%2
	}
	return n * int64(dtypes[d].size)
}

// IsFloat reports whether d is F32 or F64, the floating-point types of computations.
func (d DType) IsFloat() bool { return dtypes[d].kind == floatKind }

// Is16 reports whether d is BF16 or F16, which only contractions read.
func (d DType) Is16() bool { return dtypes[d].kind == halfKind }

// IsReal reports whether d is a floating-point type of any size.
func (d DType) IsReal() bool { return d.IsFloat() || d.Is16() }

// IsInt reports whether d is a type of integers that are computed with, signed or unsigned.
func (d DType) IsInt() bool { return dtypes[d].kind == signedKind || dtypes[d].kind == unsignedKind }

// IsStored reports whether d is I4, F8E4M3 or F8E5M2, whose elements only Quantize makes and Dequantize reads.
func (d DType) IsStored() bool { return dtypes[d].kind == storedKind }

// IsUnsigned reports whether d is a type of integers from 0 on.
func (d DType) IsUnsigned() bool { return dtypes[d].kind == unsignedKind }

// IsIndex reports whether d is I32 or I64, the types of operands that give positions and lengths.
func (d DType) IsIndex() bool { return d == I32 || d == I64 }

// Accumulator is the element type of sums of values of d: F32 for 16-bit types, and else d. Results of contractions,
// and gradients of values, have it.
func (d DType) Accumulator() DType {
	if d.Is16() {
		return F32
	}
	return d
}

// Wrap reduces an integer to the range of d, an integer type or Bool, as Go's conversions do. Of U64 it is the int64 with
// the same bits.
func (d DType) Wrap(x int64) int64 {
	switch r := &dtypes[d]; r.kind {
	case signedKind:
		return x << (64 - 8*r.size) >> (64 - 8*r.size)
	case unsignedKind:
		return int64(uint64(x) << (64 - 8*r.size) >> (64 - 8*r.size))
	}
	return x
}

// Limits are the least and the greatest number of the integer type d; of U64 the greatest is the int64 with the same bits,
// −1.
func (d DType) Limits() (lo, hi int64) {
	if d.IsUnsigned() {
		return 0, d.Wrap(-1)
	}
	hi = math.MaxInt64 >> (64 - 8*d.Size())
	return -hi - 1, hi
}

// Truncate converts a number towards 0 to the integer type d. NaN gives 0; a number out of range gives the nearest
// number in range. Of U64 the result is the int64 with the same bits.
func (d DType) Truncate(x float64) int64 {
	lo, hi := d.Limits()
	switch {
	case math.IsNaN(x):
		return 0
	case x <= d.Real(lo):
		return lo
	case x >= d.Real(hi):
		return hi
	case d == U64:
		return int64(uint64(x))
	}
	return int64(x)
}

// Real is the float64 nearest to the integer x of type d, or to the Bool x.
func (d DType) Real(x int64) float64 {
	if d == U64 {
		return float64(uint64(x))
	}
	return float64(x)
}

// Less compares two integers of type d.
func (d DType) Less(x, y int64) bool {
	if d == U64 {
		return uint64(x) < uint64(y)
	}
	return x < y
}

// Holds reports whether d holds every value of type e.
func (d DType) Holds(e DType) bool {
	from, to := &dtypes[e], &dtypes[d]
	switch {
	case d == e || e == Bool:
		return !d.IsStored() || d == e
	case d.IsStored() || e.IsStored():
		return false
	case e.IsReal():
		return d.IsFloat() && to.size > from.size
	case d.IsFloat():
		return 2*from.size <= to.size // integers of half the size: F32 holds 24 bits, F64 53
	case d.IsUnsigned():
		return e.IsUnsigned() && to.size > from.size
	}
	return d.IsInt() && to.size > from.size
}

// ParseDType is the inverse of [DType.String].
func ParseDType(s string) (DType, error) {
	names := make([]string, 0, len(dtypes))
	for i, d := range dtypes[1:] {
		if d.name == s {
			return DType(i + 1), nil
		}
		names = append(names, d.name)
	}
	last := len(names) - 1
	return Invalid, fmt.Errorf("unknown element type %q (want %s or %s)", s, strings.Join(names[:last], ", "), names[last])
}
