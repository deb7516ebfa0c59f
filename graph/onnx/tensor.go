package onnx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"google.golang.org/protobuf/proto"

	"fusec/graph"
	"fusec/graph/memlimit"
	"fusec/graph/onnx/internal/pb"
)

// shapeOf checks sizes that a model gives.
func shapeOf(dims []int64) (graph.Shape, error) {
	if len(dims) > graph.MaxRank {
		return graph.Shape{}, fmt.Errorf("it has %d axes; there may be %d", len(dims), graph.MaxRank)
	}
	sizes := make([]int, len(dims))
	for i, d := range dims {
		if d < 0 || d > graph.MaxElems {
			return graph.Shape{}, fmt.Errorf("axis %d has the size %d", i, d)
		}
		sizes[i] = int(d)
	}
	s := graph.ShapeOf(sizes...)
	return s, s.Check()
}

// folder reads external data: from regular files in the model's folder or below it.
type folder struct {
	dir  string // or empty: there is none
	root *os.Root
	need memlimit.Sum
	all  int64 // bytes read so far
}

func (f *folder) close() {
	if f.root != nil {
		f.root.Close()
	}
}

// read reads the part of a file that entries of a tensor name, which should have size bytes.
func (f *folder) read(entries []*pb.StringStringEntryProto, size int64) ([]byte, error) {
	var location string
	var offset, length int64 = 0, -1
	for _, e := range entries {
		var err error
		switch e.GetKey() {
		case "location":
			location = e.GetValue()
		case "offset":
			offset, err = strconv.ParseInt(e.GetValue(), 10, 64)
		case "length":
			length, err = strconv.ParseInt(e.GetValue(), 10, 64)
		}
		if err != nil {
			return nil, fmt.Errorf("its external data has the %s %q", e.GetKey(), e.GetValue())
		}
	}
	if f.dir == "" {
		return nil, fmt.Errorf("its data is in a file, %q, and the model is not", location)
	}
	if !filepath.IsLocal(location) {
		return nil, fmt.Errorf("its data is in %q, which is not below the model's folder", location)
	}
	if offset < 0 || length >= 0 && length != size {
		return nil, fmt.Errorf("its external data has the offset %d and the length %d; it takes %d bytes", offset, length, size)
	}
	if f.root == nil {
		var err error
		if f.root, err = os.OpenRoot(f.dir); err != nil {
			return nil, err
		}
	}
	file, err := f.root.Open(filepath.FromSlash(location))
	if err != nil {
		return nil, fmt.Errorf("its external data: %w", err)
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() < offset || info.Size()-offset < size {
		return nil, fmt.Errorf("its external data is not in %q: %d bytes at %d", location, size, offset)
	}
	f.all += size
	if err := f.need.Check(f.all); err != nil {
		return nil, err
	}
	data := make([]byte, size)
	_, err = file.ReadAt(data, offset)
	return data, err
}

// tensor reads a tensor. Its data has to be there: nothing is allocated on the word of its dimensions.
func (f *folder) tensor(p *pb.TensorProto) (*graph.Tensor, error) {
	t, err := f.elements(p)
	if err != nil && p.GetName() != "" {
		return nil, fmt.Errorf("tensor %q: %w", p.GetName(), err)
	}
	return t, err
}

// unsigned4 reads a tensor of type UINT4 as I4, each element less 8.
func (f *folder) unsigned4(p *pb.TensorProto) (*graph.Tensor, error) {
	q := proto.CloneOf(p)
	*q.DataType = int32(pb.TensorProto_INT4)
	t, err := f.tensor(q)
	if err != nil {
		return nil, err
	}
	b := t.Data.([]uint8)
	for i := range b {
		b[i] ^= 0x88 // the sign's bit
	}
	if n := t.Type.Shape.Elems(); n%2 == 1 {
		graph.SetNibble(b, n, 0)
	}
	return t, nil
}

func (f *folder) elements(p *pb.TensorProto) (*graph.Tensor, error) {
	d, err := elemType(p.GetDataType())
	if err != nil {
		return nil, err
	}
	s, err := shapeOf(p.GetDims())
	if err != nil {
		return nil, err
	}
	if p.GetSegment() != nil {
		return nil, errors.New("it is in segments")
	}
	typ := graph.Type{DType: d, Shape: s}
	n := s.Elems()
	raw := p.GetRawData()
	if p.GetDataLocation() == pb.TensorProto_EXTERNAL {
		if raw, err = f.read(p.GetExternalData(), typ.Bytes()); err != nil {
			return nil, err
		}
	}
	if raw != nil {
		if int64(len(raw)) != typ.Bytes() {
			return nil, fmt.Errorf("%v takes %d bytes; it has %d", typ, typ.Bytes(), len(raw))
		}
		return fromRaw(typ, raw), nil
	}
	if d.IsStored() { // the bytes are numbers
		if have := p.GetInt32Data(); int64(len(have)) == typ.Bytes() {
			raw = make([]byte, len(have))
			for i, v := range have {
				raw[i] = byte(v)
			}
			return fromRaw(typ, raw), nil
		}
		return nil, fmt.Errorf("%v takes %d bytes; it is given %d", typ, typ.Bytes(), len(p.GetInt32Data()))
	}
	typed := map[graph.DType]int{graph.F32: len(p.GetFloatData()), graph.F64: len(p.GetDoubleData()), graph.I64: len(p.GetInt64Data()),
		graph.U32: len(p.GetUint64Data()), graph.U64: len(p.GetUint64Data())}
	have, own := typed[d]
	if !own {
		have = len(p.GetInt32Data())
	}
	if have != n {
		return nil, fmt.Errorf("%v has %d elements; it is given %d", typ, n, have)
	}
	t := graph.NewTensor(typ)
	switch data := t.Data.(type) {
	case []float32:
		copy(data, p.GetFloatData())
	case []float64:
		copy(data, p.GetDoubleData())
	case []int64:
		copy(data, p.GetInt64Data())
	case []uint16:
		for i, v := range p.GetInt32Data() {
			data[i] = uint16(v)
		}
	case []uint32, []uint64:
		for i, v := range p.GetUint64Data() {
			t.SetInt(i, int64(v))
		}
	default:
		for i, v := range p.GetInt32Data() {
			t.SetInt(i, int64(v))
		}
	}
	return t, nil
}

// littleEndian tells whether the machine has ONNX's order of bytes.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// fromRaw is the tensor whose elements are given in little-endian order.
func fromRaw(typ graph.Type, raw []byte) *graph.Tensor {
	t, n := graph.NewTensor(typ), typ.Shape.Elems()
	if typ.DType == graph.Bool {
		for i, b := range raw {
			t.SetInt(i, int64(b))
		}
		return t
	}
	copy(t.Bytes(), raw)
	if typ.DType == graph.I4 && n%2 == 1 {
		graph.SetNibble(t.Data.([]uint8), n, 0)
	}
	if !littleEndian {
		swap(t.Bytes(), typ.DType.Size())
	}
	return t
}

// swap reverses the bytes of each element.
func swap(b []byte, size int) {
	for ; len(b) >= size; b = b[size:] {
		for i := range size / 2 {
			b[i], b[size-1-i] = b[size-1-i], b[i]
		}
	}
}
