package npy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fusec/graph"
)

func must[T graph.Elem](t testing.TB, data []T, dims ...int) *graph.Tensor {
	t.Helper()
	x, err := graph.TensorOf(data, dims...)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func samples(t testing.TB) []*graph.Tensor {
	long := make([]float64, 3*chunk/8+1)
	for i := range long {
		long[i] = math.Sqrt(float64(i))
	}
	return []*graph.Tensor{
		must(t, []float32{1, float32(math.NaN()), float32(math.Inf(1)), -0.5, 0, 3}, 2, 3),
		must(t, []float64{math.Pi}),
		must(t, []int32{-1, math.MaxInt32}, 2),
		must(t, []int64{math.MinInt64, 0, 1}, 3, 1, 1),
		must(t, []bool{true, false}, 1, 2),
		{Type: graph.TypeOf(graph.F16, 3), Data: []uint16{0x3c00, 0x7e01, 0x8001}},
		must(t, []float32{}, 2, 0, 3),
		must(t, long, len(long)),
	}
}

func TestRoundTrip(t *testing.T) {
	all := samples(t)
	for _, d := range graph.IntegerTypes() {
		x := graph.NewTensor(graph.TypeOf(d, 3, 1))
		for i, v := range []int64{-2, 1 << 40, 1<<62 + 12345} {
			x.SetInt(i, v)
		}
		all = append(all, x)
	}
	for _, want := range all {
		var b bytes.Buffer
		if err := Write(&b, want); err != nil {
			t.Fatal(err)
		}
		if i := bytes.IndexByte(b.Bytes(), '\n'); (i+1)%64 != 0 {
			t.Errorf("%v: data begins at byte %d", want.Type, i+1)
		}
		got, err := Read(&b)
		if err != nil {
			t.Fatalf("%v: %v", want.Type, err)
		}
		if !got.Equal(want) {
			t.Errorf("%v came back as %v", want.Type, got.Type)
		}
	}
}

// TestWritesAsNumPy compares with the bytes of numpy.save(f, numpy.array([[1, 2]], dtype='<i4')).
func TestWritesAsNumPy(t *testing.T) {
	want := "\x93NUMPY\x01\x00v\x00{'descr': '<i4', 'fortran_order': False, 'shape': (1, 2), }" +
		strings.Repeat(" ", 58) + "\n\x01\x00\x00\x00\x02\x00\x00\x00"
	var b bytes.Buffer
	if err := Write(&b, must(t, []int32{1, 2}, 1, 2)); err != nil {
		t.Fatal(err)
	}
	if b.String() != want {
		t.Errorf("got  %q\nwant %q", b.String(), want)
	}
}

// file makes a file of the given version.
func file(version byte, dict string, data ...byte) []byte {
	b := append([]byte(magic), version, 0, byte(len(dict)), byte(len(dict)>>8))
	if version > 1 {
		b = append(b, 0, 0)
	}
	return append(append(b, dict...), data...)
}

func dict(descr, fortran, shape string) string {
	return fmt.Sprintf("{'descr': '%s', 'fortran_order': %s, 'shape': %s, }\n", descr, fortran, shape)
}

func TestConverts(t *testing.T) {
	halves := func(dims ...int) *graph.Tensor {
		return &graph.Tensor{Type: graph.TypeOf(graph.F16, dims...), Data: []uint16{0x3c00, 0xc000}} // 1, −2
	}
	for _, c := range []struct {
		file []byte
		want *graph.Tensor
	}{
		{file(1, dict("<f2", "False", "(2,)"), 0, 0x3c, 0, 0xc0), halves(2)},
		{file(2, dict(">f4", "False", "()"), 0x3f, 0x80, 0, 0), must(t, []float32{1})},
		{file(3, dict(">f8", "False", "(1L,)"), 0x3f, 0xf0, 0, 0, 0, 0, 0, 0), must(t, []float64{1}, 1)},
		{file(1, dict("|i1", "False", "(2,)"), 0xff, 1), must(t, []int8{-1, 1}, 2)},
		{file(1, dict("|u1", "False", "(2)"), 0xff, 1), must(t, []uint8{255, 1}, 2)},
		{file(1, dict("<i2", "False", "(1,)"), 0xfe, 0xff), must(t, []int16{-2}, 1)},
		{file(1, dict(">u2", "False", "(1,)"), 0xff, 0xfe), must(t, []uint16{65534}, 1)},
		{file(1, dict(">i4", "False", "(1,)"), 0xff, 0xff, 0xff, 0xfe), must(t, []int32{-2}, 1)},
		{file(1, dict("<u4", "False", "(1,)"), 0xff, 0xff, 0xff, 0xff), must(t, []uint32{math.MaxUint32}, 1)},
		{file(1, dict("<u8", "False", "(1,)"), 7, 0, 0, 0, 0, 0, 0, 0), must(t, []uint64{7}, 1)},
		{file(1, dict("=u2", "False", "(1,)"), 0, 0), must(t, []uint16{0}, 1)},
		{file(1, `{"shape": (1,), "descr": "|b1", "fortran_order": False}`, 1), must(t, []bool{true}, 1)},
		{file(1, dict("|u1", "True", "(2, 3)"), 0, 3, 1, 4, 2, 5), must(t, []uint8{0, 1, 2, 3, 4, 5}, 2, 3)},
		{file(1, dict("|b1", "True", "(2, 2)"), 0, 1, 0, 1), must(t, []bool{false, false, true, true}, 2, 2)},
		{file(1, dict("<f2", "True", "(1, 2)"), 0, 0x3c, 0, 0xc0), halves(1, 2)},
		{file(1, dict("<u4", "True", "(0, 2)")), must(t, []uint32{}, 0, 2)},
		{file(1, dict("<f8", "True", "(1,)"), 0, 0, 0, 0, 0, 0, 0xf0, 0x3f), must(t, []float64{1}, 1)},
	} {
		got, err := Read(bytes.NewReader(c.file))
		if err != nil {
			t.Errorf("%q: %v", c.file, err)
		} else if !got.Equal(c.want) {
			t.Errorf("%q: got %v, want %v", c.file, got, c.want)
		}
	}
}

func TestRefuses(t *testing.T) {
	f4 := dict("<f4", "False", "(1,)")
	large := file(2, f4, 0, 0, 0, 0)
	large[len(magic)+4] = 0xff
	for _, c := range []struct {
		want string
		file []byte
	}{
		{"not an .npy", nil},
		{"not an .npy", []byte("\x93NUMPX\x01\x00")},
		{"version 4.0", file(4, f4)},
		{"truncated", file(1, f4)[:9]},
		{"truncated", file(1, f4)[:20]},
		{"truncated", file(1, f4, 0, 0, 0)},
		{"larger than", large},
		{"expected a dictionary", file(1, "[]")},
		{"expected a string", file(1, "{1: 2}")},
		{"expected a string", file(1, "{'descr")},
		{"expected ':'", file(1, "{'descr' '<f4'}")},
		{"given twice", file(1, "{'descr': '<f4', 'descr': '<f4'}")},
		{"unknown key", file(1, "{'x': '<f4'}")},
		{"structured", file(1, "{'descr': [('a', '<f4')]}")},
		{"expected a string", file(1, "{'descr': 3}")},
		{"not supported", file(1, dict("<c8", "False", "(1,)"))},
		{"not supported", file(1, dict("|O", "False", "(1,)"))},
		{"not supported", file(1, dict("x", "False", "(1,)"))},
		{"no byte order", file(1, dict("|f4", "False", "(1,)"))},
		{"True or False", file(1, dict("<f4", "0", "(1,)"))},
		{"tuple", file(1, dict("<f4", "False", "[1]"))},
		{"a dimension", file(1, dict("<f4", "False", "(-1,)"))},
		{"a dimension", file(1, dict("<f4", "False", "(99999999999999999999,)"))},
		{"',' or ')'", file(1, dict("<f4", "False", "(1 2)"))},
		{"',' or '}'", file(1, "{'descr': '<f4' 'shape': (1,)}")},
		{"axes", file(1, dict("<f4", "False", "(1,1,1,1,1,1,1,1,1)"))},
		{"elements", file(1, dict("<f4", "False", "(1099511627776,2)"))},
		{"is missing", file(1, "{'descr': '<f4', 'fortran_order': False}")},
		{"expected the end", file(1, f4+"garbage that is longer than twenty bytes")},
		{"truncated", file(1, dict("<f4", "False", "(1099511627776,)"), 0, 0, 0, 0)},
		{"neither 0 nor 1", file(1, dict("|b1", "False", "(1,)"), 2)},
	} {
		_, err := Read(bytes.NewReader(c.file))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, want one with %q", c.file, err, c.want)
		}
	}
}

