package cuda_test

import (
	"strings"
	"testing"

	"fusec/graph"
	"fusec/lowering"
	"fusec/lowering/cuda"
	"fusec/lowering/preparedtest"
	"fusec/passes/passtest"
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
		p := passtest.Lowered(t, g, d, true)
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
	in := map[string]*graph.Tensor{"rows": graph.NewTensor(graph.TypeOf(graph.I64, 2)),
		"table": graph.Filled(graph.TypeOf(graph.F64, 3, 4), 2),
		"v":     graph.Filled(graph.TypeOf(graph.F64, 5, 2), 3), "x": graph.Filled(graph.TypeOf(graph.F32, 3, 5), 1)}
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

// rounded is two layers whose n·64 weights each are rounded to bf16; if second is set, those of the second are read as they
// are, too.
func rounded(n int, second bool) func(b *graph.Builder) {
	return func(b *graph.Builder) {
		x := b.CastTo(graph.BF16, b.Input("x", graph.TypeOf(graph.F32, 3, 64)))
		w, v := b.Param("w", graph.TypeOf(graph.F32, 64, n)), b.Param("v", graph.TypeOf(graph.F32, n, 64))
		y := b.CastTo(graph.BF16, b.MatMul(x, b.CastTo(graph.BF16, w), false, false))
		b.Output("y", b.Unary(graph.Tanh, b.MatMul(y, b.CastTo(graph.BF16, v), false, false)))
		if second {
			b.Output("z", b.MatMul(b.Input("u", graph.TypeOf(graph.F32, 1, n)), v, false, false))
		}
	}
}

// packed is [rounded] with weights in deep panels, of which the second has edges that are filled up.
func packed(b *graph.Builder) {
	x := b.CastTo(graph.BF16, b.Input("x", graph.TypeOf(graph.F32, 3, 64)))
	product := func(x *graph.Node, name string, k, n int) *graph.Node {
		w := b.Add(graph.PackWeights{To: graph.BF16, Deep: true}, b.Param(name, graph.TypeOf(graph.F32, k, n)))
		return b.Add(graph.PanelMatMul{Columns: n, Deep: true}, x, w)
	}
	y := b.CastTo(graph.BF16, product(x, "w", 64, 2050))
	b.Output("y", b.Unary(graph.Tanh, product(y, "v", 2050, 80)))
}

// TestPreparedReleases holds that what the GPU keeps of weights is at most 1.02 times their bytes in the form that runs read:
// the originals are released, except one that a run reads, and copied again when one of them is bound.
func TestPreparedReleases(t *testing.T) {
	for i, build := range []func(*graph.Builder){rounded(768, false), rounded(768, true), packed} {
		second := i == 1
		g := built(t, build)
		in := values(g)
		gpu, compiler := open(t)
		c := countedGPU(gpu)
		d := cuda.New(cuda.On(c, compiler))
		p := passtest.Lowered(t, g, d, true)
		e, err := d.Compile(p)
		if err != nil || p.Prepared == 0 {
			t.Fatal(err, p)
		}
		defer e.Close()
		for name, v := range in {
			if err := e.Bind(bufferOf(t, p, name), v); err != nil {
				t.Fatal(err)
			}
		}
		kept := func() int64 {
			m := e.Memory()
			return m.Prepared + m.Kernels
		}
		weights := p.PreparedBytes
		if second {
			weights += 768 * 64 * 4
		}
		before := kept()
		for range 2 {
			run(t, e)
			if n := kept(); n != before || n > weights+weights/50 {
				t.Errorf("%d bytes are kept of weights of %d, %d before the run", n, weights, before)
			}
			if c.held["blocks of memory"] != 1 {
				t.Errorf("%d blocks of memory are held", c.held["blocks of memory"])
			}
		}
		first := e.Output(p.Outputs[0].Buffer).Clone()
		for _, scale := range []float64{3, 1} {
			w := in["w"].Clone()
			for i := range w.Type.Shape.Elems() {
				w.SetFloat(i, scale*w.Float(i))
			}
			if err := e.Bind(bufferOf(t, p, "w"), w); err != nil {
				t.Fatal(err)
			}
			run(t, e)
			if same := first.Equal(e.Output(p.Outputs[0].Buffer)); same != (scale == 1) {
				t.Errorf("weights times %v: the same result: %v", scale, same)
			}
		}
	}
}

// TestPreparingMemory holds that temporary values of the prepared part have memory on the GPU only while it runs.
func TestPreparingMemory(t *testing.T) {
	g := built(t, func(b *graph.Builder) {
		half := graph.TypeOf(graph.F32, 64, 384)
		w := b.Add(graph.Concat{Axis: 1}, b.Param("u", half), b.Param("v", half))
		x := b.CastTo(graph.BF16, b.Input("x", graph.TypeOf(graph.F32, 3, 64)))
		b.Output("y", b.MatMul(x, b.CastTo(graph.BF16, w), false, false))
	})
	e, p := compiledOf(t, g, values(g), true)
	if p.PreparingBytes < 64*768*4 || p.ArenaBytes != max(p.PreparingBytes, p.RunningBytes) {
		t.Fatalf("%d bytes while preparing, %d while running\n%v", p.PreparingBytes, p.RunningBytes, p)
	}
	for range 2 {
		m := e.Memory()
		if weights := p.PreparedBytes; m.Arena != p.RunningBytes || m.Prepared+m.Kernels > weights+weights/50 {
			t.Errorf("%+v, of weights of %d bytes", m, weights)
		}
		run(t, e)
	}
}
