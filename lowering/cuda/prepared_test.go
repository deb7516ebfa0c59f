package cuda_test

import (
	"strings"
	"testing"

	"fusec/graph"
	"fusec/lowering"
	"fusec/lowering/cuda"
	"fusec/lowering/preparedtest"
)

func TestPrepared(t *testing.T) {
	i := 0
	preparedtest.Random(t, uint64(4*effort), func(t *testing.T, g *graph.Graph) (lowering.Executable, *lowering.Program) {
		i++
		gpu, compiler := open(t)
		opts := []cuda.Option{cuda.On(gpu, compiler)}
		if i%3 == 0 {
			opts = append(opts, cuda.Apart(), cuda.Each())
		}
		d := cuda.New(opts...)
		p := loweredOf(t, g, d, true)
		var sources []string
		for _, s := range d.Sources(p) {
			sources = append(sources, s.Text)
		}
		ready(t, compiler, sources, gpu.Chip())
		e, err := d.Compile(p)
		if err != nil {
			t.Fatal(err)
		}
		return e, p
	})
}

// TestPreparedHost has a launch of the prepared part run on the processor, fails in one on the GPU, and measures the run
// after a parameter was bound again.
func TestPreparedHost(t *testing.T) {
	g := built(t, func(b *graph.Builder) {
		i := b.Param("rows", graph.TypeOf(graph.I64, 2))
		table := b.Named(b.Add(graph.Gather{}, b.Param("table", graph.TypeOf(graph.F64, 3, 4)), i), "chosen")
		w := b.CastTo(graph.F32, b.MatMul(b.Param("v", graph.TypeOf(graph.F64, 5, 2)), table, false, false))
		b.Output("y", b.MatMul(b.Input("x", graph.TypeOf(graph.F32, 3, 5)), w, false, false))
	})
	in := map[string]*graph.Tensor{"rows": graph.NewTensor(graph.TypeOf(graph.I64, 2)), "table": graph.Filled(graph.TypeOf(graph.F64, 3, 4), 2),
		"v": graph.Filled(graph.TypeOf(graph.F64, 5, 2), 3), "x": graph.Filled(graph.TypeOf(graph.F32, 3, 5), 1)}
	in["rows"].SetInt(1, 5)
	e, p := compiledOf(t, g, in, true)
	if p.Prepared < 2 || e.Memory().Prepared != p.PreparedBytes {
		t.Fatal(p)
	}
	for range 2 {
		if err := e.Run(); err == nil || !strings.Contains(err.Error(), `"chosen"`) {
			t.Fatalf("the error is %v", err)
		}
	}
	bind := func(name string) {
		t.Helper()
		if err := e.Bind(bufferOf(t, p, name), in[name]); err != nil {
			t.Fatal(err)
		}
	}
	is := func(want float64) {
		t.Helper()
		if got := e.Output(p.Outputs[0].Buffer).Float(7); got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
	in["rows"].SetInt(1, 2)
	bind("rows")
	run(t, e)
	is(60)
	in["v"].SetFloat(0, 8)
	bind("v")
	if _, err := e.Measure(2); err != nil {
		t.Fatal(err)
	}
	run(t, e)
	is(70)
}
