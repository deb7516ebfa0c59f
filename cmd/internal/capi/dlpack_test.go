package capi

import (
	"encoding/binary"
	"math/big"
	"testing"
	"unsafe"

	"fusec/graph"
)

// described reads the description of a tensor from bytes: sizes and strides are small numbers, or as large as they can be.
type described struct{ rest []byte }

func (d *described) byte() byte {
	if len(d.rest) == 0 {
		return 0
	}
	b := d.rest[0]
	d.rest = d.rest[1:]
	return b
}

func (d *described) number() int64 {
	switch b := int8(d.byte()); b {
	case 127: // the next eight bytes
		var word [8]byte
		d.rest = d.rest[copy(word[:], d.rest):]
		return int64(binary.LittleEndian.Uint64(word[:]))
	default:
		return int64(b)
	}
}

// FuzzTensor reads and writes DLPack tensors of any description. A description that does not fit what is wanted is an error; one
// that does gives the elements at its strides. Memory is only read where the elements lie in it: that they do is for the caller of
// C to see to.
func FuzzTensor(f *testing.F) {
	f.Add([]byte{1, 0, 1, 2, 32, 1, 0, 2, 2, 3, 1, 3, 1})
	f.Add([]byte{2, 2, 1, 0, 8, 1, 4, 1, 5, 0, 255})
	f.Add([]byte{1, 0, 1, 2, 32, 1, 0, 2, 127, 0, 0, 0, 0, 0, 0, 0, 128, 3})
	f.Add([]byte{0, 1, 2, 6, 8, 1, 0, 200, 3})
	f.Add([]byte{0, 0, 1, 4, 16, 1, 0, 0})
	types := []graph.DType{graph.Bool, graph.F32, graph.I8, graph.F64, graph.BF16, graph.U16, graph.I64, graph.F8E4M3, graph.I4}
	f.Fuzz(func(t *testing.T, input []byte) {
		d := described{input}
		flags, of := d.byte(), types[int(d.byte())%len(types)]
		const middle, size = 2048, 4096
		memory := make([]uint64, size/8) // aligned, with room before and behind the first element
		bytes := unsafe.Slice((*byte)(unsafe.Pointer(&memory[0])), size)
		for i := range bytes {
			bytes[i] = byte(i * 7)
		}
		x := &Tensor{Data: unsafe.Pointer(&bytes[middle]), Device: Device{Type: int32(d.byte())},
			DType: DType{Code: d.byte(), Bits: d.byte(), Lanes: uint16(d.byte())}, ByteOffset: uint64(d.byte())}
		if flags&1 != 0 {
			x.DType, x.Device.Type = DTypeOf(of), deviceCPU
		}
		x.NDim = int32(int8(d.byte()))
		dims, strides := make([]int64, max(x.NDim, 0)), make([]int64, max(x.NDim, 0))
		for i := range dims {
			dims[i] = d.number()
		}
		if flags&2 == 0 {
			x.Shape = unsafe.SliceData(dims)
		}
		if flags&4 != 0 {
			for i := range strides {
				strides[i] = d.number()
			}
			x.Strides = unsafe.SliceData(strides)
		}
		if flags&8 != 0 {
			x.Data = nil
		}
		want := graph.Type{DType: of}
		sizes, err := x.shape()
		if err == nil && graph.ShapeOf(sizes...).Check() == nil {
			want.Shape = graph.ShapeOf(sizes...)
		} else if _, err := x.In(graph.TypeOf(of, 1)); err == nil {
			t.Fatalf("%v of %d axes %v is a tensor of one element", x.DType, x.NDim, dims)
		} else {
			return
		}
		_, given, err := x.elements(want)
		if err != nil {
			if _, in := x.In(want); in == nil || in.Error() != err.Error() {
				t.Fatalf("In gives %v, not %v", in, err)
			}
			return
		}
		if !within(given, want, x.ByteOffset, middle, size) {
			return
		}
		got, err := x.In(want)
		if err != nil {
			t.Fatal(err)
		}
		width := of.Size()
		for i := range want.Shape.Elems() {
			at, rest := middle+int(x.ByteOffset), i
			for axis := want.Shape.Rank() - 1; axis >= 0; axis-- {
				at += rest % want.Shape.At(axis) * int(given[axis]) * width
				rest /= want.Shape.At(axis)
			}
			if string(got.Bytes()[i*width:][:width]) != string(bytes[at:][:width]) {
				t.Fatalf("element %d of %v with strides %v is %v", i, want, given, got.Bytes()[i*width:][:width])
			}
		}
		if err := x.Write(got); err != nil {
			t.Fatal(err)
		}
	})
}

// within reports whether all elements lie in size bytes, the first one offset bytes behind the middle.
func within(strides []int64, of graph.Type, offset uint64, middle, size int64) bool {
	if of.Shape.Elems() > int(size) {
		return false
	}
	lo := new(big.Int).SetUint64(offset)
	lo.Add(lo, big.NewInt(middle))
	hi := new(big.Int).Add(lo, big.NewInt(int64(of.DType.Size())))
	for i, s := range strides {
		if of.Shape.At(i) == 0 {
			return true
		}
		reach := new(big.Int).Mul(big.NewInt(s), big.NewInt(int64(of.Shape.At(i)-1)*int64(of.DType.Size())))
		if s < 0 {
			lo.Add(lo, reach)
		} else {
			hi.Add(hi, reach)
		}
	}
	return lo.Sign() >= 0 && hi.Cmp(big.NewInt(size)) <= 0
}
