package participants_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec"
	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/emulator"
)

// on compiles for two devices of a target; GPUs are emulated.
func on(t testing.TB, target string) fusec.CompileOption {
	t.Helper()
	if target == "cpu" {
		return fusec.CompileOption(fusec.WithDevices("cpu", "cpu"))
	}
	return fusec.CompileOption(fusec.WithTarget("cuda:0,cuda:1",
		cuda.Driver(func(int) (driver.GPU, driver.Compiler, error) { return emulator.Open(emulator.Options{}) })))
}

func equal(t testing.TB, what string, got, want []float64) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

// TestFails names the participant that failed, and the user's node. A program without state runs again.
func TestFails(t *testing.T) {
	build := func(state bool) *graph.Graph {
		return graphtest.Built(t, func(b *graph.Builder) {
			i := b.Input("i", graph.TypeOf(graph.I64, 4))
			x := b.Named(b.Add(graph.Gather{Axis: 0}, b.Input("x", graph.TypeOf(graph.F32, 3)), i), "picked")
			b.Output("y", b.Reduce(graph.Sum, x, false, 0))
			if state {
				s := b.State("s", graph.TypeOf(graph.F32))
				b.Update(s, b.BinaryScalar(graph.Add, s, 1))
			}
		})
	}
	x := graphtest.Tensor(rand.New(rand.NewPCG(1, 2)), graph.TypeOf(graph.F32, 3))
	split := fusec.WithSplit("i", "data")
	for _, state := range []bool{false, true} {
		p, err := fusec.Compile(build(state), split, on(t, "cpu"))
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		i := graph.NewTensor(graph.TypeOf(graph.I64, 4))
		in := map[string]*graph.Tensor{"x": x, "i": i}
		for _, bad := range []int64{7, 0, 9, 1} {
			i.SetInt(3, bad)
			out, err := p.Run(in)
			if bad > 3 {
				if err == nil || !strings.Contains(err.Error(), "participant 1: launch") || !strings.Contains(err.Error(), "picked") {
					t.Errorf("error %v", err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if want := 3*x.Float(0) + x.Float(int(bad)); math.Abs(out["y"].Float(0)-want) > 1e-5 {
				t.Errorf("the sum is %v, want %v", out["y"].Float(0), want)
			}
		}
		if state {
			if s, err := p.State("s"); err != nil || s.Float(0) != 2 {
				t.Errorf("the state is %v, %v, want 2 runs", s, err)
			}
		}
		if _, err := p.Run(map[string]*graph.Tensor{"i": x}); err == nil ||
			!strings.Contains(err.Error(), "each participant has i64[2]") {
			t.Errorf("error %v", err)
		}
		if err := p.Set("i", nil); err == nil {
			t.Error("no value is accepted")
		}
	}
	p, err := fusec.Compile(build(false), split, on(t, "cuda"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	i := graph.NewTensor(graph.TypeOf(graph.I64, 4))
	i.SetInt(2, -1)
	for _, want := range []string{"participant 1:", "cannot run again, since its GPUs have left their group: participant 1:"} {
		if _, err := p.Run(map[string]*graph.Tensor{"x": x, "i": i}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// TestNonFinite says where NaN came from, whichever participant made it.
func TestNonFinite(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Input("x", graph.TypeOf(graph.F32, 4))
		b.Output("y", b.Reduce(graph.Sum, b.Named(b.Unary(graph.Log, x), "logs"), false, 0))
	})
	p, err := fusec.Compile(g, on(t, "cpu"), fusec.CompileOption(fusec.WithWatchNonFinite()))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for i := range 4 {
		x := graph.NewTensor(graph.TypeOf(graph.F32, 4))
		for j := range 4 {
			x.SetFloat(j, 1)
		}
		if _, err := p.Run(map[string]*graph.Tensor{"x": x}); err != nil {
			t.Fatal(err)
		}
		x.SetFloat(i, -1)
		_, err := p.Run(nil)
		if e := (*fusec.NonFiniteError)(nil); !errors.As(err, &e) || !strings.Contains(e.Node, "logs") {
			t.Errorf("element %d: error %v", i, err)
		}
	}
}

// TestState shares state that is split between two programs, and reads ahead.
func TestState(t *testing.T) {
	adds := func(by float64) *graph.Graph {
		return graphtest.Built(t, func(b *graph.Builder) {
			four := graph.TypeOf(graph.F32, 4)
			x, s, r := b.Input("x", four), b.State("s", four), b.State("r", graph.TypeOf(graph.F32, 3))
			sum := b.Binary(graph.Add, s, b.BinaryScalar(graph.Mul, x, by))
			b.Update(s, sum)
			b.Update(r, b.BinaryScalar(graph.Add, r, by))
			b.Output("y", b.BinaryScalar(graph.Mul, sum, 2))
		})
	}
	for _, name := range []string{"cpu", "cuda"} {
		t.Run(name, func(t *testing.T) {
			var ps [2]*fusec.Program
			for i := range ps {
				p, err := fusec.Compile(adds(float64(1+i)), on(t, name), fusec.WithSplit("s", "data"))
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
				ps[i] = p
			}
			x := graph.NewTensor(graph.TypeOf(graph.F32, 4))
			start := func(p *fusec.Program) {
				t.Helper()
				for i := range 4 { // inputs are read in place, and may be set later
					x.SetFloat(i, -1)
				}
				if err := p.Set("x", x); err != nil {
					t.Fatal(err)
				}
				for i := range 4 {
					x.SetFloat(i, float64(i))
				}
				if err := p.Exec(); err != nil {
					t.Fatal(err)
				}
			}
			start(ps[0])
			if err := ps[1].ShareState(ps[0]); err != nil {
				t.Fatal(err)
			}
			start(ps[1])
			if err := ps[1].Prefetch("x", x); err != nil {
				t.Fatal(err)
			}
			x.SetFloat(3, 100) // after the copy
			if err := ps[1].Exec(); err != nil {
				t.Fatal(err)
			}
			for state, want := range map[string][]float64{"s": {0, 5, 10, 15}, "r": {5, 5, 5}} {
				s, err := ps[1].State(state)
				if err != nil {
					t.Fatal(err)
				}
				equal(t, state, s.Floats(), want)
				whole, err := ps[1].Whole(state)
				if err != nil {
					t.Fatal(err)
				}
				equal(t, state, whole.Floats(), want)
			}
			y, err := ps[1].Output("y")
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "y", y.Floats(), []float64{0, 10, 20, 30})
			ps[1].Profile(true)
			if err := ps[1].Exec(); err != nil {
				t.Fatal(err)
			}
			if m := ps[1].Memory(); len(ps[1].Times()) == 0 || m.Bytes() != ps[1].Bytes() || m.Outputs == 0 || ps[1].Timeline() == nil {
				t.Errorf("times %v, memory %+v", ps[1].Times(), m)
			}
			_, err = ps[1].Measure(2)
			if (err == nil) != (name == "cuda") {
				t.Errorf("measuring: %v", err)
			}
			if i, err := ps[1].Inspect(); err != nil || (i == nil) != (name == "cpu") {
				t.Errorf("inspecting: %v, %v", i, err)
			}
		})
	}
}

// opaqueSum is code that fusec cannot look into.
type opaqueSum struct{}

func (*opaqueSum) Do([]*graph.Tensor) (*graph.Tensor, error) { return graph.Scalar(graph.F64, 0), nil }

// TestRefusesHost refuses code of the user's own, by its name.
func TestRefusesHost(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Input("x", graph.TypeOf(graph.F64, 4))
		b.Output("y", b.Named(b.Add(graph.Host{Name: "sum", Type: graph.TypeOf(graph.F64), Impl: &opaqueSum{}}, x), "mine"))
	})
	if _, err := fusec.Compile(g, on(t, "cpu")); err == nil || !strings.Contains(err.Error(), "mine") ||
		!strings.Contains(err.Error(), "code of the user's own") {
		t.Errorf("error %v", err)
	}
}

// TestRefuses gives the errors of one device, and of the caller.
func TestRefuses(t *testing.T) {
	b := graph.NewBuilder("g")
	x := b.Input("x", graph.TypeOf(graph.F32, 4))
	b.Output("y", b.Unary(graph.Exp, x))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	second := fusec.WithTarget("cuda:0,cuda:1", cuda.Driver(func(i int) (driver.GPU, driver.Compiler, error) {
		if i > 0 {
			return nil, nil, errors.New("it is not there")
		}
		return emulator.Open(emulator.Options{})
	}))
	if _, err := fusec.Compile(g, fusec.CompileOption(second)); err == nil ||
		!strings.Contains(err.Error(), `"cuda:1": it is not there`) {
		t.Errorf("error %v", err)
	}
	p, err := fusec.Compile(g, on(t, "cpu"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Exec(); err == nil || !strings.Contains(err.Error(), `input "x" has no value`) {
		t.Errorf("error %v", err)
	}
	ones, y := graph.Filled(graph.TypeOf(graph.F32, 4), 0), graph.NewTensor(graph.TypeOf(graph.F32, 4))
	if mine, err := p.SetOutput("y", y); err != nil || !mine {
		t.Errorf("memory of the caller's: %v, %v", mine, err)
	}
	if _, err := p.Run(map[string]*graph.Tensor{"x": ones}); err != nil {
		t.Fatal(err)
	}
	equal(t, "y", y.Floats(), []float64{1, 1, 1, 1})
	if p.Counts().Launches != nil {
		t.Error("processors count nothing")
	}
	if _, err := p.State("x"); err == nil {
		t.Error("an input is no state")
	}
	q, err := fusec.Compile(g, on(t, "cuda"))
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Prefetch("x", graph.NewTensor(graph.TypeOf(graph.F32, 3))); err == nil {
		t.Error("another type is copied ahead")
	}
	if err := q.Prefetch("x", ones); err != nil {
		t.Error(err)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	if err := q.Exec(); err == nil {
		t.Error("a closed program runs")
	}
}
