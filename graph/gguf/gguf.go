// Package gguf reads GGUF files, in which llama.cpp and other programs store language models: metadata by key, and tensors of
// which some are in blocks of few bits. See https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// File is a parsed file. Tensors and strings are in its memory.
type File struct {
	Version int
	// Metadata has a bool, string, int64, uint64, float64, or a slice of one of these, for each key. Smaller numbers are
	// widened.
	Metadata map[string]any
	// Tensors are in the order of the file.
	Tensors []Tensor
}

// Tensor is a tensor of a file.
type Tensor struct {
	Name  string
	Type  Type
	Shape []int  // the last axis varies fastest
	Data  []byte // of all elements, row by row
}

// Type is how a tensor's elements are stored.
type Type uint32

// The types that are read. Others keep their numbers.
const (
	F32  Type = 0
	F16  Type = 1
	Q4_0 Type = 2 // blocks of 32 numbers of 4 bits, less 8, times an f16
	Q8_0 Type = 8 // blocks of 32 numbers of 8 bits, times an f16
	BF16 Type = 30
)

// BlockElems is the number of elements of a block of Q4_0 and Q8_0.
const BlockElems = 32

type layout struct {
	name         string
	elems, bytes int // of a block
}

var layouts = map[Type]layout{
	F32: {"F32", 1, 4}, F16: {"F16", 1, 2}, BF16: {"BF16", 1, 2},
	Q4_0: {"Q4_0", BlockElems, 2 + BlockElems/2}, Q8_0: {"Q8_0", BlockElems, 2 + BlockElems},
}

// String gives the name of a type, or its number.
func (t Type) String() string {
	if l, ok := layouts[t]; ok {
		return l.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// BlockBytes is the size in bytes of a block, or of an element where there are no blocks; 0 of a type that is not read.
func (t Type) BlockBytes() int { return layouts[t].bytes }

const (
	magic        = "GGUF"
	maxAxes      = 8
	alignmentKey = "general.alignment"
	alignment    = 32
)

// reader takes a file apart. After the first error it gives zeros.
type reader struct {
	b   []byte
	at  int
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

// take gives the next n bytes.
func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.b)-r.at) {
		r.fail("the file ends at byte %d, in the middle of its header; is it truncated?", len(r.b))
	}
	if r.err != nil {
		return nil
	}
	b := r.b[r.at:][:n]
	r.at += int(n)
	return b
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) text() string { return string(r.take(r.u64())) }

// count reads how many entries of at least size bytes follow.
func (r *reader) count(size int) int {
	n := r.u64()
	if n > uint64(len(r.b)-r.at)/uint64(size) {
		r.fail("at byte %d: the file is too short for a list of %d", r.at, n)
		return 0
	}
	return int(n)
}

// The types of metadata.
const (
	metaU8 = iota
	metaI8
	metaU16
	metaI16
	metaU32
	metaI32
	metaF32
	metaBool
	metaString
	metaArray
	metaU64
	metaI64
	metaF64
)

var metaSize = [...]int{metaU8: 1, metaI8: 1, metaU16: 2, metaI16: 2, metaU32: 4, metaI32: 4, metaF32: 4, metaBool: 1,
	metaString: 8, metaArray: 12, metaU64: 8, metaI64: 8, metaF64: 8}

func (r *reader) value(kind uint32) any {
	switch kind {
	case metaString:
		return r.text()
	case metaBool:
		b := r.take(1)
		return len(b) > 0 && b[0] != 0
	case metaF32, metaF64:
		return r.float(kind)
	case metaU64:
		return r.u64()
	case metaU8, metaI8, metaU16, metaI16, metaU32, metaI32, metaI64:
		return r.integer(kind)
	case metaArray:
		return r.array()
	}
	r.fail("at byte %d: metadata of type %d", r.at, kind)
	return nil
}

func (r *reader) float(kind uint32) float64 {
	if kind == metaF32 {
		return float64(math.Float32frombits(r.u32()))
	}
	return math.Float64frombits(r.u64())
}

func (r *reader) integer(kind uint32) int64 {
	b := r.take(uint64(metaSize[kind]))
	if b == nil {
		return 0
	}
	switch kind {
	case metaU8:
		return int64(b[0])
	case metaI8:
		return int64(int8(b[0]))
	case metaU16:
		return int64(binary.LittleEndian.Uint16(b))
	case metaI16:
		return int64(int16(binary.LittleEndian.Uint16(b)))
	case metaU32:
		return int64(binary.LittleEndian.Uint32(b))
	case metaI32:
		return int64(int32(binary.LittleEndian.Uint32(b)))
	}
	return int64(binary.LittleEndian.Uint64(b))
}

// array reads numbers or strings that are all of one type.
func (r *reader) array() any {
	kind := r.u32()
	if kind >= uint32(len(metaSize)) || kind == metaArray {
		r.fail("at byte %d: an array of metadata of type %d", r.at, kind)
		return nil
	}
	n := r.count(metaSize[kind])
	switch kind {
	case metaString:
		return listOf(r, n, r.text)
	case metaBool:
		return listOf(r, n, func() bool { return r.value(kind).(bool) })
	case metaF32, metaF64:
		return listOf(r, n, func() float64 { return r.float(kind) })
	case metaU64:
		return listOf(r, n, r.u64)
	}
	return listOf(r, n, func() int64 { return r.integer(kind) })
}

