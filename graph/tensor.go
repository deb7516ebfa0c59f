package graph

import (
	"fmt"
	"math"
	"slices"
)

// Tensor is a contiguous row-major value. Data is a []float32, []float64, []int32, []int64 or []bool that matches
// Type, or for BF16 and F16 a []uint16 of their bits, and has Type.Shape.Elems() elements.
type Tensor struct {
	Type Type
	Data any
}

// Elem constrains the Go types of elements.
type Elem interface {
	float32 | float64 | int32 | int64 | bool
}

// DTypeOf is the DType of the Go type T.
func DTypeOf[T Elem]() DType {
	switch any(*new(T)).(type) {
	case float32:
		return F32
	case float64:
		return F64
	case int32:
		return I32
	case int64:
		return I64
	}
	return Bool
}

// NewTensor makes a tensor of zeros.
func NewTensor(t Type) *Tensor {
	n := t.Shape.Elems()
	r := &Tensor{Type: t}
	switch t.DType {
	case F32:
		r.Data = make([]float32, n)
	case F64:
		r.Data = make([]float64, n)
	case I32:
		r.Data = make([]int32, n)
	case I64:
		r.Data = make([]int64, n)
	case Bool:
		r.Data = make([]bool, n)
	case BF16, F16:
		r.Data = make([]uint16, n)
	default:
		panic("graph: NewTensor of an invalid type")
	}
	return r
}

// TensorOf wraps data, without copying, as a tensor of the given dimensions.
func TensorOf[T Elem](data []T, dims ...int) (*Tensor, error) {
	if len(dims) > MaxRank {
		return nil, fmt.Errorf("tensor of %d axes, more than %d", len(dims), MaxRank)
	}
	t := Type{DTypeOf[T](), ShapeOf(dims...)}
	if err := t.Shape.Check(); err != nil {
		return nil, err
	}
	if t.Shape.Elems() != len(data) {
		return nil, fmt.Errorf("%d values for a tensor of type %v", len(data), t)
	}
	return &Tensor{t, data}, nil
}

// Scalar makes a tensor of rank 0 with the element v converted to d.
func Scalar(d DType, v float64) *Tensor { return Filled(Type{DType: d}, v) }

// Filled makes a tensor all of whose elements are v converted to t's element type.
func Filled(t Type, v float64) *Tensor {
	r := NewTensor(t)
	for i := range t.Shape.Elems() {
		r.SetFloat(i, v)
	}
	return r
}

// Float is element i converted to float64; true is 1.
func (t *Tensor) Float(i int) float64 {
	switch d := t.Data.(type) {
	case []float32:
		return float64(d[i])
	case []float64:
		return d[i]
	case []int32:
		return float64(d[i])
	case []int64:
		return float64(d[i])
	case []bool:
		if d[i] {
			return 1
		}
	case []uint16:
		return float64(t.Type.DType.From16(d[i]))
	}
	return 0
}

// SetFloat sets element i to v converted to the element type; a Bool becomes v != 0.
func (t *Tensor) SetFloat(i int, v float64) {
	switch d := t.Data.(type) {
	case []float32:
		d[i] = float32(v)
	case []float64:
		d[i] = v
	case []int32:
		d[i] = int32(v)
	case []int64:
		d[i] = int64(v)
	case []bool:
		d[i] = v != 0
	case []uint16:
		d[i] = t.Type.DType.Bits16(v)
	}
}

// Floats returns all elements converted to float64.
func (t *Tensor) Floats() []float64 {
	r := make([]float64, t.Type.Shape.Elems())
	for i := range r {
		r[i] = t.Float(i)
	}
	return r
}

// Clone copies the tensor and its data.
func (t *Tensor) Clone() *Tensor {
	r := NewTensor(t.Type)
	r.CopyFrom(t)
	return r
}

// CopyFrom copies u's elements; both have the same type.
func (t *Tensor) CopyFrom(u *Tensor) {
	switch d := t.Data.(type) {
	case []float32:
		copy(d, u.Data.([]float32))
	case []float64:
		copy(d, u.Data.([]float64))
	case []int32:
		copy(d, u.Data.([]int32))
	case []int64:
		copy(d, u.Data.([]int64))
	case []bool:
		copy(d, u.Data.([]bool))
	case []uint16:
		copy(d, u.Data.([]uint16))
	}
}

// Equal reports whether both tensors have the same type and the same bits.
func (t *Tensor) Equal(u *Tensor) bool {
	if t.Type != u.Type {
		return false
	}
	switch d := t.Data.(type) {
	case []float32:
		e := u.Data.([]float32)
		for i := range d {
			if math.Float32bits(d[i]) != math.Float32bits(e[i]) {
				return false
			}
		}
	case []float64:
		e := u.Data.([]float64)
		for i := range d {
			if math.Float64bits(d[i]) != math.Float64bits(e[i]) {
				return false
			}
		}
	case []int32:
		return slices.Equal(d, u.Data.([]int32))
	case []int64:
		return slices.Equal(d, u.Data.([]int64))
	case []bool:
		return slices.Equal(d, u.Data.([]bool))
	case []uint16:
		return slices.Equal(d, u.Data.([]uint16))
	}
	return true
}

// Check reports data that does not match the type.
func (t *Tensor) Check() error {
	n, d := 0, Invalid
	switch x := t.Data.(type) {
	case []float32:
		n, d = len(x), F32
	case []float64:
		n, d = len(x), F64
	case []int32:
		n, d = len(x), I32
	case []int64:
		n, d = len(x), I64
	case []bool:
		n, d = len(x), Bool
	case []uint16:
		if n = len(x); t.Type.DType.Is16() {
			d = t.Type.DType
		}
	}
	if d != t.Type.DType || n != t.Type.Shape.Elems() {
		return fmt.Errorf("tensor of type %v holds %d elements of %v", t.Type, n, d)
	}
	return nil
}
