package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func sample() []Tensor {
	return []Tensor{
		{"b", []int{3}, []bool{true, false, true}},
		{"w", []int{2, 2}, []float32{1, float32(math.NaN()), float32(math.Inf(-1)), math.SmallestNonzeroFloat32}},
		{"i64", []int{1}, []int64{math.MinInt64}},
		{"scalar", nil, []float64{math.Copysign(0, -1)}},
		{"empty", []int{2, 0}, []float32{}},
		{"i32 \"quoted\" <ü>", []int{2}, []int32{-1, math.MaxInt32}},
	}
}

// TestBits writes 16-bit numbers and reads them without conversion, and as f32.
func TestBits(t *testing.T) {
	file := encodeAll(t, []Tensor{{"h", []int{1, 2}, F16{0x3c00, 0x7e01}}, {"b", []int{1}, BF16{0x3fc0}},
		{"f", nil, []float32{1}}}, nil)
	r, err := NewReader(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	h, err := r.ReadBits("h")
	if err != nil || !slices.Equal(h, []uint16{0x3c00, 0x7e01}) {
		t.Errorf("h is %#x, %v", h, err)
	}
	b, err := r.ReadBits("b")
	if err != nil || !slices.Equal(b, []uint16{0x3fc0}) {
		t.Errorf("b is %#x, %v", b, err)
	}
	if v, err := r.Read("b"); err != nil || !reflect.DeepEqual(v, []float32{1.5}) {
		t.Errorf("b is %v, %v", v, err)
	}
	for name, want := range map[string]string{"f": "values of dtype F32 have no 16 bits", "x": `no tensor "x"`} {
		if _, err := r.ReadBits(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", name, err, want)
		}
	}
}

func encodeAll(t *testing.T, tensors []Tensor, meta map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, tensors, meta); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// bits makes data comparable: NaNs with the same bits are equal.
func bits(data any) []byte { _, n := dtypeOf(data); return encode(nil, data, 0, n) }

func TestRoundTrip(t *testing.T) {
	meta := map[string]string{"format": "pt", "a": "<&>"}
	in := sample()
	file := encodeAll(t, in, meta)
	r, err := NewReader(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(r.Metadata(), meta) {
		t.Errorf("metadata %v, want %v", r.Metadata(), meta)
	}
	if len(r.Tensors()) != len(in) {
		t.Errorf("%d tensors, want %d", len(r.Tensors()), len(in))
	}
	for _, want := range in {
		info, ok := r.Lookup(want.Name)
		if !ok || !slices.Equal(info.Shape, want.Shape) {
			t.Errorf("%q: %v %v, want shape %v", want.Name, info, ok, want.Shape)
		}
		got, err := r.Read(want.Name)
		if err != nil {
			t.Error(err)
		} else if reflect.TypeOf(got) != reflect.TypeOf(want.Data) || !bytes.Equal(bits(got), bits(want.Data)) {
			t.Errorf("%q: %v, want %v", want.Name, got, want.Data)
		}
	}
	if _, err := r.Read("none"); err == nil {
		t.Error("read a tensor that is not there")
	}
}

func TestLargeTensor(t *testing.T) {
	data := make([]float64, 3*chunk/8+5)
	flags := make([]bool, 2*chunk+1)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range data {
		data[i] = r.NormFloat64()
	}
	for i := range flags {
		flags[i] = r.IntN(2) == 1
	}
	file := encodeAll(t, []Tensor{{"x", []int{len(data)}, data}, {"f", []int{len(flags)}, flags}}, nil)
	f, err := NewReader(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := f.Read("x"); err != nil || !slices.Equal(got.([]float64), data) {
		t.Errorf("floats differ (%v)", err)
	}
	if got, err := f.Read("f"); err != nil || !slices.Equal(got.([]bool), flags) {
		t.Errorf("flags differ (%v)", err)
	}
}

func TestDeterministicAndAligned(t *testing.T) {
	in := sample()
	want := encodeAll(t, in, map[string]string{"x": "1", "y": "2"})
	for range 20 {
		rand.Shuffle(len(in), func(i, j int) { in[i], in[j] = in[j], in[i] })
		if got := encodeAll(t, in, map[string]string{"y": "2", "x": "1"}); !bytes.Equal(got, want) {
			t.Fatal("the order of the tensors shows in the file")
		}
	}
	r, err := NewReader(bytes.NewReader(want), int64(len(want)))
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range r.Tensors() {
		at, size := r.Place(info)
		if at%int64(dtypeBytes[info.DType]) != 0 {
			t.Errorf("%q stands at byte %d", info.Name, at)
		}
		if data, err := r.Read(info.Name); err != nil || !bytes.Equal(bits(data), want[at:at+size]) {
			t.Errorf("%q does not stand at byte %d (%v)", info.Name, at, err)
		}
	}
}

// file puts a header and data together.
func file(header string, data ...byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

func TestHalfPrecision(t *testing.T) {
	for h, want := range map[uint16]float32{
		0x0000: 0, 0x3c00: 1, 0xc000: -2, 0x7bff: 65504, 0x0001: 0x1p-24, 0x03ff: 0x1.ff8p-15, 0x0400: 0x1p-14,
		0x7c00: float32(math.Inf(1)), 0xfc00: float32(math.Inf(-1)), 0x3555: 0x1.554p-2,
	} {
		if got := Float16(h); got != want {
			t.Errorf("Float16(%#04x) = %v, want %v", h, got, want)
		}
	}
	if got := Float16(0x8000); math.Float32bits(got) != 1<<31 {
		t.Errorf("Float16(-0) = %v", got)
	}
	if got := Float16(0x7e01); !math.IsNaN(float64(got)) {
		t.Errorf("Float16(NaN) = %v", got)
	}
	b := file(`{"h":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[2,6]}}`,
		0, 0x3c, 0x80, 0x3f, 0x20, 0xc1)
	r, err := NewReader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]float32{"h": {1}, "b": {1, -10}} {
		if got, err := r.Read(name); err != nil || !slices.Equal(got.([]float32), want) {
			t.Errorf("%s = %v (%v), want %v", name, got, err, want)
		}
	}
}

func TestRefusesBadFiles(t *testing.T) {
	good := encodeAll(t, sample(), nil)
	long := slices.Clone(good)
	binary.LittleEndian.PutUint64(long, MaxHeader+1)
	for _, c := range []struct {
		name, want string
		file       []byte
	}{
		{"empty", "too short", nil},
		{"short", "too short", good[:7]},
		{"header cut", "truncated", good[:20]},
		{"data cut", "truncated", good[:len(good)-1]},
		{"bytes after", "truncated", append(slices.Clone(good), 0)},
		{"header too long", "is this a safetensors file", long},
		{"not JSON", "not a JSON object", file("garbage!")},
		{"an array", "not a JSON object", file("[]")},
		{"JSON cut", "header", file(`{"a":`)},
		{"JSON open", "header", file(`{`)},
		{"key is a number", "header", file(`{1:2}`)},
		{"text after", "after the JSON object", file(`{} {}`)},
		{"given twice", "given twice",
			file(`{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}`)},
		{"metadata twice", "given twice", file(`{"__metadata__":{},"__metadata__":{}}`)},
		{"metadata of numbers", "__metadata__", file(`{"__metadata__":{"a":1}}`)},
		{"no dtype", "needs dtype", file(`{"a":{"shape":[1],"data_offsets":[0,4]}}`, 0, 0, 0, 0)},
		{"no shape", "needs dtype", file(`{"a":{"dtype":"F32","data_offsets":[0,4]}}`, 0, 0, 0, 0)},
		{"three offsets", "two data_offsets", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}}`, 0, 0, 0, 0)},
		{"unknown dtype", `unknown dtype "F7"`, file(`{"a":{"dtype":"F7","shape":[1],"data_offsets":[0,4]}}`, 0, 0, 0, 0)},
		{"negative dimension", "not valid", file(`{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}`, 0, 0, 0, 0)},
		{"fraction", "shape", file(`{"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}}`, 0, 0, 0, 0)},
		{"overflow", "not valid", file(`{"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,0]}}`)},
		{"rank", "axes", file(`{"a":{"dtype":"F32","shape":[1`+strings.Repeat(",1", MaxRank)+`],"data_offsets":[0,4]}}`, 0, 0, 0, 0)},
		{"wrong size", "do not hold", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, 0, 0, 0, 0)},
		{"negative offset", "do not hold", file(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}}`)},
		{"gap", "gap or an overlap", file(`{"a":{"dtype":"BOOL","shape":[1],"data_offsets":[1,2]}}`, 0, 0)},
		{"overlap", "gap or an overlap",
			file(`{"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"BOOL","shape":[2],"data_offsets":[1,3]}}`, 0, 0, 0)},
	} {
		_, err := NewReader(bytes.NewReader(c.file), int64(len(c.file)))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", c.name, err, c.want)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	b := file(`{"f":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]},"u":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[2,3]}}`, 1, 2,
		0)
	r, err := NewReader(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"f": "element 1 is 2", "u": "dtype F8_E4M3"} {
		if _, err := r.Read(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", name, err, want)
		}
	}
}

// counting counts the bytes that are read and fails from a certain offset on.
type counting struct {
	*bytes.Reader
	n     int
	limit int64
}

func (c *counting) ReadAt(b []byte, off int64) (int, error) {
	if off+int64(len(b)) > c.limit {
		return 0, errors.New("bad sector")
	}
	c.n += len(b)
	return c.Reader.ReadAt(b, off)
}

func TestReadsOnlyWhatIsAskedFor(t *testing.T) {
	b := encodeAll(t, []Tensor{{"a", []int{1 << 20}, make([]float32, 1<<20)}, {"b", []int{1}, []bool{true}}}, nil)
	c := &counting{bytes.NewReader(b), 0, int64(len(b))}
	r, err := NewReader(c, int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read("b"); err != nil {
		t.Fatal(err)
	}
	if c.n > 1000 {
		t.Errorf("read %d bytes", c.n)
	}
	c.limit = 1 << 20
	if _, err := r.Read("a"); err == nil || !strings.Contains(err.Error(), "bad sector") {
		t.Errorf("a read error became %v", err)
	}
}

func TestReadErrors(t *testing.T) {
	b := encodeAll(t, sample(), nil)
	for _, limit := range []int64{4, 12} {
		if _, err := NewReader(&counting{bytes.NewReader(b), 0, limit}, int64(len(b))); err == nil {
			t.Errorf("no error with a file that is readable up to byte %d", limit)
		}
	}
	if _, err := NewReader(bytes.NewReader(b[:10]), int64(len(b))); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a file that shrank gives %v", err)
	}
}

func TestWriteRefuses(t *testing.T) {
	for _, c := range []struct {
		want    string
		tensors []Tensor
		meta    map[string]string
	}{
		{"cannot be written", []Tensor{{"a", nil, []string{"x"}}}, nil},
		{"elements for shape", []Tensor{{"a", []int{2}, []float32{1}}}, nil},
		{"elements for shape", []Tensor{{"a", []int{-1, -1}, []float32{1}}}, nil},
		{"two tensors", []Tensor{{"a", nil, []float32{1}}, {"a", nil, []bool{true}}}, nil},
		{"the name", []Tensor{{metadataKey, nil, []float32{1}}}, nil},
		{"the name", []Tensor{{"\xff", nil, []float32{1}}}, nil},
		{"not UTF-8", nil, map[string]string{"a": "\xff"}},
	} {
		if err := Write(io.Discard, c.tensors, c.meta); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want one with %q", err, c.want)
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

func TestWriteReportsFullDisk(t *testing.T) {
	size := len(encodeAll(t, sample(), nil))
	for n := range size {
		if err := Write(&failing{n}, sample(), nil); err == nil {
			t.Fatalf("no error with room for %d of %d bytes", n, size)
		}
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.safetensors")
	if err := WriteFile(path, sample(), nil); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Read("w"); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	before, _ := os.ReadFile(path)
	if err := WriteFile(path, []Tensor{{"a", []int{2}, []float32{1}}}, nil); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v does not name the file", err)
	}
	if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
		t.Error("a failed write changed the file")
	}
	bad := filepath.Join(dir, "bad")
	if err := os.WriteFile(bad, []byte("not this"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{dir, bad, filepath.Join(dir, "none")} {
		if _, err := Open(p); err == nil || !strings.Contains(err.Error(), p) {
			t.Errorf("Open(%s): %v", p, err)
		}
	}
}

// FuzzRead: whatever the file holds, reading neither panics nor reads outside it, and what can be read can be written
// and read again.
func FuzzRead(f *testing.F) {
	var b bytes.Buffer
	if err := Write(&b, sample(), map[string]string{"k": "v"}); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add(b.Bytes()[:b.Len()/2])
	f.Add(file(`{}`))
	f.Add(file(`{"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}}`, 1, 2))
	f.Add(file(`{"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 0, 0, 0))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := NewReader(bytes.NewReader(raw), int64(len(raw)))
		if err != nil {
			return
		}
		var all []Tensor
		for _, info := range r.Tensors() {
			data, err := r.Read(info.Name)
			if err != nil {
				continue
			}
			all = append(all, Tensor{info.Name, info.Shape, data})
		}
		var b bytes.Buffer
		if err := Write(&b, all, r.Metadata()); err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		again, err := NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()))
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		for _, want := range all {
			got, err := again.Read(want.Name)
			if err != nil || !bytes.Equal(bits(got), bits(want.Data)) {
				t.Fatalf("%q changed (%v)", want.Name, err)
			}
		}
	})
}
