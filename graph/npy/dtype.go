package npy

import (
	"encoding/binary"
	"fmt"
	"math"

	"fusec/graph"
)

// descr is an element type as the header spells it: byte order, kind, size.
type descr struct {
	order binary.ByteOrder
	kind  string // b1, f2, f4, f8, i1, …, u8
}

// kinds gives the element size of each kind and the tensor element type that can represent its values.
var kinds = map[string]struct {
	size  int
	dtype graph.DType
}{
	"b1": {1, graph.Bool},
	"i1": {1, graph.I32}, "u1": {1, graph.I32}, "i2": {2, graph.I32}, "u2": {2, graph.I32},
	"i4": {4, graph.I32}, "u4": {4, graph.I64}, "i8": {8, graph.I64}, "u8": {8, graph.I64},
	"f2": {2, graph.F16}, "f4": {4, graph.F32}, "f8": {8, graph.F64},
}

// descrs gives the descr with which each element type is written. The format has none for bf16.
var descrs = map[graph.DType]string{graph.F32: "<f4", graph.F64: "<f8", graph.I32: "<i4", graph.I64: "<i8", graph.Bool: "|b1",
	graph.F16: "<f2"}

func parseDescr(s string) (d descr, err error) {
	if len(s) < 2 {
		return d, fmt.Errorf("element type %q is not supported", s)
	}
	d.kind = s[1:]
	k, ok := kinds[d.kind]
	switch {
	case !ok:
		return d, fmt.Errorf("element type %q is not supported", s)
	case s[0] == '<' || s[0] == '|' && k.size == 1:
		d.order = binary.LittleEndian
	case s[0] == '>':
		d.order = binary.BigEndian
	case s[0] == '=':
		d.order = binary.NativeEndian
	default:
		return d, fmt.Errorf("element type %q has no byte order", s)
	}
	return d, nil
}

func (d descr) size() int { return kinds[d.kind].size }

// appendTo decodes raw and appends the values to data, a slice of the kind's element type.
func (d descr) appendTo(data any, raw []byte) (any, error) {
	switch s := data.(type) {
	case []float32:
		for ; len(raw) > 0; raw = raw[4:] {
			s = append(s, math.Float32frombits(d.order.Uint32(raw)))
		}
		return s, nil
	case []uint16:
		for ; len(raw) > 0; raw = raw[2:] {
			s = append(s, d.order.Uint16(raw))
		}
		return s, nil
	case []float64:
		for ; len(raw) > 0; raw = raw[8:] {
			s = append(s, math.Float64frombits(d.order.Uint64(raw)))
		}
		return s, nil
	case []int32:
		for ; len(raw) > 0; raw = raw[d.size():] {
			s = append(s, int32(d.integer(raw)))
		}
		return s, nil
	case []int64:
		for ; len(raw) > 0; raw = raw[d.size():] {
			v := d.integer(raw)
			if v < 0 && d.kind == "u8" {
				return nil, fmt.Errorf("element %d is %d, too large for i64", len(s), uint64(v))
			}
			s = append(s, v)
		}
		return s, nil
	}
	s := data.([]bool)
	for _, b := range raw {
		if b > 1 {
			return nil, fmt.Errorf("element %d is %d, neither 0 nor 1", len(s), b)
		}
		s = append(s, b == 1)
	}
	return s, nil
}

// integer decodes one integer; a uint64 above the range of int64 comes out negative.
func (d descr) integer(raw []byte) int64 {
	switch d.kind {
	case "i1":
		return int64(int8(raw[0]))
	case "u1":
		return int64(raw[0])
	case "i2":
		return int64(int16(d.order.Uint16(raw)))
	case "u2":
		return int64(d.order.Uint16(raw))
	case "i4":
		return int64(int32(d.order.Uint32(raw)))
	case "u4":
		return int64(d.order.Uint32(raw))
	}
	return int64(d.order.Uint64(raw))
}
