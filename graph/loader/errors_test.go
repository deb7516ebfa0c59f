package loader

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/safetensors"
)

// wantError checks that an error says all of the parts.
func wantError(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", parts)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %v lacks %q", err, part)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	ten := graphtest.NPY(t, count[float32](20), 10, 2)
	nine := graphtest.NPY(t, count[int32](9), 9)
	whole, err := os.ReadFile(ten)
	if err != nil {
		t.Fatal(err)
	}
	two := writeTensors(t, safetensors.Tensor{Name: "a", Shape: []int{2}, Data: []float32{1, 2}},
		safetensors.Tensor{Name: "b", Shape: nil, Data: []float32{1}})
	tensors, err := os.ReadFile(two)
	if err != nil {
		t.Fatal(err)
	}
	npyOf := func(dict string, data ...byte) string {
		b := append([]byte("\x93NUMPY\x01\x00"), byte(len(dict)), 0)
		return graphtest.File(t, "x.npy", append(append(b, dict...), data...))
	}
	text := graphtest.File(t, "corpus.txt", []byte("to be or not to be, that is"))
	x := func(s Source) []Source {
		if s.Name == "" {
			s.Name = "x"
		}
		return []Source{s}
	}
	one := Options{Batch: 1}
	for _, c := range []struct {
		want    string
		opts    Options
		sources []Source
	}{
		{"a batch of 0 rows", Options{}, x(Source{Path: ten})},
		{"must not be negative", Options{Batch: 1, Epochs: -1}, x(Source{Path: ten})},
		{"there is no access 9", Options{Batch: 1, Access: 9}, x(Source{Path: ten})},
		{"there is no source", one, nil},
		{`the name "x" is empty or given twice`, one, []Source{{Name: "x", Path: ten}, {Name: "x", Path: nine}}},
		{`the name "x" is empty or given twice`, one,
			x(Source{Path: text, Raw: "u8", Window: Window{Length: 2, Targets: "x"}})},
		{`the name "" is empty`, one, []Source{{Path: ten}}},
		{"no such file", one, x(Source{Path: ten + "2"})},
		{"not a regular file", one, x(Source{Path: filepath.Dir(ten)})},
		{"a batch of 11 rows is larger than the 10 rows", Options{Batch: 11}, x(Source{Path: ten})},
		{`has 10 rows for "x", but ` + nine + ` has 9 for "y"`, one,
			[]Source{{Name: "x", Path: ten}, {Name: "y", Path: nine}}},
		{"its header promises 80 bytes of elements, 79 are there", one,
			x(Source{Path: graphtest.File(t, "x.npy", whole[:len(whole)-1])})},
		{"1 bytes after the array", one, x(Source{Path: graphtest.File(t, "x.npy", append(whole[:len(whole):len(whole)], 0))})},
		{"truncated", one, x(Source{Path: graphtest.File(t, "x.npy", whole[:30])})},
		{"Fortran order", one, x(Source{Path: npyOf("{'descr': '<f4', 'fortran_order': True, 'shape': (1,)}", 0, 0, 0, 0)})},
		{"big-endian", one, x(Source{Path: npyOf("{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}", 0, 0, 0, 0)})},
		{"a single value has no rows", one,
			x(Source{Path: npyOf("{'descr': '<f4', 'fortran_order': False, 'shape': ()}", 0, 0, 0, 0)})},
		{"there are no rows", one, x(Source{Path: npyOf("{'descr': '<f4', 'fortran_order': False, 'shape': (0,)}")})},
		{"are empty", one, x(Source{Path: npyOf("{'descr': '<f4', 'fortran_order': False, 'shape': (2,0)}")})},
		{`an .npy file has no tensor "a"`, one, x(Source{Path: ten, Tensor: "a"})},
		{"Source.Raw gives the type", one, x(Source{Path: text})},
		{"truncated", one, x(Source{Path: graphtest.File(t, "x", tensors[:len(tensors)-1]), Tensor: "a"})},
		{`it has 2 tensors, such as "a": which? Source.Tensor names one`, one, x(Source{Path: two})},
		{"it has no tensors", one, x(Source{Path: graphtest.File(t, "none", "\x02\x00\x00\x00\x00\x00\x00\x00{}")})},
		{`it has no tensor "c"`, one, x(Source{Path: two, Tensor: "c"})},
		{"a single value has no rows", one, x(Source{Path: two, Tensor: "b"})},
		{`unknown element type "f7": want one of [bf16 bool f16`, one, x(Source{Path: text, Raw: "f7"})},
		{`a file of bare u8 has no tensor "a"`, one, x(Source{Path: text, Raw: "u8", Tensor: "a"})},
		{"27 bytes are not a whole number of rows of 4 bytes", one, x(Source{Path: text, Raw: "u16", Row: []int{2}})},
		{"not a whole number of rows of 0 bytes", one, x(Source{Path: text, Raw: "u16", Row: []int{0}})},
		{"is negative", one, x(Source{Path: text, Raw: "u16", Row: []int{-1}})},
		{"rows of 8 axes", one, x(Source{Path: text, Raw: "u8", Row: make([]int, 8)})},
		{"the shape in Row is for a bare file", one, x(Source{Path: ten, Row: []int{2}})},
		{"there are no rows", one, x(Source{Path: graphtest.File(t, "empty", ""), Raw: "u8"})},
		{"windows need one axis; there are 2", one, x(Source{Path: ten, Window: Window{Length: 2}})},
		{"a window of length 0 and stride 3", one, x(Source{Path: nine, Window: Window{Stride: 3}})},
		{"a window of length 3 and stride -1", one, x(Source{Path: nine, Window: Window{Length: 3, Stride: -1}})},
		{"9 elements are too few for a window of 10", one, x(Source{Path: nine, Window: Window{Length: 10}})},
		{"9 elements are too few for a window of 10", one, x(Source{Path: nine, Window: Window{Length: 9, Targets: "y"}})},
		{"elements of f32 cannot be converted to i32", one, x(Source{Path: ten, DType: graph.I32})},
		{"elements of i32 cannot be converted to bool", one, x(Source{Path: nine, DType: graph.Bool})},
		{"scale and offset need f32 or f64, not i32", one, x(Source{Path: nine, Scale: 2})},
		{"must be finite", one, x(Source{Path: ten, Scale: math.Inf(1)})},
		{"a limit of -1 for i32", one, x(Source{Path: nine, Limit: -1})},
		{"a limit of 3 for f32", one, x(Source{Path: ten, Limit: 3})},
	} {
		before := runtime.NumGoroutine()
		l, err := Open(c.opts, c.sources...)
		if l != nil {
			t.Errorf("%q: it was opened", c.want)
		}
		wantError(t, err, c.want)
		if len(c.sources) == 1 && c.opts.Batch > 0 && c.opts.Epochs == 0 && c.opts.Access == Mapped {
			wantError(t, err, c.sources[0].Path)
		}
		noLeak(t, before)
	}
}

