package graph

import (
	"fmt"
	"strconv"
	"strings"
)

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
func (t Type) Bytes() int64 { return t.DType.Span(int64(t.Shape.Elems())) }

// Accumulator is the type of sums of values of t; see [DType.Accumulator].
func (t Type) Accumulator() Type { return t.With(t.DType.Accumulator()) }

// With returns the type with another element type.
func (t Type) With(d DType) Type { t.DType = d; return t }

// Reshaped returns the type with another shape.
func (t Type) Reshaped(s Shape) Type { t.Shape = s; return t }
