package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/safetensors"
)

// must makes a tensor.
func must[T graph.Elem](t testing.TB, data []T, dims ...int) *graph.Tensor {
	t.Helper()
	x, err := graph.TensorOf(data, dims...)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// sample is a state with every element type and values that a conversion would change.
func sample(t testing.TB) *State {
	return &State{
		Params: map[string]*graph.Tensor{
			"w":     must(t, []float32{1, math.Float32frombits(0x7fc00001), float32(math.Inf(-1)), 0x1p-149}, 2, 2),
			"exact": must(t, []float64{math.Pi, math.Copysign(0, -1), math.Float64frombits(0x7ff8000000000001)}, 3),
			"empty": must(t, []float32{}, 0, 3),
		},
		State: map[string]*graph.Tensor{
			"w":       must(t, []float32{0.25, 0, -3, 7}, 2, 2), // the name of a parameter, which is no conflict
			"counter": must(t, []int64{math.MaxInt64}),
			"mask":    must(t, []bool{true, false}, 2),
			"index":   must(t, []int32{math.MinInt32}, 1, 1),
			"i8":      must(t, []int8{math.MinInt8, 1}, 2),
			"u8":      must(t, []uint8{math.MaxUint8}, 1),
			"i16":     must(t, []int16{math.MinInt16}, 1),
			"u16":     must(t, []uint16{math.MaxUint16}, 1),
			"u32":     must(t, []uint32{math.MaxUint32}, 1),
			"u64":     must(t, []uint64{math.MaxUint64}),
		},
		Step: 1234567890123, Seed: math.MaxUint64, Position: 42,
		Meta: map[string]string{"loss": "0.125", "note": `"checksum":"crc32c:` + "\n<ü>", "step": "mine"},
	}
}

// equal compares two states bit by bit.
func equal(a, b *State) error {
	for _, r := range roles {
		x, y := *r.of(a), *r.of(b)
		if len(x) != len(y) {
			return fmt.Errorf("%d and %d tensors of role %s", len(x), len(y), r.name)
		}
		for name, t := range x {
			if y[name] == nil || !t.Equal(y[name]) {
				return fmt.Errorf("%s %q differs", r.name, name)
			}
		}
	}
	if a.Step != b.Step || a.Seed != b.Seed || a.Position != b.Position || !maps.Equal(a.Meta, b.Meta) {
		return fmt.Errorf("%v and %v differ", a, b)
	}
	return nil
}

func TestRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.safetensors")
	for _, want := range []*State{sample(t), {Meta: map[string]string{}}} {
		if err := Save(path, want); err != nil {
			t.Fatal(err)
		}
		first := graphtest.ReadFile(t, path)
		got, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := equal(got, want); err != nil {
			t.Error(err)
		}
		if err := Save(path, got); err != nil {
			t.Fatal(err)
		}
		if again, _ := os.ReadFile(path); !bytes.Equal(first, again) {
			t.Error("the same state gave other bytes")
		}
	}
}

// TestReadBySafetensors: any reader of the format finds the tensors.
func TestReadBySafetensors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.safetensors")
	if err := Save(path, sample(t)); err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if data, err := f.Read("state/counter"); err != nil || data.([]int64)[0] != math.MaxInt64 {
		t.Errorf("state/counter is %v (%v)", data, err)
	}
	if m := f.Metadata(); m["step"] != "1234567890123" || m["meta/step"] != "mine" {
		t.Errorf("metadata %v", m)
	}
}

// TestEveryDamageIsFound cuts the file at each length and changes each of its bytes.
func TestEveryDamageIsFound(t *testing.T) {
	var b bytes.Buffer
	if err := sample(t).write(&b); err != nil {
		t.Fatal(err)
	}
	good := b.Bytes()
	if _, err := read(bytes.NewReader(good), int64(len(good))); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1 << r.IntN(8)
		if _, err := read(bytes.NewReader(bad), int64(len(bad))); !errors.Is(err, ErrDamaged) {
			t.Errorf("a bit of byte %d (%q) changed: error %v", i, good[i], err)
		}
		if _, err := read(bytes.NewReader(good[:i]), int64(i)); !errors.Is(err, ErrDamaged) {
			t.Errorf("cut to %d bytes: error %v", i, err)
		}
	}
	long := append(bytes.Clone(good), 0)
	if _, err := read(bytes.NewReader(long), int64(len(long))); !errors.Is(err, ErrDamaged) {
		t.Errorf("a byte more: error %v", err)
	}
	// A file that shrinks while it is read.
	if _, err := read(bytes.NewReader(good[:len(good)-1]), int64(len(good))); !errors.Is(err, ErrDamaged) {
		t.Errorf("shrunk: error %v", err)
	}
}

