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
	return seen(t, w, func(l *lowering.Launch, v lowering.View, x *graph.Tensor) error {
		if launch >= 0 && l == &w.Program.Launches[launch] && v == l.Results[0] {
			x.SetFloat(1, x.Float(1)+0.125)
		}
		return nil
	})
}

// seen runs a program once on the CPU; a function may change the values that the watcher sees.
func seen(t *testing.T, w *watch.Watcher, change func(*lowering.Launch, lowering.View, *graph.Tensor) error) error {
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
			if err != nil {
				return nil, err
			}
			x = x.Clone()
			return x, change(l, v, x)
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

// TestUnreadable gives the error of a value that cannot be read, whichever value it is.
func TestUnreadable(t *testing.T) {
	p := three(t)
	unreadable := errors.New("the value cannot be read")
	for _, w := range []watch.Watcher{{Compare: true}, {NonFinite: true}, {Shadow: &watch.Shadow{Every: 1}}} {
		w.Program = p
		reads := 0
		for done := false; !done; reads++ {
			if w.Shadow != nil {
				w.Shadow = &watch.Shadow{Every: 1}
				w.Shadow.Begin(len(p.Launches))
			}
			left := reads
			err := seen(t, &w, func(_ *lowering.Launch, v lowering.View, x *graph.Tensor) error {
				if left--; left < 0 {
					return unreadable
				}
				if w.NonFinite && x.Type.DType == graph.F32 {
					x.SetFloat(0, math.Inf(1)) // all values are looked at
				}
				return nil
			})
			if done = !errors.Is(err, unreadable); done && err != nil {
				t.Errorf("%+v: error %v", w, err)
			}
		}
		if reads < 7 {
			t.Errorf("%+v: %d values were read", w, reads-1)
		}
	}
}

// TestShadowIntegers compares a launch whose values are kept as integers with their step as the bound.
func TestShadowIntegers(t *testing.T) {
	p := three(t)
	for name, c := range map[string]struct {
		step, lo, hi float64
		off          bool
	}{
		"as f32":          {0, 0, 0, true},
		"fine steps":      {0.001, -100, 100, true},
		"coarse steps":    {0.25, -100, 100, false},
		"saturated":       {0.001, -0.01, 0.01, false},
		"unknown weights": {-1, -100, 100, false},
	} {
		s := &watch.Shadow{Every: 1, Folder: t.TempDir()}
		s.Begin(len(p.Launches))
		w := &watch.Watcher{Program: p, Shadow: s, Integers: func(buffer int) (step, lo, hi float64) {
			if c.step < 0 { // weights have several
				if p.Buffers[buffer].Role == lowering.Param {
					return 0, 0, 0
				}
				return 0.25, c.lo, c.hi
			}
			return c.step, c.lo, c.hi
		}}
		if err := spoiled(t, w, 0); (err != nil) != c.off {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestLeftOut compares the launches whose operands the target shows; one that it keeps to itself has an empty departure.
func TestLeftOut(t *testing.T) {
	p := three(t)
	w := &watch.Watcher{Program: p, Compare: true}
	exe, err := cpu.New().Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	for i, b := range p.Buffers {
		if b.Role <= lowering.State {
			if err := exe.Bind(i, graph.Filled(b.Type, 0.5)); err != nil {
				t.Fatal(err)
			}
		}
	}
	exe.Watch(func(l *lowering.Launch, value func(lowering.View) (*graph.Tensor, error)) error {
		if l == &p.Launches[1] {
			return nil
		}
		return w.Check(l, value)
	})
	if err := exe.Run(); err != nil {
		t.Fatal(err)
	}
	if len(w.Departures) != 3 || w.Departures[0].Elements == 0 || w.Departures[1].Elements != 0 || w.Departures[2].Elements == 0 {
		t.Errorf("departures %+v", w.Departures)
	}
}