// failing takes n bytes.
type failing struct{ n int }

func (f *failing) Write(b []byte) (int, error) {
	if f.n -= len(b); f.n < 0 {
		return 0, errors.New("disk full")
	}
	return len(b), nil
}

func TestErrorsOfReaderAndWriter(t *testing.T) {
	x := must(t, []float32{1}, 1)
	for _, n := range []int{0, 100, 130} {
		if err := Write(&failing{n}, x); err == nil {
			t.Errorf("no error with room for %d bytes", n)
		}
	}
	if err := Write(io.Discard, graph.Scalar(graph.BF16, 1)); err == nil ||
		!strings.Contains(err.Error(), "bf16[] cannot be written") {
		t.Errorf("bf16: error %v", err)
	}
	if err := Write(io.Discard, &graph.Tensor{}); err == nil {
		t.Error("a tensor without a type was written")
	}
	bad := errors.New("bad sector")
	r := io.MultiReader(bytes.NewReader(file(1, dict("<f4", "False", "(1,)"))), badReader{bad})
	if _, err := Read(r); !errors.Is(err, bad) {
		t.Errorf("a read error became %v", err)
	}
}

type badReader struct{ err error }

func (b badReader) Read([]byte) (int, error) { return 0, b.err }

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.npy")
	want := must(t, []int64{1, 2}, 2)
	if err := WriteFile(path, want); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadFile(path); err != nil || !got.Equal(want) {
		t.Fatalf("got %v (%v)", got, err)
	}
	if err := WriteFile(path, &graph.Tensor{}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v does not name the file", err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := ReadFile(path); err == nil || !strings.Contains(err.Error(), "after the array") {
		t.Errorf("bytes after the array: %v", err)
	}
	if _, err := ReadFile(dir); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("a folder is read with error %v", err)
	}
	if _, err := ReadFile(filepath.Join(dir, "none")); err == nil {
		t.Error("read a file that is not there")
	}
}

