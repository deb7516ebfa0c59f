package cuda_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"fusec/graph"
	"fusec/lowering"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/driver"
)

// numbered writes a file of values like those of full(0), full(1) and so on.
func numbered(t *testing.T, n int) string {
	t.Helper()
	var file []byte
	for v := range n {
		file = append(file, full(float32(v)).Bytes()...)
	}
	path := filepath.Join(t.TempDir(), "numbers")
	if err := os.WriteFile(path, file, 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// readable opens a file of a program. Tests end where the GPU reads none.
func readable(t *testing.T, e lowering.Executable, path string) {
	t.Helper()
	if err := e.OpenFile(path); err != nil {
		unread(t, err)
	}
}

// TestPrefetchFile gives the inputs of runs by tensors, copied ahead and from a file, in random order, on a GPU that does all as
// late as it may. Each run sees what was given to it.
func TestPrefetchFile(t *testing.T) {
	_, e, p := onLate(t, summing)
	const values = 50
	path := numbered(t, values)
	readable(t, e, path)
	readable(t, e, path)
	r := rand.New(rand.NewPCG(7, 8))
	bytes := full(0).Type.Bytes()
	holds := map[string]float32{}
	give := func(name string) {
		v := r.IntN(values)
		buffer := bufferOf(t, p, name)
		switch r.IntN(4) {
		case 0:
			ok(t, e.Bind(buffer, full(float32(v))))
		case 1:
			ok(t, prefetch(e, buffer, full(float32(v))))
		default:
			var parts []graph.FilePart
			for from := int64(0); from < bytes; {
				n := min(4*(1+r.Int64N(9)), bytes-from)
				parts = append(parts, graph.FilePart{Path: path, Offset: int64(v)*bytes + from, Bytes: n})
				from += n
			}
			ok(t, e.PrefetchFile(buffer, parts))
		}
		holds[name] = float32(v)
	}
	state, sum := full(0), float32(0)
	ok(t, e.Bind(bufferOf(t, p, "s"), state))
	give("x")
	give("u")
	for range 200 {
		sum += holds["x"] + holds["u"]
		ok(t, e.Start())
		for _, name := range []string{"x", "u", "x"} {
			if r.IntN(3) > 0 {
				give(name)
			}
		}
		ok(t, e.Wait())
		if y := e.Output(p.Outputs[0].Buffer); !y.Equal(full(sum)) {
			t.Fatalf("a run gives %v, want %v", y.Data, sum)
		}
	}
}

// TestPrefetchFileRefuses names what is wrong. After a read that fails the input has no value, until it is given another.
func TestPrefetchFileRefuses(t *testing.T) {
	_, e, p := onLate(t, summing)
	path := numbered(t, 3)
	readable(t, e, path)
	part := func(path string, offset, bytes int64) []graph.FilePart {
		return []graph.FilePart{{Path: path, Offset: offset, Bytes: bytes}}
	}
	for _, c := range []struct {
		name  string
		parts []graph.FilePart
		want  string
	}{
		{"s", part(path, 0, 60), `state "s" is not copied ahead`},
		{"x", part("other", 0, 60), `input "x": other has not been opened`},
		{"x", part(path, 0, 56), `input "x": parts of files with 56 bytes, want 60`},
		{"x", nil, "with 0 bytes, want 60"},
		{"x", append(part(path, 0, 90), part(path, 90, -30)...), "-30 bytes at byte 90"},
		{"x", append(part(path, 0, 30), part(path, 160, 30)...), `reading input "x" ahead: `},
	} {
		wants(t, e.PrefetchFile(bufferOf(t, p, c.name), c.parts), c.want)
	}
	ok(t, e.Bind(bufferOf(t, p, "s"), full(1)), e.Bind(bufferOf(t, p, "u"), full(1)))
	wants(t, e.Run(), `input "x" has no value: reading it has failed`)
	ok(t, e.PrefetchFile(bufferOf(t, p, "x"), part(path, 60, 60)), e.Run())
	if y := e.Output(p.Outputs[0].Buffer); !y.Equal(full(3)) {
		t.Errorf("the run gives %v", y.Data)
	}
	if err := e.OpenFile(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of a file that is not there: %v", err)
	}
	ok(t, e.Close())
	wants(t, e.OpenFile(path), "closed")
	wants(t, e.PrefetchFile(bufferOf(t, p, "x"), part(path, 0, 60)), "closed")
}

// blind is a GPU that reads no files.
type blind struct{ driver.GPU }

var errBlind = errors.New("the kernel has no driver nvidia-fs")

func (blind) OpenFile(string) (driver.File, error) { return nil, errBlind }

// TestOpenFileRefused tells why a GPU does not read a file; the program does not depend on it.
func TestOpenFileRefused(t *testing.T) {
	gpu, compiler := open(t)
	d := cuda.New(cuda.On(blind{gpu}, compiler))
	p := lowered(t, built(t, summing), d)
	e, err := d.Compile(p)
	ok(t, err)
	if err := e.OpenFile(numbered(t, 1)); !errors.Is(err, errBlind) {
		t.Errorf("error %v", err)
	}
	ok(t, prefetch(e, bufferOf(t, p, "x"), full(1)), e.Bind(bufferOf(t, p, "u"), full(1)), e.Bind(bufferOf(t, p, "s"), full(1)),
		e.Run(), e.Close())
}
