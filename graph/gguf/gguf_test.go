package gguf

import (
	"bytes"
	"encoding/binary"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"fusec/graph/safetensors"
)

// A writer makes files, right ones and others.
type writer struct{ bytes.Buffer }

func (w *writer) put(values ...any) *writer {
	for _, v := range values {
		if s, ok := v.(string); ok {
			w.put(uint64(len(s)))
			w.WriteString(s)
			continue
		}
		binary.Write(w, binary.LittleEndian, v)
	}
	return w
}

// begun is a file with so many tensors and pairs of metadata.
func begun(tensors, pairs uint64) *writer {
	w := &writer{}
	w.WriteString(magic)
	return w.put(uint32(3), tensors, pairs)
}

// data aligns the file and appends bytes.
func (w *writer) data(align int, b ...byte) []byte {
	for w.Len()%align != 0 {
		w.WriteByte(0xEE)
	}
	w.Write(b)
	return w.Bytes()
}

// sample has every type of metadata and of tensors.
func sample() []byte {
	w := begun(5, 16)
	w.put("general.alignment", uint32(metaU32), uint32(64))
	w.put("u8", uint32(metaU8), uint8(200), "i8", uint32(metaI8), int8(-3), "u16", uint32(metaU16), uint16(60000))
	w.put("i16", uint32(metaI16), int16(-300), "i32", uint32(metaI32), int32(-70000), "f32", uint32(metaF32), float32(0.5))
	w.put("bool", uint32(metaBool), uint8(1), "string", uint32(metaString), "a b", "u64", uint32(metaU64), uint64(1<<63))
	w.put("i64", uint32(metaI64), int64(-1<<40), "f64", uint32(metaF64), 0.1)
	w.put("strings", uint32(metaArray), uint32(metaString), uint64(2), "x", "")
	w.put("ints", uint32(metaArray), uint32(metaI32), uint64(3), int32(1), int32(-2), int32(3))
	w.put("floats", uint32(metaArray), uint32(metaF32), uint64(1), float32(2.5))
	w.put("bools", uint32(metaArray), uint32(metaBool), uint64(2), uint8(0), uint8(1))
	w.put("f32", uint32(2), uint64(3), uint64(2), uint32(F32), uint64(0))
	w.put("f16", uint32(1), uint64(2), uint32(F16), uint64(64))
	w.put("bf16", uint32(0), uint32(BF16), uint64(128))
	w.put("q8", uint32(1), uint64(32), uint32(Q8_0), uint64(192))
	w.put("q4", uint32(2), uint64(32), uint64(1), uint32(Q4_0), uint64(256))
	var b []byte
	pad := func(n int) { b = append(b, make([]byte, n-len(b))...) }
	for i := range 6 {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(i)-2.5))
	}
	pad(64)
	b = append(b, 0x00, 0x3C, 0x00, 0xC0) // 1 and −2
	pad(128)
	b = append(b, 0x40, 0x40) // 3
	pad(192)
	b = append(b, 0x00, 0x38) // 0.5
	for i := range 32 {
		b = append(b, byte(i-16))
	}
	pad(256)
	b = append(b, 0x00, 0x40) // 2
	for i := range 16 {
		b = append(b, byte(i|(15-i)<<4))
	}
	return w.data(64, b...)
}

func TestParse(t *testing.T) {
	f, err := Parse(sample())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"general.alignment": int64(64), "u8": int64(200), "i8": int64(-3), "u16": int64(60000),
		"i16": int64(-300), "i32": int64(-70000), "f32": 0.5, "bool": true, "string": "a b", "u64": uint64(1 << 63),
		"i64": int64(-1 << 40), "f64": 0.1, "strings": []string{"x", ""}, "ints": []int64{1, -2, 3}, "floats": []float64{2.5},
		"bools": []bool{false, true}}
	if !reflect.DeepEqual(f.Metadata, want) {
		t.Errorf("metadata %v, want %v", f.Metadata, want)
	}
	q8, q4 := make([]float32, 32), make([]float32, 32)
	for i := range 32 {
		q8[i] = 0.5 * float32(i-16)
		q4[i] = 2 * float32(i-8)
		if i >= 16 {
			q4[i] = 2 * float32(15-(i-16)-8)
		}
	}
	for i, want := range []struct {
		name   string
		shape  []int
		values []float32
	}{{"f32", []int{2, 3}, []float32{-2.5, -1.5, -0.5, 0.5, 1.5, 2.5}}, {"f16", []int{2}, []float32{1, -2}},
		{"bf16", nil, []float32{3}}, {"q8", []int{32}, q8}, {"q4", []int{1, 32}, q4}} {
		x := f.Tensors[i]
		got := make([]float32, x.Elems())
		if err := x.Floats(got); err != nil || x.Name != want.name || !slices.Equal(x.Shape, want.shape) ||
			!slices.Equal(got, want.values) {
			t.Errorf("%s %v: %v, %v, want %s %v: %v", x.Name, x.Shape, got, err, want.name, want.shape, want.values)
		}
		if err := x.Floats(make([]float32, 1000)); err == nil {
			t.Errorf("%s fills 1000 elements", x.Name)
		}
		codes, scales := make([]uint8, x.Elems()), make([]uint16, x.Elems()/BlockElems)
		at := func(i int) int8 { return int8(codes[i]) }
		if x.Type == Q4_0 {
			codes = codes[:len(codes)/2]
			at = func(i int) int8 { return int8(codes[i/2]<<(4-i%2*4)) >> 4 }
		}
		err := x.Codes(codes, scales)
		if blocks := x.Type == Q8_0 || x.Type == Q4_0; (err == nil) != blocks {
			t.Errorf("%s: codes: %v", x.Name, err)
		} else if blocks {
			for i, v := range want.values {
				if got := float32(at(i)) * safetensors.Float16(scales[i/BlockElems]); got != v {
					t.Errorf("%s: element %d is %v, want %v", x.Name, i, got, v)
				}
			}
		}
		if x.Codes([]uint8{}, nil) == nil || x.Codes(nil, []uint16{}) == nil {
			t.Errorf("%s: codes without room", x.Name)
		}
	}
	if s := Q4_0.String() + " " + Type(99).String(); s != "Q4_0 type 99" {
		t.Errorf("types %q", s)
	}
}

