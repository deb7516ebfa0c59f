package watch_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fusec"
	"fusec/graph"
	"fusec/kernels/ref"
	"fusec/lowering"
	"fusec/lowering/cpu"
	"fusec/lowering/watch"
)

// spoiled runs a program once on the CPU; the watcher sees the results of one launch with an element changed, or none of
// them if launch is -1.
func spoiled(t *testing.T, w *watch.Watcher, launch int) error {
	t.Helper()
	exe, err := cpu.New().Compile(w.Program)
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	for i, b := range w.Program.Buffers {
		if b.Role <= lowering.State {
			x := graph.NewTensor(b.Type)
			for j := range b.Type.Shape.Elems() {
				x.SetFloat(j, math.Cos(float64(3*j+i)))
			}
			if err := exe.Bind(i, x); err != nil {
				t.Fatal(err)
			}
		}
	}
	exe.Watch(func(l *lowering.Launch, value func(lowering.View) (*graph.Tensor, error)) error {
		return w.Check(l, func(v lowering.View) (*graph.Tensor, error) {
			x, err := value(v)
			if launch < 0 || l != &w.Program.Launches[launch] || v != l.Results[0] || err != nil {
				return x, err
			}
			x = x.Clone()
			x.SetFloat(1, x.Float(1)+0.125)
			return x, nil
		})
	})
	return exe.Run()
}

// three is a program of a fusion, an operation with two results and a fusion of those.
func three(t *testing.T) *lowering.Program {
	t.Helper()
	b := graph.NewBuilder("three")
	x := b.Input("x", f32(4, 6))
	h := b.Named(b.Unary(graph.Tanh, b.MatMul(x, b.Param("w", f32(6, 8)), false, false)), "hidden")
	top := b.Named(b.Add(graph.TopK{K: 2}, h), "top")
	b.Output("places", b.Add(graph.Result{Index: 1}, top))
	b.Output("y", b.Named(b.Unary(graph.Exp, b.BinaryScalar(graph.Mul, top, 3)), "y"))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	_, p, err := fusec.Plan(g)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Launches) != 3 {
		t.Fatalf("%d launches", len(p.Launches))
	}
	return p
}

// Each launch is compared once in as many runs as are asked for, in each run others.
func TestShadowTakesAll(t *testing.T) {
	p := three(t)
	for _, every := range []int{1, 2, 3, 5} {
		s := &watch.Shadow{Every: every, Seen: watch.Seen{Launch: -1}}
		w := &watch.Watcher{Program: p, Shadow: s}
		for run := range 2 * every {
			before := s.Seen.Launches
			due := s.Begin(len(p.Launches))
			if err := spoiled(t, w, -1); err != nil {
				t.Fatal(err)
			}
			if most := int64(len(p.Launches)+every-1) / int64(every); due != (s.Seen.Launches > before) || s.Seen.Launches-before > most {
				t.Errorf("every %d, run %d: due is %v, %d were compared", every, run, due, s.Seen.Launches-before)
			}
		}
		if s.Seen.Launches != int64(2*len(p.Launches)) {
			t.Errorf("every %d: %d compared", every, s.Seen.Launches)
		}
	}
}

func TestShadowWrites(t *testing.T) {
	p := three(t)
	for i, name := range []string{"hidden", "top", "y"} {
		s := &watch.Shadow{Every: 1, Folder: t.TempDir(), Target: "cpu", Seen: watch.Seen{Launch: -1}}
		s.Begin(len(p.Launches))
		err := spoiled(t, &watch.Watcher{Program: p, Shadow: s}, i)
		var e *watch.DepartureError
		if !errors.As(err, &e) {
			t.Fatalf("%s: %v", name, err)
		}
		want := filepath.Join(s.Folder, []string{"fusec-shadow-1.graph", "fusec-shadow-2.graph", "fusec-shadow-3.graph"}[i])
		if e.Launch != i || e.File != want || e.Departure.Off != 1 || !strings.Contains(e.Node, name) {
			t.Errorf("%s: %+v", name, e)
		}
		if text := err.Error(); !strings.Contains(text, "1 of ") || !strings.Contains(text, "shadow_test.go:") ||
			!strings.Contains(text, "--against ref --target cpu") {
			t.Errorf("%s: %s", name, text)
		}
		if text := s.Seen.String(); s.Seen.Launch != i || !strings.Contains(text, name) {
			t.Errorf("%s: %s", name, text)
		}
		g, weights, err := graph.Load(e.File)
		if err != nil {
			t.Fatal(err)
		}
		out, _, err := ref.Eval(g, weights.Tensors)
		if err != nil {
			t.Fatal(err)
		}
		if len(out) != len(p.Launches[i].Results) || math.Abs(out["result0"].Float(1)-e.Departure.Want) > 1e-6 {
			t.Errorf("%s: the file gives %v, want %v as element 1", name, out, e.Departure.Want)
		}
	}
	s := &watch.Shadow{Every: 1, Folder: filepath.Join(t.TempDir(), "none")}
	s.Begin(len(p.Launches))
	if err := spoiled(t, &watch.Watcher{Program: p, Shadow: s}, 0); !errors.Is(err, os.ErrNotExist) ||
		!strings.Contains(err.Error(), "departs from the reference") {
		t.Errorf("%v", err)
	}
	if text := (watch.Seen{Launches: 4, Launch: -1}).String(); !strings.Contains(text,
		"4 launches compared with the reference, and none departs") {
		t.Error(text)
	}
	if text := (watch.Seen{Launches: 1, Launch: -1}).String(); !strings.Contains(text, "1 launch compared") {
		t.Error(text)
	}
}

// Operands that the target rounds by itself widen the bound of a contraction, and of nothing else.
func TestShadowRounding(t *testing.T) {
	p := three(t)
	for i, found := range []bool{false, true, true} {
		s := &watch.Shadow{Every: 1, Folder: t.TempDir()}
		s.Begin(len(p.Launches))
		if err := spoiled(t, &watch.Watcher{Program: p, Shadow: s, Rounding: 0.5}, i); (err != nil) != found {
			t.Errorf("launch %d: %v", i, err)
		}
	}
}
