package cpu_test

import (
	"errors"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/lowering"
	"fusec/lowering/cpu"
	"fusec/lowering/preparedtest"
	"fusec/passes/passtest"
)

func TestPrepared(t *testing.T) {
	workers := 0
	preparedtest.Random(t, seeds(300), func(t *testing.T, g *graph.Graph) (lowering.Executable, *lowering.Program) {
		workers++
		d := cpu.New(cpu.Workers(1 + workers%3))
		p := passtest.Lowered(t, g, d, true)
		checkPlan(t, p)
		e, err := d.Compile(p)
		if err != nil {
			t.Fatal(err)
		}
		return e, p
	})
}

// normed is a layer whose weights are scaled and transposed.
func normed(b *graph.Builder) {
	w := b.Param("w", graph.TypeOf(graph.F32, 5, 7))
	s := b.Unary(graph.Exp, b.Param("s", graph.TypeOf(graph.F32, 7)))
	w = b.Add(graph.Softmax{Axis: 1}, b.Binary(graph.Mul, w, b.Broadcast(s, w.Type.Shape)))
	b.Output("y", b.MatMul(b.Input("x", graph.TypeOf(graph.F32, 3, 7)), w, false, true))
}

// TestPreparedMemory counts the prepared values, and holds that the next program of the same kernels computes its own.
func TestPreparedMemory(t *testing.T) {
	g := built(t, normed)
	in := values(g)
	e, p := compiledOf(t, g, in, true)
	if p.Prepared == 0 || p.PreparedBytes == 0 || e.Memory().Prepared != p.PreparedBytes {
		t.Fatalf("%d bytes are prepared\n%v", e.Memory().Prepared, p)
	}
	run := func(e lowering.Executable) float64 {
		t.Helper()
		if err := e.Run(); err != nil {
			t.Fatal(err)
		}
		return e.Output(p.Outputs[0].Buffer).Float(4)
	}
	first := run(e)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	again := e.Spare().Executable(p)
	defer again.Close()
	for i, b := range p.Buffers {
		if b.Role <= lowering.State {
			x := in[b.Name].Clone()
			if b.Name == "w" {
				x.SetFloat(30, x.Float(30)+3)
			}
			if err := again.Bind(i, x); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := run(again); got == first {
		t.Error("the values that were prepared for other weights are used")
	}
	if err := again.Bind(bufferOf(t, p, "w"), in["w"]); err != nil {
		t.Fatal(err)
	}
	if got := run(again); got != first {
		t.Errorf("%v from the same weights, want %v", got, first)
	}
}

// TestPreparedFails names the launch of the prepared part that fails, in each run until the parameter is bound again.
func TestPreparedFails(t *testing.T) {
	g := built(t, func(b *graph.Builder) {
		i := b.Named(b.Param("rows", graph.TypeOf(graph.I64, 2)), "rows")
		table := b.Named(b.Add(graph.Gather{}, b.Param("table", graph.TypeOf(graph.F32, 3, 4)), i), "chosen")
		b.Output("y", b.MatMul(b.Input("x", graph.TypeOf(graph.F32, 5, 4)), table, false, true))
	})
	in := values(g)
	in["rows"].SetInt(1, 7)
	e, p := compiledOf(t, g, in, true)
	defer e.Close()
	if p.Prepared != 1 {
		t.Fatal(p)
	}
	for range 2 {
		var failed *lowering.LaunchError
		if err := e.Run(); !errors.As(err, &failed) || failed.Launch != 0 || !strings.Contains(err.Error(), `"chosen"`) {
			t.Fatalf("the error is %v", err)
		}
	}
	in["rows"].SetInt(1, 2)
	if err := e.Bind(bufferOf(t, p, "rows"), in["rows"]); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := e.Run(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPrepare lets go of parameters, and has a second executable read what the first has prepared.
func TestPrepare(t *testing.T) {
	g := built(t, normed)
	in := values(g)
	compiled := func(bound ...string) (lowering.Executable, *lowering.Program) {
		d := cpu.New(cpu.Workers(2))
		p := passtest.Lowered(t, g, d, true)
		e, err := d.Compile(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range bound {
			if err := e.Bind(bufferOf(t, p, name), in[name]); err != nil {
				t.Fatal(err)
			}
		}
		return e, p
	}
	run := func(e lowering.Executable, p *lowering.Program) float64 {
		t.Helper()
		if err := e.Run(); err != nil {
			t.Fatal(err)
		}
		return e.Output(p.Outputs[0].Buffer).Float(4)
	}
	first, p := compiled("w", "s")
	other, _ := compiled("x")
	if other.TakePrepared(first) || other.TakePrepared(other) {
		t.Error("what is not prepared is taken")
	}
	if err := first.Prepare(); err != nil {
		t.Fatal(err)
	}
	if err := first.Run(); err == nil || !strings.Contains(err.Error(), `"x" has no value`) {
		t.Errorf("error %v", err)
	}
	if err := first.Bind(bufferOf(t, p, "x"), in["x"]); err != nil {
		t.Fatal(err)
	}
	want := run(first, p)
	if !other.TakePrepared(first) {
		t.Fatal("what is prepared is not taken")
	}
	if got := run(other, p); got != want || other.Memory().Prepared != 0 || first.Memory().Prepared != p.PreparedBytes {
		t.Errorf("%v, want %v, with %d and %d bytes", got, want, other.Memory().Prepared, first.Memory().Prepared)
	}

	// Values that are let go of are missing when one of them is set again.
	w := in["w"].Clone()
	w.SetFloat(30, w.Float(30)+3)
	bind := func(name string, v *graph.Tensor) {
		t.Helper()
		if err := first.Bind(bufferOf(t, p, name), v); err != nil {
			t.Fatal(err)
		}
	}
	bind("w", w)
	if err := first.Run(); err == nil || !strings.Contains(err.Error(), `"s" has no value`) {
		t.Errorf("error %v", err)
	}
	bind("s", in["s"])
	if got := run(first, p); got == want {
		t.Error("a new weight has no effect")
	}
	if got := run(other, p); got != want {
		t.Errorf("%v of the other, want %v", got, want)
	}
	for _, e := range []lowering.Executable{first, other} {
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if err := e.Prepare(); err == nil {
			t.Error("a closed program is prepared")
		}
	}
}
