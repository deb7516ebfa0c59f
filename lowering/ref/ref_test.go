package ref_test

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	oracle "fusec/kernels/ref"
	"fusec/lowering"
	"fusec/lowering/ref"
	"fusec/passes"
)

// compiled runs the passes for the reference and binds the values.
func compiled(t *testing.T, g *graph.Graph, in map[string]*graph.Tensor) (lowering.Executable, *lowering.Program) {
	t.Helper()
	final, _, err := passes.Run(g, passes.Config{Target: ref.Device{}, Verify: true})
	if err != nil {
		t.Fatal(err)
	}
	p, err := lowering.Lower(final, "ref")
	if err != nil {
		t.Fatal(err)
	}
	e, err := ref.Device{}.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range p.Buffers {
		if b.Role <= lowering.State {
			if err := e.Bind(i, in[b.Name]); err != nil {
				t.Fatal(err)
			}
		}
	}
	return e, p
}

// TestRandomPrograms compares random programs, fused, with the graphs that they were made of, outputs and updates.
func TestRandomPrograms(t *testing.T) {
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 3))
		g := graphtest.Random(r, graphtest.Options{Nodes: 30})
		in := graphtest.Values(r, g)
		want, updates, err := oracle.EvalBound(g, in)
		if err != nil {
			continue // an index out of range
		}
		e, p := compiled(t, g, in)
		if err := e.Run(); err != nil {
			t.Errorf("seed %d: %v", seed, err)
			continue
		}
		for _, o := range p.Outputs {
			if err := oracle.Check(e.Output(o.Buffer), want[o.Name]); err != nil {
				t.Errorf("seed %d: output %s: %v", seed, o.Name, err)
			}
		}
		for _, u := range p.Updates {
			b := p.Buffers[u.Target]
			if err := oracle.Check(in[b.Name], updates[b.Name]); err != nil {
				t.Errorf("seed %d: update of %s: %v", seed, b.Name, err)
			}
		}
	}
}

// counter adds a tenth to a state in each run, and reads a table at an index.
func counter(t *testing.T) (e lowering.Executable, p *lowering.Program, in map[string]*graph.Tensor) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		f := graph.TypeOf(graph.F32, 2)
		s := b.State("s", f)
		next := b.Binary(graph.Add, s, b.Binary(graph.Div, b.Input("one", f), b.Input("ten", f)))
		b.Update(s, next)
		b.Output("y",
			b.Binary(graph.Add, next, b.Add(graph.Gather{Axis: 0}, b.Input("table", f), b.Input("index", graph.TypeOf(graph.I64, 2)))))
	})
	f := graph.TypeOf(graph.F32, 2)
	in = map[string]*graph.Tensor{"s": graph.NewTensor(f), "one": graph.Filled(f, 1), "ten": graph.Filled(f, 10),
		"table": graph.NewTensor(f), "index": graph.NewTensor(graph.TypeOf(graph.I64, 2))}
	e, p = compiled(t, g, in)
	return e, p, in
}

// TestState keeps all digits between runs, until the state is bound again, and leaves it alone when a run fails.
func TestState(t *testing.T) {
	e, p, in := counter(t)
	run := func() float64 {
		t.Helper()
		if err := e.Run(); err != nil {
			t.Fatal(err)
		}
		return in["s"].Float(0)
	}
	for range 9 {
		run()
	}
	if got := run(); got != 1 { // in f32 it is 1.0000001
		t.Errorf("ten times a tenth is %v", got)
	}
	in["index"].SetInt(1, 7)
	var failed *lowering.LaunchError
	if err := e.Run(); !errors.As(err, &failed) || !strings.Contains(err.Error(), "gather") {
		t.Errorf("error %v of an index out of range", err)
	}
	in["index"].SetInt(1, 0)
	if got := in["s"].Float(0); got != 1 {
		t.Errorf("the run that failed left %v", got)
	}
	if got := run(); got != float64(float32(1.1)) {
		t.Errorf("the run after it makes %v", got)
	}
	in["s"].SetFloat(0, 5)
	for i, b := range p.Buffers {
		if b.Name == "s" {
			if err := e.Bind(i, in["s"]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := run(); got != float64(float32(5.1)) {
		t.Errorf("a state that was bound again at 5 becomes %v", got)
	}
}

// TestWatch shows what each launch read and wrote, and ends the run with the error that it is given.
func TestWatch(t *testing.T) {
	e, _, in := counter(t)
	stop := errors.New("enough")
	seen := 0
	e.Watch(func(l *lowering.Launch, value func(lowering.View) (*graph.Tensor, error)) error {
		for _, v := range append(l.Args, l.Results...) {
			x, err := value(v)
			if err != nil || x.Type.Shape != v.Layout.Shape || x.Type.DType != v.DType {
				t.Errorf("view %v shows %v, error %v", v, x, err)
			}
		}
		seen++
		return stop
	})
	if err := e.Run(); err != stop || seen != 1 {
		t.Errorf("error %v after %d launches", err, seen)
	}
	if in["s"].Float(0) != 0 {
		t.Error("the run that was ended wrote the state")
	}
}

// TestErrors names what is missing.
func TestErrors(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		b.Output("y", b.Unary(graph.Exp, b.Input("x", graph.TypeOf(graph.F32, 2))))
	})
	p, err := lowering.Lower(g, "ref")
	if err != nil {
		t.Fatal(err)
	}
	e, err := ref.Device{}.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	wants := func(err error, text string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v, want %q", err, text)
		}
	}
	wants(e.Run(), `input "x" has no value`)
	wants(e.Bind(0, &graph.Tensor{Type: graph.TypeOf(graph.F32, 2), Data: []float32{1}}), "element")
	if err := errors.Join(e.Close(), e.Close()); err != nil {
		t.Error(err)
	}
	wants(e.Run(), "the program is closed")

	_, err = graph.Parse("m.graph", []byte(`fusec graph 1 {
  x = input : f32[3,3]
  y = fusion[anchor=none kind=elementwise] x : f32[3,3] {
    x0 = input : f32[3,3]
    n = unary[fn=neg] x0
    t = transpose[perm=[1,0]] n
    z = binary[fn=add] t x0
    output "" = z
  }
  output y = y
}`), nil)
	wants(err, `transpose "t" (m.graph:6) of a computed value inside a body`)
}

// TestMemory refuses a program before its values are allocated.
func TestMemory(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Broadcast(b.Input("x", graph.TypeOf(graph.F32)), graph.ShapeOf(1<<20, 1<<20))
		b.Output("y", b.Reduce(graph.Sum, b.Unary(graph.Exp, b.Add(graph.Copy{}, x)), false, 0, 1))
	})
	p, err := lowering.Lower(g, "ref")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (ref.Device{}).Compile(p); err == nil || !strings.Contains(err.Error(), "in float64") {
		t.Errorf("error %v of a program of 8 TiB", err)
	}
}
