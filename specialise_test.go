package fusec_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"fusec"
	"fusec/graph"
)

// rowsOf is x·w for x [n, 2], repeated by the value of times, for Specialise. It counts its calls.
func rowsOf(calls *atomic.Int32) func(in map[string]*graph.Tensor) (fusec.Specialisation, error) {
	return func(in map[string]*graph.Tensor) (fusec.Specialisation, error) {
		calls.Add(1)
		x, times := in["x"], in["times"]
		if x.Type.Shape.Rank() != 2 {
			return fusec.Specialisation{}, fmt.Errorf("x is %v, not a matrix", x.Type)
		}
		s := fusec.Specialisation{Weights: map[string]*graph.Tensor{"w": graph.Filled(f32(2, 3), 0.5)}}
		b := graph.NewBuilder("rows")
		y := b.MatMul(b.Input("x", x.Type), b.Param("w", f32(2, 3)), false, false)
		if times != nil {
			b.Input("times", times.Type)
			parts := make([]*graph.Node, times.Int(0))
			for i := range parts {
				parts[i] = y
			}
			y = b.Add(graph.Concat{Axis: 0}, parts...)
			s.Fixed = []string{"times"}
		}
		b.Output("y", y)
		var err error
		s.Graph, err = b.Graph()
		return s, err
	}
}

