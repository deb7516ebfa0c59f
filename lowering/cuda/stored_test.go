package cuda_test

import (
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/ref"
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
		want, _, err := ref.EvalBound(g, in)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := e.Run(); err != nil {
				t.Fatalf("%v: %v", d, err)
			}
			if err := ref.Check(e.Output(p.Outputs[0].Buffer), want["y"]); err != nil {
				t.Errorf("%v: %v", d, err)
			}
		}
	}
}
