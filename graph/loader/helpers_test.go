package loader

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/safetensors"
)

// writeTensors makes a safetensors file.
func writeTensors(t testing.TB, tensors ...safetensors.Tensor) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.safetensors")
	if err := safetensors.WriteFile(path, tensors, nil); err != nil {
		t.Fatal(err)
	}
	return path
}

// tokens makes a bare file of u16.
func tokens(t testing.TB, v ...uint16) string {
	t.Helper()
	raw, err := binary.Append(nil, binary.LittleEndian, v)
	if err != nil {
		t.Fatal(err)
	}
	return graphtest.File(t, "tokens.bin", raw)
}

// count is 0, 1, 2, … as elements of any type.
func count[T float32 | float64 | int32 | int64 | uint16](n int) []T {
	v := make([]T, n)
	for i := range v {
		v[i] = T(i)
	}
	return v
}

// opened opens a loader that is closed when the test ends.
func opened(t testing.TB, opts Options, sources ...Source) *Loader {
	t.Helper()
	l, err := Open(opts, sources...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// next gives the next batch.
func next(t testing.TB, l *Loader) *Batch {
	t.Helper()
	b, err := l.Next()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// kept is a batch that stays.
type kept struct {
	step, epoch int64
	index       []int64
	tensors     map[string]*graph.Tensor
}

func keep(b *Batch) kept {
	k := kept{b.Step, b.Epoch, slices.Clone(b.Index), map[string]*graph.Tensor{}}
	for name, x := range b.Tensors {
		k.tensors[name] = x.Clone()
	}
	return k
}

// take keeps the next n batches, or those up to the end.
func take(t testing.TB, l *Loader, n int) []kept {
	t.Helper()
	var list []kept
	for range n {
		b, err := l.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, keep(b))
	}
	return list
}

// same compares two series of batches bit by bit.
func same(a, b []kept) bool {
	return slices.EqualFunc(a, b, func(x, y kept) bool {
		if x.step != y.step || x.epoch != y.epoch || !slices.Equal(x.index, y.index) || len(x.tensors) != len(y.tensors) {
			return false
		}
		for name := range x.tensors {
			if y.tensors[name] == nil || !x.tensors[name].Equal(y.tensors[name]) {
				return false
			}
		}
		return true
	})
}

// noLeak fails if there are more goroutines than before for as long as a second.
func noLeak(t *testing.T, before int) {
	t.Helper()
	n := 0
	for range 100 {
		if n = runtime.NumGoroutine(); n <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d goroutines, before %d", n, before)
}

// sameFloats compares numbers; NaNs are equal.
func sameFloats(a, b []float64) bool {
	return slices.EqualFunc(a, b, func(x, y float64) bool { return x == y || math.IsNaN(x) && math.IsNaN(y) })
}