func TestLoadRefuses(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, tensors []safetensors.Tensor, change func(meta map[string]string)) string {
		_, meta, err := (&State{}).contents()
		if err != nil {
			t.Fatal(err)
		}
		meta[checksumKey] = crcPrefix + crcZeros
		change(meta)
		path := filepath.Join(dir, name)
		if err := safetensors.WriteFile(path, tensors, meta); err != nil {
			t.Fatal(err)
		}
		return path
	}
	// sealed writes a file with a right checksum and any other content.
	sealed := func(name string, tensors []safetensors.Tensor, change func(meta map[string]string)) string {
		path := write(name, tensors, change)
		file := graphtest.ReadFile(t, path)
		sum := crcOf(file)
		file = bytes.Replace(file, []byte(crcPrefix+crcZeros), []byte(crcPrefix+sum), 1)
		graphtest.WriteFile(t, path, file)
		return path
	}
	same := func(map[string]string) {}
	one := []float32{1}
	for _, c := range []struct{ path, want string }{
		{write("plain", nil, func(m map[string]string) { clear(m) }), "has no checksum: is it a checkpoint?"},
		{sealed("future", nil, func(m map[string]string) { m[formatKey] = "fusec.checkpoint/3" }),
			`its format is "fusec.checkpoint/3"`},
		{sealed("step", nil, func(m map[string]string) { m[stepKey] = "many" }), `parsing "many"`},
		{sealed("role", []safetensors.Tensor{{Name: "w", Shape: []int{1}, Data: one}}, same),
			`tensor "w" is neither a parameter nor state`},
		{sealed("axes", []safetensors.Tensor{{Name: "param/w", Shape: []int{1, 1, 1, 1, 1, 1, 1, 1, 1}, Data: one}}, same),
			"has 9 axes, more than 8"},
		{filepath.Join(dir, "none"), "no such file"},
		{dir, "not a regular file"},
	} {
		_, err := Load(c.path)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.path) {
			t.Errorf("%s: error %v, want one with %q and the path", c.path, err, c.want)
		}
	}
	if _, err := Load(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrDamaged) {
		t.Errorf("a file that is missing: error %v", err)
	}
}

// crcOf is the checksum of a file with zeros in its place.
func crcOf(file []byte) string {
	err := verify(bytes.NewReader(file), int64(len(file)), crcPrefix+crcZeros)
	_, sum, _ := strings.Cut(err.Error(), "that of its contents ")
	return sum
}

// Floats of 8 bits are no elements of a checkpoint, though safetensors has them.
func TestLoadRefusesFloat8(t *testing.T) {
	header := fmt.Sprintf(`{"__metadata__":{"checksum":%q,"format":%q,"step":"0","seed":"0","position":"0"},`+
		`"param/h":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}`, crcPrefix+crcZeros, format)
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	file = append(append(file, header...), 0, 0)
	file = bytes.Replace(file, []byte(crcZeros), []byte(crcOf(file)), 1)
	_, err := read(bytes.NewReader(file), int64(len(file)))
	if err == nil || !strings.Contains(err.Error(), `"param/h" has elements of dtype F8_E4M3`) {
		t.Errorf("error %v", err)
	}
}

func TestSaveRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.safetensors")
	if err := Save(path, sample(t)); err != nil {
		t.Fatal(err)
	}
	before, _ := os.ReadFile(path)
	for _, c := range []struct {
		s    *State
		want string
	}{
		{&State{Params: map[string]*graph.Tensor{"w": nil}}, `parameter "w": the tensor is nil`},
		{&State{State: map[string]*graph.Tensor{"m": {Type: graph.TypeOf(graph.F32, 2), Data: []float32{1}}}},
			`state "m": tensor of type f32[2] holds 1`},
		{&State{Step: -1}, "step -1"},
		{&State{Meta: map[string]string{"a": "\xff"}}, "not UTF-8"},
	} {
		err := Save(path, c.s)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("error %v, want one with %q and the path", err, c.want)
		}
	}
	if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
		t.Error("a save that failed changed the file")
	}
}