func TestErrors(t *testing.T) {
	tensor := func(kind Type, offset uint64, dims ...uint64) []byte {
		w := begun(1, 0).put("t", uint32(len(dims)))
		for _, d := range dims {
			w.put(d)
		}
		return w.put(uint32(kind), offset).data(32, make([]byte, 64)...)
	}
	meta := func(values ...any) []byte { return begun(0, 1).put("k").put(values...).Bytes() }
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "is it a GGUF file"},
		{"other", []byte("GGML0000"), "is it a GGUF file"},
		{"version", append([]byte(magic), 1, 0, 0, 0), "version 1"},
		{"short", []byte(magic + "\x03\x00"), "truncated"},
		{"many tensors", begun(1<<60, 0).Bytes(), "too short for a list of"},
		{"many pairs", begun(0, 1<<40).Bytes(), "too short for a list of"},
		{"long key", begun(0, 1).put(uint64(1<<50), uint64(0)).Bytes(), "truncated"},
		{"unknown type", meta(uint32(13), uint64(0)), `metadata "k"`},
		{"nested", meta(uint32(metaArray), uint32(metaArray), uint64(1), uint64(0)), "an array of metadata of type 9"},
		{"long array", meta(uint32(metaArray), uint32(metaF64), uint64(3), 1.0), "too short for a list of 3"},
		{"long string of an array", meta(uint32(metaArray), uint32(metaString), uint64(1), uint64(9)), "truncated"},
		{"twice", begun(0, 2).put("k", uint32(metaU8), uint8(1), "k", uint32(metaU8), uint8(1)).put(uint64(0)).Bytes(), "twice"},
		{"alignment", begun(0, 1).put(alignmentKey, uint32(metaU32), uint32(3)).Bytes(), "want a power of 2"},
		{"alignment of text", begun(0, 1).put(alignmentKey, uint32(metaString), "8").Bytes(), "want a power of 2"},
		{"axes", tensor(F32, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1), "9 axes"},
		{"long axis", tensor(F32, 0, 1<<40), "an axis of"},
		{"large", tensor(F32, 0, 1<<30, 1<<30, 1<<30), "is not valid"},
		{"not there", tensor(F32, 0, 17), "are not in the file"},
		{"far", tensor(F32, 1<<63, 1), "are not in the file"},
		{"odd place", tensor(F32, 4, 1), "are not in the file"},
		{"odd row", tensor(Q8_0, 0, 31), "rows of 31"},
		{"type", tensor(12, 0, 256), "type 12"},
	} {
		if _, err := Parse(c.file); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", c.name, err, c.want)
		}
	}
	whole := sample()
	for n := range whole {
		if _, err := Parse(whole[:n]); err == nil && n < len(whole)-14 {
			t.Fatalf("the first %d of %d bytes are a file", n, len(whole))
		}
	}
}

// FuzzParse requires errors, not panics, and tensors that can be read.
func FuzzParse(f *testing.F) {
	f.Add(sample())
	f.Add(begun(0, 0).Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse(data)
		if err != nil {
			return
		}
		for i := range file.Tensors {
			x := &file.Tensors[i]
			if n := x.Elems(); n > 2*len(data)*BlockElems {
				t.Fatalf("%d elements in a file of %d bytes", n, len(data))
			}
			if err := x.Floats(make([]float32, x.Elems())); err != nil {
				t.Fatal(err)
			}
		}
	})
}
