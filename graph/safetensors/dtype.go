package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"
)

// dtypeBytes is the element size of every dtype of the format with a size of whole bytes.
var dtypeBytes = map[string]int{
	"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1,
	"I16": 2, "U16": 2, "F16": 2, "BF16": 2,
	"I32": 4, "U32": 4, "F32": 4,
	"I64": 8, "U64": 8, "F64": 8, "C64": 8,
}

// A stored is a dtype whose elements are Go values of one type as they are.
type stored struct {
	dtype  string
	make   func(n int) any
	length func(data any) (n int, ok bool)                 // ok is false of a slice of another type
	encode func(raw []byte, data any, from, to int) []byte // appends elements from up to to
	decode func(data any, at int, raw []byte)              // stores elements from at on
}

func storedAs[E any](dtype string) stored {
	return stored{dtype,
		func(n int) any { return make([]E, n) },
		func(data any) (int, bool) { x, ok := data.([]E); return len(x), ok },
		func(raw []byte, data any, from, to int) []byte {
			raw, _ = binary.Append(raw, binary.LittleEndian, data.([]E)[from:to])
			return raw
		},
		func(data any, at int, raw []byte) {
			binary.Decode(raw, binary.LittleEndian, data.([]E)[at:at+len(raw)/dtypeBytes[dtype]])
		}}
}

var storedTypes = []stored{
	storedAs[float32]("F32"), storedAs[float64]("F64"), storedAs[bool]("BOOL"),
	storedAs[int8]("I8"), storedAs[int16]("I16"), storedAs[int32]("I32"), storedAs[int64]("I64"),
	storedAs[uint8]("U8"), storedAs[uint16]("U16"), storedAs[uint32]("U32"), storedAs[uint64]("U64"),
}

// storedOf finds how the elements of a slice are stored.
func storedOf(data any) (s *stored, n int) {
	for i := range storedTypes {
		if n, ok := storedTypes[i].length(data); ok {
			return &storedTypes[i], n
		}
	}
	return nil, 0
}

// newData makes a slice for n elements of a dtype, or nil if values of that dtype cannot be read.
func newData(dtype string, n int) any {
	if dtype == "F16" || dtype == "BF16" {
		return make([]float32, n)
	}
	for _, s := range storedTypes {
		if s.dtype == dtype {
			return s.make(n)
		}
	}
	return nil
}

// decode converts the elements in raw and stores them in data from element at on.
func decode(data any, at int, dtype string, raw []byte) error {
	if d, ok := data.([]float32); ok && dtype != "F32" {
		for i := range len(raw) / 2 {
			if h := binary.LittleEndian.Uint16(raw[2*i:]); dtype == "F16" {
				d[at+i] = Float16(h)
			} else {
				d[at+i] = math.Float32frombits(uint32(h) << 16)
			}
		}
		return nil
	}
	if dtype == "BOOL" {
		for i, b := range raw {
			if b > 1 {
				return fmt.Errorf("element %d is %d, neither 0 nor 1", at+i, b)
			}
		}
	}
	s, _ := storedOf(data) // for the bits of 16-bit floats, U16
	s.decode(data, at, raw)
	return nil
}

// Float16 is the value of an IEEE 754 half-precision number given by its bits.
func Float16(h uint16) float32 {
	sign := uint32(h>>15) << 31
	exp, frac := uint32(h>>10)&31, uint32(h)&1023
	switch exp {
	case 0: // zero or subnormal: frac·2⁻²⁴
		f := float32(frac) / (1 << 24)
		return math.Float32frombits(math.Float32bits(f) | sign)
	case 31: // infinity or NaN
		return math.Float32frombits(sign | 0xff<<23 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | frac<<13)
}

// dtypeOf gives the dtype and the number of elements of a slice, or "" if it cannot be written.
func dtypeOf(data any) (dtype string, n int) {
	switch d := data.(type) {
	case F16:
		return "F16", len(d)
	case BF16:
		return "BF16", len(d)
	case F8E4M3:
		return "F8_E4M3", len(d)
	case F8E5M2:
		return "F8_E5M2", len(d)
	}
	if s, n := storedOf(data); s != nil {
		return s.dtype, n
	}
	return "", 0
}

// encode appends elements from up to to of data to raw.
func encode(raw []byte, data any, from, to int) []byte {
	switch d := data.(type) {
	case F16:
		data = []uint16(d)
	case BF16:
		data = []uint16(d)
	case F8E4M3:
		data = []uint8(d)
	case F8E5M2:
		data = []uint8(d)
	}
	s, _ := storedOf(data)
	return s.encode(raw, data, from, to)
}
