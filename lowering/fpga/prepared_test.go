package fpga

import (
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/lowering"
)

// TestPrepared multiplies by weights that were scaled and transposed: the overlay takes the product, as the weights are
// known before a run, and its codes are made again when a parameter is bound.
func TestPrepared(t *testing.T) {
	g := built(t, func(b *graph.Builder) {
		s := b.Unary(graph.Tanh, b.Param("s", f32(24)))
		w := b.Param("w", f32(16, 24))
		w = b.Binary(graph.Mul, w, b.Broadcast(s, w.Type.Shape))
		b.Output("y", b.MatMul(b.Input("x", f32(19, 24)), w, false, true))
	})
	e, p := compiledOf(t, g, true)
	if p.Prepared != 2 || len(p.Launches) != 3 || p.Launches[1].Device == "" || p.Launches[2].Device != "" ||
		e.Memory().Prepared == 0 {
		t.Fatal(p)
	}
	run := func() {
		t.Helper()
		for range 2 {
			if err := e.Run(); err != nil {
				t.Fatal(err)
			}
		}
		in := map[string]*graph.Tensor{}
		for i, b := range p.Buffers {
			if b.Role <= lowering.State {
				in[b.Name] = e.tensors[i]
			}
		}
		y := e.Output(p.Outputs[0].Buffer)
		for i := range 19 {
			for j := range 16 {
				want := 0.0
				for k := range 24 {
					want += in["x"].Float(24*i+k) * in["w"].Float(24*j+k) * math.Tanh(in["s"].Float(k))
				}
				if got := y.Float(16*i + j); math.Abs(got-want) > 0.5 {
					t.Errorf("element %d, %d is %v, want %v", i, j, got, want)
				}
			}
		}
	}
	run()
	if e.remade != 1 {
		t.Errorf("the codes were made %d times", e.remade)
	}
	for i, b := range p.Buffers {
		if b.Name == "s" {
			if err := e.Bind(i, graphtest.Tensor(rand.New(rand.NewPCG(3, 4)), b.Type)); err != nil {
				t.Fatal(err)
			}
		}
	}
	e.Profile(true)
	run()
	if e.remade != 2 || e.Times()[0] != 0 {
		t.Errorf("the codes were made %d times, and the last run took %v for the prepared part", e.remade, e.Times()[0])
	}
}
