package fusec

import (
	"errors"
	"math"
	"strings"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec/graph"
	"fusec/lowering"
)

// scaled is a layer with weights that are scaled row by row.
func scaled(t *testing.T) *graph.Graph {
	t.Helper()
	b := graph.NewBuilder("scaled")
	w := b.Param("w", graph.TypeOf(graph.F32, 3, 4))
	s := b.Named(b.Unary(graph.Log, b.Param("s", graph.TypeOf(graph.F32, 3, 1))), "logarithm")
	w = b.Add(graph.Softmax{Axis: 1}, b.Binary(graph.Mul, w, b.Broadcast(s, w.Type.Shape)))
	b.Output("y", b.Unary(graph.Tanh, b.MatMul(b.Input("x", graph.TypeOf(graph.F32, 2, 4)), w, false, true)))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// prepared compiles the layer and sets all but the scale.
func prepared(t *testing.T, opts ...CompileOption) *Program {
	t.Helper()
	p, err := Compile(scaled(t), opts...)
	if err != nil {
		t.Fatal(err)
	}
	if p.Lowered().Prepared == 0 {
		t.Fatal(p.Lowered())
	}
	x, w := graph.Filled(graph.TypeOf(graph.F32, 2, 4), 0), graph.NewTensor(graph.TypeOf(graph.F32, 3, 4))
	for i := range 12 {
		w.SetFloat(i, float64(i%5))
	}
	x.SetFloat(1, 1)
	for name, v := range map[string]*graph.Tensor{"x": x, "w": w} {
		if err := p.Set(name, v); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// with runs the layer with scales, and checks element 0 of its result.
func with(t *testing.T, p *Program, scale float64) {
	t.Helper()
	if err := p.Set("s", graph.Filled(graph.TypeOf(graph.F32, 3, 1), scale)); err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for i := range 4 {
		sum += math.Exp(float64(i) * math.Log(scale))
	}
	for range 2 {
		out, err := p.Run(nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := out["y"].Float(0), math.Tanh(scale/sum); math.Abs(got-want) > 1e-5 {
			t.Errorf("scale %v: %v, want %v", scale, got, want)
		}
	}
}

// TestPreparedAgain sets a parameter again, and compiles an equal graph for other weights, with new kernels and with those
// of a closed program.
func TestPreparedAgain(t *testing.T) {
	withCache(t, 10, 1<<20)
	p, q := prepared(t), prepared(t)
	with(t, p, 2)
	with(t, q, 3)
	with(t, p, 4)
	with(t, q, 3)
	if err := errors.Join(p.Close(), q.Close()); err != nil {
		t.Fatal(err)
	}
	p = prepared(t)
	defer p.Close()
	with(t, p, 5)
	once := 0
	for _, f := range p.Fusions() {
		if f.Prepared {
			once++
			if !strings.HasSuffix(f.String(), ", prepared once") {
				t.Error(f)
			}
		}
	}
	if once != p.Lowered().Prepared || p.Memory().Prepared == 0 {
		t.Errorf("%d launches and %d bytes are prepared", once, p.Memory().Prepared)
	}
}

// TestPreparedWatched watches, compares and shadows programs with a prepared part: each watched run computes it again.
func TestPreparedWatched(t *testing.T) {
	watched := prepared(t, WithWatchNonFinite(), WithReference())
	defer watched.Close()
	with(t, watched, 2)
	if n := len(watched.Departures()); n != len(watched.Fusions()) {
		t.Errorf("%d departures of %d launches", n, len(watched.Fusions()))
	}
	if err := watched.Set("s", graph.Filled(graph.TypeOf(graph.F32, 3, 1), -1)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var fault *NonFiniteError
		if _, err := watched.Run(nil); !errors.As(err, &fault) || !strings.Contains(fault.Node, "logarithm") {
			t.Fatalf("the error is %v", err)
		}
	}
	with(t, watched, 3)
	shadowed := prepared(t, WithShadow(3, t.TempDir()))
	defer shadowed.Close()
	for range 4 {
		with(t, shadowed, 2)
		with(t, shadowed, 3)
	}
	if shadowed.Shadow().Launches == 0 {
		t.Error("no run was compared")
	}
}

// TestPreparedMachine has weights of a Gorgonia graph pass through work that is done once when they are frozen.
func TestPreparedMachine(t *testing.T) {
	g := gorgonia.NewGraph()
	value := func(v float64) *tensor.Dense {
		return tensor.New(tensor.WithShape(3, 4), tensor.WithBacking([]float64{v, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}))
	}
	x := gorgonia.NewMatrix(g, tensor.Float64, gorgonia.WithShape(2, 4), gorgonia.WithName("x"), gorgonia.WithInit(gorgonia.Ones()))
	w := gorgonia.NewMatrix(g, tensor.Float64, gorgonia.WithShape(3, 4), gorgonia.WithName("w"), gorgonia.WithValue(value(0)))
	u := gorgonia.Must(gorgonia.Transpose(gorgonia.Must(gorgonia.Tanh(w)), 1, 0))
	y := gorgonia.Must(gorgonia.Mul(x, u))
	m := NewMachine(g, WithFrozenParams())
	defer m.Close()
	is := func(v float64) {
		t.Helper()
		for range 2 {
			if err := m.RunAll(); err != nil {
				t.Fatal(err)
			}
			want := math.Tanh(v) + math.Tanh(1) + math.Tanh(2) + math.Tanh(3)
			if got := y.Value().Data().([]float64)[0]; math.Abs(got-want) > 1e-12 {
				t.Errorf("%v: %v, want %v", v, got, want)
			}
			m.Reset()
		}
	}
	is(0)
	if m.Program().Lowered().Prepared == 0 {
		t.Error(m.Program().Lowered())
	}
	if err := gorgonia.Let(w, value(0.5)); err != nil {
		t.Fatal(err)
	}
	is(0.5)
}

// TestPreparedBudget keeps what is prepared out of the memory budget.
func TestPreparedBudget(t *testing.T) {
	b := graph.NewBuilder("budget")
	x := b.Input("x", graph.TypeOf(graph.F32, 8, 32))
	y := x
	for _, name := range []string{"u", "v", "w"} {
		w := b.Add(graph.Softmax{Axis: 1}, b.Unary(graph.Exp, b.Param(name, graph.TypeOf(graph.F32, 32, 32))))
		y = b.Unary(graph.Sin, b.MatMul(y, w, false, false))
	}
	b.Output("y", b.Binary(graph.Add, y, b.Unary(graph.Exp, x)))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	in := map[string]*graph.Tensor{"x": graph.Filled(x.Type, 0.5)}
	for _, name := range []string{"u", "v", "w"} {
		in[name] = graph.Filled(graph.TypeOf(graph.F32, 32, 32), 1)
	}
	var first *graph.Tensor
	for _, opts := range [][]CompileOption{nil, {WithMemoryBudget(1)}} {
		p, err := Compile(g, opts...)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		out, err := p.Run(in)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = out["y"]
		} else if !first.Equal(out["y"]) {
			t.Error("a budget changes the result")
		}
		l := p.Lowered()
		for _, f := range l.Launches[l.Prepared:] {
			for _, v := range f.Args {
				if l.Buffers[v.Buffer].Role == lowering.Temp && l.Buffers[v.Buffer].First < l.Prepared {
					t.Errorf("a run reads a temporary value of the prepared part\n%v", l)
				}
			}
		}
		if l.PreparedBytes != 3*32*32*4 {
			t.Errorf("%d bytes are prepared\n%v", l.PreparedBytes, l)
		}
		for _, s := range p.Trace().Stages {
			if s.Recompute != nil && s.Recompute.After != l.ArenaBytes {
				t.Errorf("recompute counted %d bytes, the arena has %d", s.Recompute.After, l.ArenaBytes)
			}
		}
	}
}

// TestSharePrepared has two programs of one model share what is prepared.
func TestSharePrepared(t *testing.T) {
	first := prepared(t)
	defer first.Close()
	with(t, first, 2)
	if err := first.Prepare(); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"cpu", "ref"} {
		second, err := Compile(scaled(t), WithTarget(target))
		if err != nil {
			t.Fatal(err)
		}
		defer second.Close()
		left := second.SharePrepared(first)
		if target == "ref" {
			if len(left) != 2 || left[0] != "s" || left[1] != "w" {
				t.Errorf("%v have to be set", left)
			}
			continue
		}
		if len(left) != 0 {
			t.Errorf("%v have to be set", left)
		}
		x := graph.Filled(graph.TypeOf(graph.F32, 2, 4), 0)
		x.SetFloat(1, 1)
		if err := second.Set("x", x); err != nil {
			t.Fatal(err)
		}
		if err := second.Exec(); err != nil {
			t.Fatal(err)
		}
		got, err := second.Output("y")
		if err != nil {
			t.Fatal(err)
		}
		want, err := first.Output("y")
		if err != nil || !got.Equal(want) {
			t.Errorf("%v, want %v: %v", got, want, err)
		}
	}
}
