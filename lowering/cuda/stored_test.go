package cuda_test

import (
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	kernels "fusec/kernels/cuda"
	"fusec/kernels/ref"
	"fusec/lowering"
	"fusec/lowering/cuda"
)

// TestStored multiplies by weights of few bits: those of i4 and f8 are dequantized on the processor, once, those of i8 by an
// elementwise launch.
func TestStored(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, d := range []graph.DType{graph.I8, graph.I4, graph.F8E4M3, graph.F8E5M2} {
		g := built(t, func(b *graph.Builder) {
			q, scale := b.Param("q", graph.TypeOf(d, 33, 20)), b.Param("scale", graph.TypeOf(graph.F32, 3, 20))
			w := b.Add(graph.Dequantize{Block: 16}, q, scale)
			b.Output("y", b.Unary(graph.Relu, b.MatMul(b.Input("x", graph.TypeOf(graph.F32, 5, 33)), w, false, false)))
		})
		in := graphtest.Values(r, g)
		e, p := compiledOf(t, g, in, true)
		if p.Prepared == 0 {
			t.Errorf("%v: nothing is prepared:\n%v", d, p)
		}
		runsAs(t, g, in, e, p)
	}
}

// runsAs runs a program twice, and compares its output y with the reference.
func runsAs(t *testing.T, g *graph.Graph, in map[string]*graph.Tensor, e lowering.Executable, p *lowering.Program) {
	t.Helper()
	want, _, err := ref.EvalBound(g, in)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := e.Run(); err != nil {
			t.Fatal(err)
		}
		if err := ref.Check(e.Output(p.Outputs[0].Buffer), want["y"]); err != nil {
			t.Errorf("%v: %v", g.Sources()[0].Type, err)
		}
	}
}

// TestStoredFew multiplies few rows of bf16 by weights of few bits as they are stored. Nothing runs on the processor.
func TestStoredFew(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, d := range []graph.DType{graph.I8, graph.I4, graph.F8E4M3, graph.F8E5M2} {
		g := built(t, func(b *graph.Builder) {
			q, scale := b.Param("q", graph.TypeOf(d, 100, 40)), b.Param("scale", graph.TypeOf(graph.F32, 4, 40))
			w := b.Add(graph.Dequantize{Block: 32}, q, scale)
			x := b.CastTo(graph.F32, b.CastTo(graph.BF16, b.Input("x", graph.TypeOf(graph.F32, 5, 100))))
			b.Output("y", b.Unary(graph.Relu, b.MatMul(x, w, false, false)))
		})
		in := graphtest.Values(r, g)
		e, p := compiledOf(t, g, in, true, cuda.Precision(kernels.BF16))
		if p.Prepared != 1 {
			t.Errorf("%v: %d launches are prepared:\n%v", d, p.Prepared, p)
		}
		for _, l := range p.Launches {
			if l.Device != "" {
				t.Errorf("%v: %s runs on the processor: %s", d, l.Op.OpName(), l.Reason)
			}
		}
		runsAs(t, g, in, e, p)
	}
}