// FuzzRead: whatever the file holds, reading does not panic, and what was read is written and read again unchanged.
func FuzzRead(f *testing.F) {
	for _, x := range samples(f)[:6] {
		var b bytes.Buffer
		if err := Write(&b, x); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Add(file(1, dict("<f2", "True", "(1, 2)"), 0, 0x3c, 0, 0xc0))
	f.Add(file(2, dict(">u8", "False", "(1099511627776,)"), 0))
	f.Fuzz(func(t *testing.T, raw []byte) {
		x, err := Read(bytes.NewReader(raw))
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := Write(&b, x); err != nil {
			t.Fatal(err)
		}
		y, err := Read(&b)
		if err != nil || !y.Equal(x) {
			t.Fatalf("%v came back as %v (%v)", x, y, err)
		}
	})
}

func TestStat(t *testing.T) {
	var b bytes.Buffer
	if err := Write(&b, must(t, []float64{1, 2, 3, 4, 5, 6}, 3, 2)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file []byte
		want Info
	}{
		{b.Bytes(), Info{"f8", false, false, graph.ShapeOf(3, 2), 128, 48}},
		{file(2, dict(">u2", "True", "(5,)")), Info{"u2", true, true, graph.ShapeOf(5), 12 + 57, 10}},
		{file(1, dict("|u1", "False", "()")), Info{"u1", false, false, graph.ShapeOf(), 10 + 56, 1}},
	} {
		if got, err := Stat(bytes.NewReader(c.file)); err != nil || got != c.want {
			t.Errorf("%q: got %+v (%v), want %+v", c.file, got, err, c.want)
		}
	}
	if _, err := Stat(strings.NewReader("no")); err == nil || !strings.Contains(err.Error(), "not an .npy") {
		t.Errorf("error %v", err)
	}
}
