package graph

import (
	"bytes"
	"fmt"
	"sync"
	"unsafe"
)

// Tensor is a contiguous row-major value. Data is a slice of the element type's Go type ([]float32, []int8, []bool, …) that
// matches Type, or for BF16 and F16 a []uint16 of their bits, and has Type.Shape.Elems() elements. For F8E4M3, F8E5M2 and I4
// it is a []uint8 of their bits; see [I4].
type Tensor struct {
	Type Type
	Data any
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
	make := dtypes[t.DType].slice
	if make == nil {
		panic("graph: a tensor of an invalid type")
	}
	return &Tensor{t, make(unsafe.Pointer(unsafe.SliceData(b[:t.Bytes()])), t.Shape.Elems())}
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
func (t *Tensor) Float(i int) float64 { return dtypes[t.Type.DType].float(t.Data, i) }

// SetFloat sets element i to v converted to the element type as [Cast] does.
func (t *Tensor) SetFloat(i int, v float64) {
	switch d := t.Type.DType; {
	case d == Bool:
		dtypes[d].setInt(t.Data, i, truth(v != 0))
	case d.IsInt():
		dtypes[d].setInt(t.Data, i, d.Truncate(v))
	default:
		dtypes[d].setFloat(t.Data, i, v)
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
	to, from := t.Bytes(), u.Bytes()
	if len(from) > 2*copyPart {
		copyParts(to, from)
		return
	}
	copy(to, from)
}

// copyPart is how many bytes of a large tensor a goroutine copies: a core alone is slower than memory.
const copyPart = 64 << 20

// copyParts copies memory by several goroutines. It is a function of its own since their counter is allocated where it is declared.
func copyParts(to, from []byte) {
	var wait sync.WaitGroup
	for at := 0; at < len(from); at += copyPart {
		end := min(at+copyPart, len(from))
		wait.Go(func() { copy(to[at:end], from[at:end]) })
	}
	wait.Wait()
}

// Equal reports whether both tensors have the same type and the same bits.
func (t *Tensor) Equal(u *Tensor) bool { return t.Type == u.Type && bytes.Equal(t.Bytes(), u.Bytes()) }

// Bytes is the memory of the elements, shared, in the byte order of the machine.
func (t *Tensor) Bytes() []byte {
	p, n, d := t.elems()
	return unsafe.Slice((*byte)(p), n*d.Size())
}

// elems gives the address, the number and the type of the elements that Data holds.
func (t *Tensor) elems() (unsafe.Pointer, int, DType) {
	d := t.Type.DType
	if elems := dtypes[d].elems; elems != nil {
		if p, n, ok := elems(t.Data); ok {
			return p, n, d
		}
	}
	if d = DTypeOfSlice(t.Data); d == Invalid {
		return nil, 0, d
	}
	_, n, _ := dtypes[d].elems(t.Data)
	return nil, n, d
}

// Check reports data that does not match the type.
func (t *Tensor) Check() error {
	_, n, d := t.elems()
	want := t.Type.Shape.Elems()
	if t.Type.DType == I4 {
		want = int(t.Type.Bytes())
	}
	if d != t.Type.DType || n != want {
		return fmt.Errorf("tensor of type %v holds %d elements of %v", t.Type, n, d)
	}
	return nil
}