func listOf[T any](r *reader, n int, next func() T) []T {
	list := make([]T, 0, n)
	for range n {
		if v := next(); r.err == nil {
			list = append(list, v)
		} else {
			return nil
		}
	}
	return list
}

// Parse reads a file of versions 2 and 3 from its bytes, which the tensors share.
func Parse(data []byte) (*File, error) {
	r := &reader{b: data}
	if string(r.take(uint64(len(magic)))) != magic {
		return nil, errors.New("does not begin with GGUF; is it a GGUF file?")
	}
	f := &File{Version: int(r.u32()), Metadata: map[string]any{}}
	if r.err == nil && f.Version != 2 && f.Version != 3 {
		return nil, fmt.Errorf("version %d of the format: want 2 or 3", f.Version)
	}
	const leastTensor, leastPair = 8 + 4 + 4 + 8, 8 + 4 + 1
	tensors, pairs := r.count(leastTensor), r.count(leastPair)
	for range pairs {
		key := r.text()
		v := r.value(r.u32())
		if r.err != nil {
			return nil, fmt.Errorf("metadata %.80q: %w", key, r.err)
		}
		if _, ok := f.Metadata[key]; ok {
			return nil, fmt.Errorf("metadata %.80q is given twice", key)
		}
		f.Metadata[key] = v
	}
	offsets := make([]uint64, 0, tensors)
	for range tensors {
		t, offset := r.tensor()
		if r.err != nil {
			return nil, fmt.Errorf("tensor %.80q: %w", t.Name, r.err)
		}
		f.Tensors, offsets = append(f.Tensors, t), append(offsets, offset)
	}
	if r.err != nil {
		return nil, r.err
	}
	return f, f.place(data, r.at, offsets)
}

// tensor reads the description of a tensor.
func (r *reader) tensor() (t Tensor, offset uint64) {
	t.Name = r.text()
	axes := r.u32()
	if axes > maxAxes {
		r.fail("it has %d axes, more than %d", axes, maxAxes)
		return t, 0
	}
	for range axes {
		n := r.u64()
		if n > math.MaxInt32 {
			r.fail("an axis of %d elements", n)
			return t, 0
		}
		t.Shape = append(t.Shape, int(n))
	}
	slices.Reverse(t.Shape) // the file has the fastest axis first
	t.Type = Type(r.u32())
	return t, r.u64()
}

// place gives tensors their bytes. The data begins behind byte end, at a multiple of the alignment.
func (f *File) place(data []byte, end int, offsets []uint64) error {
	align := uint64(alignment)
	switch v := f.Metadata[alignmentKey].(type) {
	case nil:
	case int64:
		align = uint64(v)
	case uint64:
		align = v
	default:
		align = 0
	}
	if align == 0 || align&(align-1) != 0 || align > 1<<20 {
		return fmt.Errorf("%s is %v: want a power of 2", alignmentKey, f.Metadata[alignmentKey])
	}
	begin := (uint64(end) + align - 1) &^ (align - 1)
	names := map[string]bool{}
	for i := range f.Tensors {
		t := &f.Tensors[i]
		if names[t.Name] {
			return fmt.Errorf("tensor %.80q is given twice", t.Name)
		}
		names[t.Name] = true
		size, err := t.size()
		if err != nil {
			return fmt.Errorf("tensor %.80q: %w", t.Name, err)
		}
		at := begin + offsets[i]
		if offsets[i]%align != 0 || at < begin || at > uint64(len(data)) || size > uint64(len(data))-at {
			return fmt.Errorf("tensor %.80q: %d bytes at %d of the data are not in the file; is it truncated?", t.Name, size, offsets[i])
		}
		t.Data = data[at:][:size:size]
	}
	return nil
}

// size is the number of bytes of a tensor.
func (t *Tensor) size() (uint64, error) {
	l, ok := layouts[t.Type]
	if !ok {
		return 0, fmt.Errorf("its numbers are of %v: want F32, F16, BF16, Q8_0 or Q4_0", t.Type)
	}
	elems := 1
	for _, n := range t.Shape {
		if n > 0 && elems > math.MaxInt/8/n {
			return 0, fmt.Errorf("the shape %v is not valid", t.Shape)
		}
		elems *= n
	}
	if row := t.Row(); row%l.elems != 0 {
		return 0, fmt.Errorf("rows of %d elements in blocks of %d", row, l.elems)
	}
	return uint64(elems / l.elems * l.bytes), nil
}

// Row is the number of elements along the last axis.
func (t *Tensor) Row() int {
	if len(t.Shape) == 0 {
		return 1
	}
	return t.Shape[len(t.Shape)-1]
}

// Elems is the number of elements.
func (t *Tensor) Elems() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}
