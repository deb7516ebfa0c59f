package loader

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"unsafe"

	"fusec/graph"
	"fusec/graph/safetensors"
)

// kinds lists the element types in files, with their size and the tensor element type that can represent their values.
var kinds = map[string]struct {
	size  int
	dtype graph.DType
}{
	"bool": {1, graph.Bool},
	"u8":   {1, graph.I32}, "i8": {1, graph.I32}, "u16": {2, graph.I32}, "i16": {2, graph.I32},
	"i32": {4, graph.I32}, "u32": {4, graph.I64}, "i64": {8, graph.I64}, "u64": {8, graph.I64},
	"f16": {2, graph.F32}, "bf16": {2, graph.F32}, "f32": {4, graph.F32}, "f64": {8, graph.F64},
}

// Kinds are the names of the types that the elements of a bare file can have; see [Source].
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// npyKinds and safetensorsKinds map the formats' names to them.
var (
	npyKinds = map[string]string{
		"b1": "bool", "u1": "u8", "i1": "i8", "u2": "u16", "i2": "i16", "u4": "u32", "i4": "i32", "u8": "u64", "i8": "i64",
		"f2": "f16", "f4": "f32", "f8": "f64",
	}
	safetensorsKinds = map[string]string{
		"BOOL": "bool", "U8": "u8", "I8": "i8", "U16": "u16", "I16": "i16", "U32": "u32", "I32": "i32",
		"U64": "u64", "I64": "i64", "F16": "f16", "BF16": "bf16", "F32": "f32", "F64": "f64",
	}
)

// decoder converts all elements in raw and stores them in data, a tensor's slice, from element at on. It returns the
// number of the first element in raw that does not fit, or -1.
type decoder func(data any, at int, raw []byte) (bad int)

type (
	integer = graph.Integer
	float   interface{ float32 | float64 }
)

// newDecoder chooses the decoder of a source.
func newDecoder(kind string, to graph.DType, src *Source) (decoder, error) {
	scale := src.Scale
	if scale == 0 {
		scale = 1
	}
	moves := scale != 1 || src.Offset != 0
	switch {
	case !to.IsFloat() && moves:
		return nil, fmt.Errorf("scale and offset need f32 or f64, not %v", to)
	case math.IsNaN(0*scale) || math.IsNaN(0*src.Offset):
		return nil, fmt.Errorf("scale %v and offset %v must be finite", src.Scale, src.Offset)
	case src.Limit < 0 || src.Limit > 0 && !to.IsInt():
		return nil, fmt.Errorf("a limit of %d for %v: want a positive limit, for integers", src.Limit, to)
	}
	var d decoder
	switch to {
	case graph.F32:
		d = toFloat(kind, affine[float32]{moves, float32(scale), float32(src.Offset)})
	case graph.F64:
		d = toFloat(kind, affine[float64]{moves, scale, src.Offset})
	case graph.Bool:
		if kind == "bool" {
			d = bools
		}
	default:
		if decode := toIntegers[to]; decode != nil {
			d = decode(kind, src.Limit)
		}
	}
	if d == nil {
		return nil, fmt.Errorf("elements of %s cannot be converted to %v", kind, to)
	}
	return d, nil
}

// affine maps a floating-point value to itself, or to value·scale + offset.
type affine[D float] struct {
	moves         bool
	scale, offset D
}

// of rounds the product, too, so that all processors give the same bits.
func (a affine[D]) of(v D) D {
	if a.moves {
		return D(v*a.scale) + a.offset
	}
	return v
}

// toFloat chooses the decoder of elements that become f32 or f64.
func toFloat[D float](kind string, a affine[D]) decoder {
	switch kind {
	case "bool":
		return checked(floats[D, uint8](a))
	case "u8":
		return floats[D, uint8](a)
	case "i8":
		return floats[D, int8](a)
	case "u16":
		return floats[D, uint16](a)
	case "i16":
		return floats[D, int16](a)
	case "u32":
		return floats[D, uint32](a)
	case "i32":
		return floats[D, int32](a)
	case "u64":
		return floats[D, uint64](a)
	case "i64":
		return floats[D, int64](a)
	case "f16":
		return halves(a, safetensors.Float16)
	case "bf16":
		return halves(a, func(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) })
	case "f32":
		return floats[D, float32](a)
	}
	return floats[D, float64](a)
}