// model makes tensors of the types of a state, filled with nines.
func model(of map[string]*graph.Tensor) map[string]*graph.Tensor {
	m := map[string]*graph.Tensor{}
	for name, t := range of {
		m[name] = graph.Filled(t.Type, 9)
	}
	return m
}

func TestRestore(t *testing.T) {
	s := sample(t)
	params, state := model(s.Params), model(s.State)
	if err := s.Restore(params, state); err != nil {
		t.Fatal(err)
	}
	got := *s
	got.Params, got.State = params, state
	if err := equal(&got, s); err != nil {
		t.Error(err)
	}
}

// TestRestoreChecksFirst: all that does not fit is named, and then nothing is changed.
func TestRestoreChecksFirst(t *testing.T) {
	s := sample(t)
	params, state := model(s.Params), model(s.State)
	params["exact"] = graph.Filled(graph.TypeOf(graph.F32, 3), 9)
	params["new"] = graph.Filled(graph.TypeOf(graph.F32, 1), 9)
	state["mask"] = graph.Filled(graph.TypeOf(graph.Bool, 3), 1)
	delete(state, "counter")
	err := s.Restore(params, state)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`parameter "exact" is f32[3], in the checkpoint f64[3]`, `parameter "new" is missing from the checkpoint`,
		`state "mask" is bool[3], in the checkpoint bool[2]`, `the checkpoint has a state "counter" that the model lacks`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %v lacks %q", err, want)
		}
	}
	for _, tensors := range []map[string]*graph.Tensor{params, state} {
		for name, x := range tensors {
			if !x.Equal(graph.Filled(x.Type, 9)) {
				t.Errorf("%s was changed", name)
			}
		}
	}
	params["new"] = nil
	err = s.Restore(params, state)
	if err == nil || !strings.Contains(err.Error(), `parameter "new" of the model: the tensor is nil`) {
		t.Errorf("error %v", err)
	}
	s = &State{Params: map[string]*graph.Tensor{"w": {Type: graph.TypeOf(graph.F32, 2), Data: []float32{1}}}}
	if err := s.Restore(model(s.Params), nil); err == nil || !strings.Contains(err.Error(), `"w" of the checkpoint`) {
		t.Errorf("error %v", err)
	}
}

func TestFits(t *testing.T) {
	g, err := graph.Parse("m.graph", []byte(`fusec graph 1 {
  x = input : f32[3,2]
  w = param : f32[2,2]
  m = state : f32[2,2]
  y = matmul x w
  output y = y
}
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	w := graph.TypeOf(graph.F32, 2, 2)
	s := &State{
		Params: map[string]*graph.Tensor{"w": graph.NewTensor(w)},
		State:  map[string]*graph.Tensor{"m": graph.NewTensor(w)},
	}
	if err := s.Fits(g); err != nil {
		t.Error(err)
	}
	s.Params["w"] = graph.NewTensor(graph.TypeOf(graph.F64, 2, 2))
	s.State = map[string]*graph.Tensor{"v": s.Params["w"]}
	err = s.Fits(g)
	for _, want := range []string{
		"is f32[2,2], in the checkpoint f64[2,2]", "is missing", `a state "v" that the model lacks`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v lacks %q", err, want)
		}
	}
	for i := range maxErrors {
		s.State[fmt.Sprint(i)] = s.Params["w"]
	}
	if err := s.Fits(g); err == nil || !strings.Contains(err.Error(), "and 3 more") {
		t.Errorf("error %v", err)
	}
}

// FuzzRead: whatever the file holds, reading does not panic, and what is read can be written and read again.
func FuzzRead(f *testing.F) {
	var b bytes.Buffer
	if err := sample(f).write(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add(b.Bytes()[:b.Len()/2])
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"))
	f.Fuzz(func(t *testing.T, file []byte) {
		s, err := read(bytes.NewReader(file), int64(len(file)))
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := s.write(&b); err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		again, err := read(bytes.NewReader(b.Bytes()), int64(b.Len()))
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		if err := equal(again, s); err != nil {
			t.Fatal(err)
		}
	})
}
