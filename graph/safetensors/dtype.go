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

// newData makes a slice for n elements of a dtype, or nil if values of that dtype cannot be read.
func newData(dtype string, n int) any {
	switch dtype {
	case "F32", "F16", "BF16":
		return make([]float32, n)
	case "F64":
		return make([]float64, n)
	case "I32":
		return make([]int32, n)
	case "I64":
		return make([]int64, n)
	case "BOOL":
		return make([]bool, n)
	}
	return nil
}

// decode converts the elements in raw and stores them in data from element at on.
func decode(data any, at int, dtype string, raw []byte) error {
	le := binary.LittleEndian
	switch d := data.(type) {
	case []float32:
		switch dtype {
		case "F32":
			for i := range len(raw) / 4 {
				d[at+i] = math.Float32frombits(le.Uint32(raw[4*i:]))
			}
		case "F16":
			for i := range len(raw) / 2 {
				d[at+i] = Float16(le.Uint16(raw[2*i:]))
			}
		case "BF16":
			for i := range len(raw) / 2 {
				d[at+i] = math.Float32frombits(uint32(le.Uint16(raw[2*i:])) << 16)
			}
		}
	case []float64:
		for i := range len(raw) / 8 {
			d[at+i] = math.Float64frombits(le.Uint64(raw[8*i:]))
		}
	case []int32:
		for i := range len(raw) / 4 {
			d[at+i] = int32(le.Uint32(raw[4*i:]))
		}
	case []int64:
		for i := range len(raw) / 8 {
			d[at+i] = int64(le.Uint64(raw[8*i:]))
		}
	case []uint16:
		for i := range len(raw) / 2 {
			d[at+i] = le.Uint16(raw[2*i:])
		}
	case []bool:
		for i, b := range raw {
			if b > 1 {
				return fmt.Errorf("element %d is %d, neither 0 nor 1", at+i, b)
			}
			d[at+i] = b == 1
		}
	}
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
	case []float32:
		return "F32", len(d)
	case []float64:
		return "F64", len(d)
	case []int32:
		return "I32", len(d)
	case []int64:
		return "I64", len(d)
	case []bool:
		return "BOOL", len(d)
	case F16:
		return "F16", len(d)
	case BF16:
		return "BF16", len(d)
	}
	return "", 0
}

// encode appends elements from up to to of data to raw.
func encode(raw []byte, data any, from, to int) []byte {
	le := binary.LittleEndian
	switch d := data.(type) {
	case []float32:
		for _, v := range d[from:to] {
			raw = le.AppendUint32(raw, math.Float32bits(v))
		}
	case []float64:
		for _, v := range d[from:to] {
			raw = le.AppendUint64(raw, math.Float64bits(v))
		}
	case []int32:
		for _, v := range d[from:to] {
			raw = le.AppendUint32(raw, uint32(v))
		}
	case []int64:
		for _, v := range d[from:to] {
			raw = le.AppendUint64(raw, uint64(v))
		}
	case F16:
		raw = encode16(raw, d[from:to])
	case BF16:
		raw = encode16(raw, d[from:to])
	case []bool:
		for _, v := range d[from:to] {
			b := byte(0)
			if v {
				b = 1
			}
			raw = append(raw, b)
		}
	}
	return raw
}

func encode16(raw []byte, data []uint16) []byte {
	for _, v := range data {
		raw = binary.LittleEndian.AppendUint16(raw, v)
	}
	return raw
}