// floats makes the decoder of S to D.
func floats[D float, S integer | float](a affine[D]) decoder {
	_, same := any(*new(D)).(S)
	return func(data any, at int, raw []byte) int {
		to := data.([]D)[at:]
		if same && !a.moves && littleEndian {
			copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(to))), len(to)*int(unsafe.Sizeof(to[0]))), raw)
			return -1
		}
		for i := range to[:len(raw)/size[S]()] {
			to[i] = a.of(D(load[S](raw, i)))
		}
		return -1
	}
}

// halves makes the decoder of a format of 16 bits.
func halves[D float](a affine[D], value func(uint16) float32) decoder {
	return func(data any, at int, raw []byte) int {
		to := data.([]D)[at:]
		for i := range to[:len(raw)/2] {
			to[i] = a.of(D(value(load[uint16](raw, i))))
		}
		return -1
	}
}

// toIntegers are [toInteger] of each type of integers.
var toIntegers = map[graph.DType]func(kind string, limit int64) decoder{
	graph.I8: toInteger[int8], graph.I16: toInteger[int16], graph.I32: toInteger[int32], graph.I64: toInteger[int64],
	graph.U8: toInteger[uint8], graph.U16: toInteger[uint16], graph.U32: toInteger[uint32], graph.U64: toInteger[uint64],
}

// toInteger chooses the decoder of elements that become integers, or nil if they are none.
func toInteger[D integer](kind string, limit int64) decoder {
	switch kind {
	case "bool":
		return checked(integers[D, uint8](limit))
	case "u8":
		return integers[D, uint8](limit)
	case "i8":
		return integers[D, int8](limit)
	case "u16":
		return integers[D, uint16](limit)
	case "i16":
		return integers[D, int16](limit)
	case "u32":
		return integers[D, uint32](limit)
	case "i32":
		return integers[D, int32](limit)
	case "u64":
		return integers[D, uint64](limit)
	case "i64":
		return integers[D, int64](limit)
	}
	return nil
}

// integers makes the decoder of S to D, which refuses values outside of D or of limit.
func integers[D, S integer](limit int64) decoder {
	return func(data any, at int, raw []byte) int {
		to := data.([]D)[at:]
		for i := range to[:len(raw)/size[S]()] {
			v := load[S](raw, i)
			d := D(v)
			if S(d) != v || d < 0 != (v < 0) || limit > 0 && (d < 0 || uint64(d) >= uint64(limit)) {
				return i
			}
			to[i] = d
		}
		return -1
	}
}

// bools decodes bool to bool.
func bools(data any, at int, raw []byte) int {
	to := data.([]bool)[at:]
	for i, b := range raw {
		if b > 1 {
			return i
		}
		to[i] = b == 1
	}
	return -1
}

// checked makes a decoder refuse bytes other than 0 and 1.
func checked(d decoder) decoder {
	return func(data any, at int, raw []byte) int {
		for i, b := range raw {
			if b > 1 {
				return i
			}
		}
		return d(data, at, raw)
	}
}

// littleEndian says whether this machine has the byte order of the files.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

func size[S any]() int { return int(unsafe.Sizeof(*new(S))) }

// load is the i-th little-endian element of raw, which need not be aligned.
func load[S integer | float](raw []byte, i int) S {
	switch size[S]() {
	case 1:
		return *(*S)(unsafe.Pointer(&raw[i]))
	case 2:
		u := binary.LittleEndian.Uint16(raw[2*i:])
		return *(*S)(unsafe.Pointer(&u))
	case 4:
		u := binary.LittleEndian.Uint32(raw[4*i:])
		return *(*S)(unsafe.Pointer(&u))
	}
	u := binary.LittleEndian.Uint64(raw[8*i:])
	return *(*S)(unsafe.Pointer(&u))
}

// integerText prints the integer or bool with which raw begins.
func integerText(kind string, raw []byte) string {
	n := kinds[kind].size
	var u uint64
	for i, b := range raw[:n] {
		u |= uint64(b) << (8 * i)
	}
	if kind[0] == 'i' {
		return strconv.FormatInt(int64(u<<(64-8*n))>>(64-8*n), 10)
	}
	return strconv.FormatUint(u, 10)
}