func specialised(t *testing.T, build func(map[string]*graph.Tensor) (fusec.Specialisation, error),
	opts ...fusec.SpecialiseOption) *fusec.Specialised {
	t.Helper()
	s, err := fusec.Specialise(build, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// checkRows runs n rows of v and compares with their sum.
func checkRows(s *fusec.Specialised, n int, v float64) error {
	out, err := s.Run(map[string]*graph.Tensor{"x": graph.Filled(f32(n, 2), v)})
	if err != nil {
		return err
	}
	if y := out["y"]; y.Type != f32(n, 3) || y.Float(0) != v || y.Float(3*n-1) != v {
		return fmt.Errorf("%d rows of %v: %v of type %v", n, v, y.Data, y.Type)
	}
	return nil
}

// TestSpecialise compiles once for each shape and keeps the programs used last.
func TestSpecialise(t *testing.T) {
	var calls atomic.Int32
	s := specialised(t, rowsOf(&calls), fusec.WithKept(2), fusec.WithWorkers(1))
	for i, c := range []struct{ rows, compiled int }{{1, 1}, {2, 2}, {1, 2}, {3, 3}, {1, 3}, {2, 4}, {3, 5}, {2, 5}} {
		if err := checkRows(s, c.rows, float64(i)); err != nil {
			t.Fatal(err)
		}
		if s.Compiled() != c.compiled {
			t.Errorf("run %d, %d rows: %d compiled, want %d", i, c.rows, s.Compiled(), c.compiled)
		}
	}
	launches := 0
	x := map[string]*graph.Tensor{"x": graph.Filled(f32(2, 2), 1)}
	if err := s.With(x, func(p *fusec.Program) error { launches = len(p.Fusions()); return nil }); err != nil || launches != 1 {
		t.Errorf("%d launches, %v", launches, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := checkRows(s, 2, 1); err == nil || !strings.Contains(err.Error(), "the program is closed") {
		t.Errorf("a run after Close: %v", err)
	}
}

// TestSpecialiseValues compiles again for another value of an input that the graph depends on.
func TestSpecialiseValues(t *testing.T) {
	var calls atomic.Int32
	s := specialised(t, rowsOf(&calls))
	times := graph.NewTensor(graph.TypeOf(graph.I64, 1)) // changed in place between runs
	for i, c := range []struct{ times, compiled int }{{2, 1}, {3, 2}, {2, 2}, {3, 2}} {
		times.SetInt(0, int64(c.times))
		out, err := s.Run(map[string]*graph.Tensor{"x": graph.Filled(f32(1, 2), 1), "times": times})
		if err != nil {
			t.Fatal(err)
		}
		if out["y"].Type != f32(c.times, 3) || s.Compiled() != c.compiled {
			t.Errorf("run %d, %d times: %v, %d compiled", i, c.times, out["y"].Type, s.Compiled())
		}
	}
}

// TestSpecialiseShared runs several shapes in several goroutines, with fewer programs kept than there are shapes.
func TestSpecialiseShared(t *testing.T) {
	var calls atomic.Int32
	s := specialised(t, rowsOf(&calls), fusec.WithKept(2), fusec.WithWorkers(1))
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			for k := range 30 {
				if err := checkRows(s, 1+(i/2+k/10)%3, float64(1+i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if err := s.Close(); err != nil {
		t.Error(err)
	}

	// Those that come together compile once.
	calls.Store(0)
	s = specialised(t, rowsOf(&calls))
	for range 8 {
		all.Go(func() {
			if err := checkRows(s, 5, 2); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if calls.Load() != 1 || s.Compiled() != 1 {
		t.Errorf("%d built, %d compiled", calls.Load(), s.Compiled())
	}

	// A program that is in use while Close is called is closed when its run ends.
	x := map[string]*graph.Tensor{"x": graph.Filled(f32(5, 2), 1)}
	err := s.With(x, func(p *fusec.Program) error {
		if err := s.Close(); err != nil {
			return err
		}
		return p.Exec()
	})
	if err != nil {
		t.Error(err)
	}
}

// TestSpecialiseRefuses lists what is wrong, and that a function that failed is asked again.
func TestSpecialiseRefuses(t *testing.T) {
	var calls atomic.Int32
	if _, err := fusec.Specialise(nil); err == nil || !strings.Contains(err.Error(), "no function that builds") {
		t.Error(err)
	}
	for want, opt := range map[string]fusec.SpecialiseOption{
		"WithKept(0): want at least 1":    fusec.WithKept(0),
		"option 0 is nil":                 nil,
		"WithFrozenParams is for mach":    fusec.SpecialiseOption(fusec.WithFrozenParams()),
		"is for Compile":                  fusec.SpecialiseOption(fusec.WithGradient("d", nil, nil)),
		"WithWorkers(0): want at least 1": fusec.WithWorkers(0),
	} {
		if _, err := fusec.Specialise(rowsOf(&calls), opt); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if _, err := fusec.Compile(built(t, linearGraph()), fusec.CompileOption(fusec.WithKept(2))); err == nil ||
		!strings.Contains(err.Error(), "WithKept is for Specialise") {
		t.Error(err)
	}
	graphOf := func(g func(b *graph.Builder, x *graph.Node), fixed ...string) func(map[string]*graph.Tensor) (fusec.Specialisation,
		error) {
		return func(in map[string]*graph.Tensor) (fusec.Specialisation, error) {
			b := graph.NewBuilder("g")
			g(b, b.Input("x", in["x"].Type))
			made, err := b.Graph()
			return fusec.Specialisation{Graph: made, Fixed: fixed}, err
		}
	}
	fails := errors.New("it fails")
	x := map[string]*graph.Tensor{"x": graph.Filled(f32(2), 1)}
	for want, build := range map[string]func(map[string]*graph.Tensor) (fusec.Specialisation, error){
		"it fails":         func(map[string]*graph.Tensor) (fusec.Specialisation, error) { return fusec.Specialisation{}, fails },
		"the graph is nil": func(map[string]*graph.Tensor) (fusec.Specialisation, error) { return fusec.Specialisation{}, nil },
		"is state, which": graphOf(func(b *graph.Builder, x *graph.Node) {
			b.Output("y", b.Binary(graph.Add, x, b.State("s", f32(2))))
		}),
		"updates parameters": graphOf(func(b *graph.Builder, x *graph.Node) {
			w := b.Param("w", f32(2))
			b.Output("y", b.Binary(graph.Add, x, w))
			b.Update(w, x)
		}),
		`"z", which was not given`: graphOf(func(b *graph.Builder, x *graph.Node) { b.Output("y", b.Unary(graph.Neg, x)) }, "z"),
	} {
		s := specialised(t, build)
		for range 2 {
			if _, err := s.Run(x); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q", err, want)
			}
		}
	}
	s := specialised(t, rowsOf(&calls))
	if _, err := s.Run(map[string]*graph.Tensor{"x": nil}); err == nil ||
		!strings.Contains(err.Error(), `no value was given for "x"`) {
		t.Error(err)
	}
	if _, err := s.Run(map[string]*graph.Tensor{"x": graph.Filled(f32(1, 2), 1), "y": graph.Filled(f32(1), 1)}); err == nil ||
		!strings.Contains(err.Error(), `no input, parameter or state "y"`) {
		t.Error(err)
	}
	s = specialised(t, func(map[string]*graph.Tensor) (fusec.Specialisation, error) { panic("no") })
	for range 2 { // the second run does not wait for the first
		func() {
			defer func() {
				if recover() != "no" {
					t.Error("a function that panics did not")
				}
			}()
			s.Run(x)
		}()
	}
}
