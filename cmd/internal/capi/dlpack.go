package capi

import (
	"fmt"
	"unsafe"

	"fusec/graph"
)

// Tensor is DLPack's DLTensor. Its fields lie as C's do.
type Tensor struct {
	Data       unsafe.Pointer
	Device     Device
	NDim       int32
	DType      DType
	Shape      *int64
	Strides    *int64 // in elements; nil for contiguous row-major order
	ByteOffset uint64
}

// Device is DLPack's DLDevice.
type Device struct{ Type, ID int32 }

// The devices of DLPack whose memory the host reads.
const (
	deviceCPU      = 1
	deviceCUDAHost = 3
)

// DType is DLPack's DLDataType.
type DType struct {
	Code, Bits uint8
	Lanes      uint16
}

// The codes of DLPack's element types.
const (
	codeInt    = 0
	codeUint   = 1
	codeFloat  = 2
	codeBFloat = 4
	codeBool   = 6
	codeE4M3   = 10
	codeE5M2   = 12
)

// DTypeOf is how DLPack names an element type.
func DTypeOf(d graph.DType) DType {
	t := DType{Bits: uint8(8 * d.Size()), Lanes: 1}
	switch {
	case d == graph.Bool:
		t.Code = codeBool
	case d == graph.BF16:
		t.Code = codeBFloat
	case d == graph.F8E4M3:
		t.Code = codeE4M3
	case d == graph.F8E5M2:
		t.Code = codeE5M2
	case d.IsReal():
		t.Code = codeFloat
	case d.String()[0] == 'u':
		t.Code = codeUint
	default:
		t.Code = codeInt
	}
	return t
}

// String is the type in fusec's words, such as f32, or DLPack's numbers for a type that has none.
func (d DType) String() string {
	name := map[uint8]string{codeInt: "i", codeUint: "u", codeFloat: "f", codeBFloat: "bf"}[d.Code]
	switch {
	case d.Code == codeBool && d.Bits == 8 && d.Lanes == 1:
		return "bool"
	case name == "" || d.Lanes != 1:
		return fmt.Sprintf("DLPack code %d of %d bits in %d lanes", d.Code, d.Bits, d.Lanes)
	}
	return fmt.Sprint(name, d.Bits)
}

// shapeOf checks a tensor's description and gives its sizes. No memory of elements is read.
func (t *Tensor) shape() ([]int, error) {
	switch {
	case t == nil:
		return nil, fmt.Errorf("no tensor was given")
	case t.NDim < 0 || t.NDim > graph.MaxRank:
		return nil, fmt.Errorf("the tensor has %d axes; at most %d are possible", t.NDim, graph.MaxRank)
	case t.NDim > 0 && t.Shape == nil:
		return nil, fmt.Errorf("the tensor has %d axes and no shape", t.NDim)
	}
	dims := make([]int, t.NDim)
	for i, d := range unsafe.Slice(t.Shape, t.NDim) {
		if dims[i] = int(d); d < 0 || int64(dims[i]) != d {
			return nil, fmt.Errorf("axis %d of the tensor has the size %d", i, d)
		}
	}
	return dims, nil
}

// elements finds the elements of a tensor that must have the type want: where the first one is, and the strides in
// elements.
func (t *Tensor) elements(want graph.Type) (first unsafe.Pointer, strides []int64, err error) {
	dims, err := t.shape()
	if err != nil {
		return nil, nil, err
	}
	shape := graph.ShapeOf(dims...)
	if want.DType == graph.I4 {
		return nil, nil, fmt.Errorf("it is %v, two elements of which share a byte; no tensor has such elements", want)
	}
	if t.DType != DTypeOf(want.DType) || shape != want.Shape {
		return nil, nil, fmt.Errorf("it is %v, and the tensor is %v%v", want, t.DType, shape)
	}
	if t.Device.Type != deviceCPU && t.Device.Type != deviceCUDAHost {
		return nil, nil, fmt.Errorf("the tensor is on DLPack's device type %d; copy it to the host", t.Device.Type)
	}
	if t.Data == nil && shape.Elems() > 0 {
		return nil, nil, fmt.Errorf("the tensor %v has no data", want)
	}
	if t.Strides != nil {
		strides = unsafe.Slice(t.Strides, t.NDim)
	} else {
		for _, s := range shape.Strides() {
			strides = append(strides, int64(s))
		}
	}
	return unsafe.Add(t.Data, t.ByteOffset), strides, nil
}

// contiguous reports whether strides are those of row-major order, as far as they matter: those of axes of size 1 do not.
func contiguous(s graph.Shape, strides []int64) bool {
	if s.Elems() == 0 {
		return true
	}
	for i, want := range s.Strides() {
		if s.At(i) != 1 && strides[i] != int64(want) {
			return false
		}
	}
	return true
}

// In gives the elements as a tensor of the type want: in place if they are contiguous and aligned to their size, and else
// as a copy. The memory in place must outlive the result.
func (t *Tensor) In(want graph.Type) (*graph.Tensor, error) {
	first, strides, err := t.elements(want)
	if err != nil {
		return nil, err
	}
	size := uintptr(want.DType.Size())
	if contiguous(want.Shape, strides) && uintptr(first)%size == 0 {
		return graph.TensorAt(unsafe.Slice((*byte)(first), want.Bytes()), want), nil
	}
	out := graph.NewTensor(want)
	walk(first, strides, want, out.Bytes(), func(there, here []byte) { copy(here, there) })
	return out, nil
}

// Write copies a value into the tensor's elements.
func (t *Tensor) Write(value *graph.Tensor) error {
	first, strides, err := t.elements(value.Type)
	if err != nil {
		return err
	}
	walk(first, strides, value.Type, value.Bytes(), func(there, here []byte) { copy(there, here) })
	return nil
}

// walk pairs the elements at first, which have strides, with contiguous ones: whole rows where the last axis is
// contiguous.
func walk(first unsafe.Pointer, strides []int64, of graph.Type, here []byte, pair func(there, here []byte)) {
	size := int64(of.DType.Size())
	rank := of.Shape.Rank()
	run := size // of bytes that are contiguous on both sides
	outer := rank
	for ; outer > 0; outer-- {
		d := int64(of.Shape.At(outer - 1))
		if d != 1 && strides[outer-1]*size != run {
			break
		}
		run *= d
	}
	if of.Shape.Elems() == 0 {
		return
	}
	at := make([]int, outer)
	for len(here) > 0 {
		offset := int64(0)
		for i, x := range at {
			offset += int64(x) * strides[i] * size
		}
		pair(unsafe.Slice((*byte)(unsafe.Add(first, offset)), run), here[:run])
		here = here[run:]
		for i := outer - 1; i >= 0; i-- {
			if at[i]++; at[i] < of.Shape.At(i) {
				break
			}
			at[i] = 0
		}
	}
}