// TestBadElements: an element that does not fit comes out of Next with its file and place.
func TestBadElements(t *testing.T) {
	raw := func(v any) string {
		b, err := binary.Append(nil, binary.LittleEndian, v)
		if err != nil {
			t.Fatal(err)
		}
		return graphtest.File(t, "x", b)
	}
	for _, c := range []struct {
		src  Source
		want string
	}{
		{Source{Path: tokens(t, 1, 2, 3, 400, 5, 6), Raw: "u16", Row: []int{3}, Limit: 256},
			"row 1, element 0: the u16 400 does not fit into [0,256)"},
		{Source{Path: raw([]int8{0, 1, 2, -3}), Raw: "i8", Limit: 3}, "row 3, element 0: the i8 -3 does not fit into [0,3)"},
		{Source{Path: raw([]int64{0, 1 << 31}), Raw: "i64", DType: graph.I32},
			"row 1, element 0: the i64 2147483648 does not fit into i32"},
		{Source{Path: raw([]uint32{0, 1 << 31}), Raw: "u32", DType: graph.I32},
			"row 1, element 0: the u32 2147483648 does not fit into i32"},
		{Source{Path: raw([]uint64{1, 2, 1 << 63, 4}), Raw: "u64", Row: []int{2, 2}},
			"row 0, element 2: the u64 9223372036854775808 does not fit into i64"},
		{Source{Path: raw([]byte{0, 1, 2}), Raw: "bool"}, "row 2, element 0: the bool 2 does not fit into bool"},
		{Source{Path: raw([]byte{0, 1, 2}), Raw: "bool", DType: graph.F32},
			"row 2, element 0: the bool 2 does not fit into bool"},
		{Source{Path: raw([]byte{0, 1, 2, 9}), Raw: "u8", Limit: 9, Window: Window{Length: 3, Targets: "y"}},
			"row 0, element 3: the u8 9"},
	} {
		for _, access := range []Access{Mapped, Direct, Plain} {
			c.src.Name = "x"
			l := opened(t, Options{Batch: 1, Epochs: 1, Access: access}, c.src)
			var err error
			for err == nil {
				_, err = l.Next()
			}
			wantError(t, err, c.src.Path, c.want)
			_, again := l.Next()
			wantError(t, again, c.want)
		}
	}
}

// TestIsBare tells files with a header from those without.
func TestIsBare(t *testing.T) {
	for text, want := range map[string]bool{
		"\x93NUMPY\x01\x00":                  false,
		"\x02\x00\x00\x00\x00\x00\x00\x00{}": false,
		"\x02\x00\x00\x00\x00\x00\x00\x00":   true,
		"\xff\x00\x00\x00\x00\x00\x00\x00{}": true, // a header longer than the file
		"":                                   true,
		"plain numbers":                      true,
	} {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		if got, err := IsBare(path); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	if _, err := IsBare(t.TempDir()); err == nil {
		t.Error("a folder has no error")
	}
	if _, err := IsBare(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a missing file has no error")
	}
}
