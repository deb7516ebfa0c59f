package checkpoint_test

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"fusec/graph"
	"fusec/graph/checkpoint"
	"fusec/graph/loader"
	"fusec/graph/npy"
)

// regression is a training run in a few lines: y = w·x by least squares, with momentum and mini-batches.
type regression struct {
	w, m *graph.Tensor
	data *loader.Loader
	step int64
}

const (
	rows, features = 50, 3
	seed           = 11
)

// begin starts a run, from the newest checkpoint if there is one.
func begin(t *testing.T, path string, dir checkpoint.Dir) *regression {
	t.Helper()
	data, err := loader.Open(loader.Options{Batch: 8, Shuffle: true, Seed: seed}, loader.Source{Name: "x", Path: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { data.Close() })
	typ := graph.TypeOf(graph.F32, features)
	r := &regression{w: graph.NewTensor(typ), m: graph.NewTensor(typ), data: data}
	if _, err := os.Stat(dir.Path); err == nil {
		last, err := dir.Latest()
		if err != nil {
			t.Fatal(err)
		}
		if err := last.Restore(r.tensors()); err != nil {
			t.Fatal(err)
		}
		if err := data.SetPosition(last.Position); err != nil {
			t.Fatal(err)
		}
		if last.Seed != seed {
			t.Fatalf("seed %d", last.Seed)
		}
		r.step = last.Step
	}
	return r
}

func (r *regression) tensors() (params, state map[string]*graph.Tensor) {
	return map[string]*graph.Tensor{"w": r.w}, map[string]*graph.Tensor{"m": r.m}
}

// train continues to a step and saves when it is due.
func (r *regression) train(t *testing.T, to int64, dir checkpoint.Dir) {
	t.Helper()
	w, m := r.w.Data.([]float32), r.m.Data.([]float32)
	for r.step < to {
		b, err := r.data.Next()
		if err != nil {
			t.Fatal(err)
		}
		x := b.Tensors["x"].Data.([]float32)
		for i := range b.Rows {
			row := x[i*(features+1):][:features+1]
			y := row[features]
			for k := range w {
				y -= w[k] * row[k]
			}
			for k := range m {
				m[k] = 0.9*m[k] + 0.01*y*row[k]
			}
		}
		for k := range w {
			w[k] += m[k]
		}
		r.step++
		if dir.Due(r.step) {
			s := &checkpoint.State{Step: r.step, Seed: seed, Position: r.data.Position()}
			s.Params, s.State = r.tensors()
			if _, err := dir.Save(s); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestResumesToTheSameBits: a run that stops at any step and resumes from its last checkpoint, with new objects
// otherwise, ends with the bits of one that never stopped.
func TestResumesToTheSameBits(t *testing.T) {
	x := graph.NewTensor(graph.TypeOf(graph.F32, rows, features+1))
	for i := range x.Type.Shape.Elems() {
		x.SetFloat(i, math.Sin(float64(i*i)))
	}
	path := filepath.Join(t.TempDir(), "x.npy")
	if err := npy.WriteFile(path, x); err != nil {
		t.Fatal(err)
	}
	const end = 40
	whole := begin(t, path, checkpoint.Dir{})
	whole.train(t, end, checkpoint.Dir{})
	if whole.w.Equal(graph.NewTensor(whole.w.Type)) {
		t.Fatal("nothing was learnt")
	}
	for _, stops := range [][]int64{{5}, {17}, {7, 8, 9, 23, 39}} {
		dir := checkpoint.Dir{Path: filepath.Join(t.TempDir(), "run"), Keep: 2, Every: 5}
		for _, stop := range append(stops, end) {
			r := begin(t, path, dir)
			r.train(t, stop, dir)
			if stop == end && !(r.w.Equal(whole.w) && r.m.Equal(whole.m)) {
				t.Errorf("stopped at %v: w is %v, without a break %v", stops, r.w.Data, whole.w.Data)
			}
		}
	}
}
