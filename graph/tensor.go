package graph

import (
	"bytes"
	"fmt"
	"unsafe"
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
	words := make([]uint64, (t.Bytes()+7)/8)
	return TensorAt(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), 8*len(words)), t)
}

// TensorAt is the tensor of type t whose elements start at the first byte of b, which is aligned to an element and long
// enough. The memory is shared. It panics if b is too short or t is no type of a value: types of graphs and of tensors are
// checked where they are made.
func TensorAt(b []byte, t Type) *Tensor {
	n, r := t.Shape.Elems(), &Tensor{Type: t}
	p := unsafe.Pointer(unsafe.SliceData(b[:t.Bytes()]))
	switch t.DType {
	case F32:
		r.Data = unsafe.Slice((*float32)(p), n)
	case F64:
		r.Data = unsafe.Slice((*float64)(p), n)
	case I32:
		r.Data = unsafe.Slice((*int32)(p), n)
	case I64:
		r.Data = unsafe.Slice((*int64)(p), n)
	case Bool:
		r.Data = unsafe.Slice((*bool)(p), n)
	case BF16, F16:
		r.Data = unsafe.Slice((*uint16)(p), n)
	default:
		panic("graph: a tensor of an invalid type")
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
func (t *Tensor) CopyFrom(u *Tensor) { copy(t.Bytes(), u.Bytes()) }

// Equal reports whether both tensors have the same type and the same bits.
func (t *Tensor) Equal(u *Tensor) bool { return t.Type == u.Type && bytes.Equal(t.Bytes(), u.Bytes()) }

// Bytes is the memory of the elements, shared, in the byte order of the machine.
func (t *Tensor) Bytes() []byte {
	p, n, d := t.elems()
	return unsafe.Slice((*byte)(p), n*d.Size())
}

// elems gives the address, the number and the type of the elements that Data holds.
func (t *Tensor) elems() (unsafe.Pointer, int, DType) {
	switch x := t.Data.(type) {
	case []float32:
		return unsafe.Pointer(unsafe.SliceData(x)), len(x), F32
	case []float64:
		return unsafe.Pointer(unsafe.SliceData(x)), len(x), F64
	case []int32:
		return unsafe.Pointer(unsafe.SliceData(x)), len(x), I32
	case []int64:
		return unsafe.Pointer(unsafe.SliceData(x)), len(x), I64
	case []bool:
		return unsafe.Pointer(unsafe.SliceData(x)), len(x), Bool
	case []uint16:
		if t.Type.DType.Is16() {
			return unsafe.Pointer(unsafe.SliceData(x)), len(x), t.Type.DType
		}
		return nil, len(x), Invalid
	}
	return nil, 0, Invalid
}

// Check reports data that does not match the type.
func (t *Tensor) Check() error {
	_, n, d := t.elems()
	if d != t.Type.DType || n != t.Type.Shape.Elems() {
		return fmt.Errorf("tensor of type %v holds %d elements of %v", t.Type, n, d)
	}
	return nil
}
