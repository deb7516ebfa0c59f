package graph

import (
	"fmt"
	"strconv"
	"strings"
)

// DType is the type of one element.
type DType uint8

// The element types. Bool is stored as one byte, 0 or 1. BF16 and F16 are for operands of contractions; see half.go.
const (
	Invalid DType = iota
	F32
	F64
	I32
	I64
	Bool
	BF16
	F16
)

var dtypes = [...]struct {
	name string
	size int
}{{"invalid", 0}, {"f32", 4}, {"f64", 8}, {"i32", 4}, {"i64", 8}, {"bool", 1}, {"bf16", 2}, {"f16", 2}}

// String gives the name used in the text form: f32, f64, i32, i64, bool, bf16, f16.
func (d DType) String() string { return dtypes[d].name }

// Size is the number of bytes of one element.
func (d DType) Size() int { return dtypes[d].size }

// IsFloat reports whether d is F32 or F64, the floating-point types of computations.
func (d DType) IsFloat() bool { return d == F32 || d == F64 }

// Is16 reports whether d is BF16 or F16, which only contractions read.
func (d DType) Is16() bool { return d == BF16 || d == F16 }

// IsReal reports whether d is a floating-point type of any size.
func (d DType) IsReal() bool { return d.IsFloat() || d.Is16() }

// Accumulator is the element type of sums of values of d: F32 for 16-bit types, and else d. Results of contractions,
// and gradients of values, have it.
func (d DType) Accumulator() DType {
	if d.Is16() {
		return F32
	}
	return d
}

// IsInt reports whether d is I32 or I64.
func (d DType) IsInt() bool { return d == I32 || d == I64 }

// ParseDType is the inverse of [DType.String].
func ParseDType(s string) (DType, error) {
	for i, d := range dtypes[1:] {
		if d.name == s {
			return DType(i + 1), nil
		}
	}
	return Invalid, fmt.Errorf("unknown element type %q (want f32, f64, i32, i64, bool, bf16 or f16)", s)
}

// MaxRank bounds the number of axes of a tensor.
const MaxRank = 8

// MaxElems bounds the number of elements of a tensor, so that sizes in bytes never overflow.
const MaxElems = 1 << 40

// Ints is a short, comparable list of integers: the value of an attribute that lists axes, sizes or paddings.
type Ints struct {
	n int8
	v [MaxRank]int
}

// IntsOf makes a list. It panics if there are more than MaxRank values; input from outside is checked before.
func IntsOf(v ...int) Ints {
	var l Ints
	if len(v) > MaxRank {
		panic(fmt.Sprintf("graph: %d values in a list that holds %d", len(v), MaxRank))
	}
	l.n = int8(copy(l.v[:], v))
	return l
}

// Len is the number of values.
func (l Ints) Len() int { return int(l.n) }

// At is the i-th value.
func (l Ints) At(i int) int { return l.v[:l.n][i] }

// Slice returns the values in a fresh slice.
func (l Ints) Slice() []int { return append([]int(nil), l.v[:l.n]...) }

// Has reports whether x is among the values.
func (l Ints) Has(x int) bool {
	for _, y := range l.v[:l.n] {
		if x == y {
			return true
		}
	}
	return false
}

// String gives the values as [2,3].
func (l Ints) String() string {
	var b strings.Builder
	b.WriteByte('[')
	for i, x := range l.v[:l.n] {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(x))
	}
	b.WriteByte(']')
	return b.String()
}

// Shape lists the sizes of a tensor's axes, outermost first. It is comparable.
type Shape struct{ Ints }

// ShapeOf makes a shape; see [IntsOf]. ShapeOf() is the shape of a scalar.
func ShapeOf(dims ...int) Shape { return Shape{IntsOf(dims...)} }

// Rank is the number of axes.
func (s Shape) Rank() int { return s.Len() }

// Elems is the number of elements; 1 for a scalar.
func (s Shape) Elems() int {
	n := 1
	for _, d := range s.v[:s.n] {
		n *= d
	}
	return n
}

// Check reports a negative dimension or more elements than [MaxElems].
func (s Shape) Check() error {
	n := 1
	for i, d := range s.v[:s.n] {
		if d < 0 {
			return fmt.Errorf("dimension %d of shape %v is negative", i, s)
		}
		if d > 0 && n > MaxElems/d {
			return fmt.Errorf("shape %v has more than %d elements", s, MaxElems)
		}
		n *= max(d, 1)
	}
	return nil
}

// With returns s with axis i of size d.
func (s Shape) With(i, d int) Shape { s.v[:s.n][i] = d; return s }

// Drop returns s without the given axes.
func (s Shape) Drop(axes Ints) Shape {
	var r Shape
	for i, d := range s.v[:s.n] {
		if !axes.Has(i) {
			r.v[r.n] = d
			r.n++
		}
	}
	return r
}

// Strides are the row-major element strides of a contiguous tensor of this shape.
func (s Shape) Strides() []int {
	st := make([]int, s.n)
	n := 1
	for i := int(s.n) - 1; i >= 0; i-- {
		st[i] = n
		n *= s.v[i]
	}
	return st
}

// Around gives the products of the axes before, of, and after n axes from axis on.
func (s Shape) Around(axis, n int) (outer, dim, inner int) {
	outer, dim, inner = 1, 1, 1
	for i := range s.Rank() {
		switch {
		case i < axis:
			outer *= s.At(i)
		case i < axis+n:
			dim *= s.At(i)
		default:
			inner *= s.At(i)
		}
	}
	return
}

// Type is the element type and shape of a value.
type Type struct {
	DType DType
	Shape Shape
}

// TypeOf makes a type.
func TypeOf(d DType, dims ...int) Type { return Type{d, ShapeOf(dims...)} }

// String gives the type as f32[2,3].
func (t Type) String() string { return t.DType.String() + t.Shape.String() }

// Bytes is the size of a contiguous value of this type.
func (t Type) Bytes() int64 { return int64(t.Shape.Elems()) * int64(t.DType.Size()) }

// Accumulator is the type of sums of values of t; see [DType.Accumulator].
func (t Type) Accumulator() Type { return t.With(t.DType.Accumulator()) }

// With returns the type with another element type.
func (t Type) With(d DType) Type { t.DType = d; return t }

// Reshaped returns the type with another shape.
func (t Type) Reshaped(s Shape) Type { t.Shape = s; return t }
