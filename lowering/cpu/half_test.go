package cpu_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/lowering/cpu"
	"fusec/passes"
)

// TestHalf runs what the CPU takes of 16 bits: moves, and work in f32 between conversions.
func TestHalf(t *testing.T) {
	for _, d := range []graph.DType{graph.BF16, graph.F16} {
		half := func(dims ...int) graph.Type { return graph.TypeOf(d, dims...) }
		for name, build := range map[string]func(b *graph.Builder){
			"elementwise": func(b *graph.Builder) {
				x := b.CastTo(graph.F32, b.Input("x", half(7, 33)))
				y := b.Unary(graph.Tanh, b.CastTo(graph.F32, b.CastTo(d, b.BinaryScalar(graph.Mul, x, 1.1))))
				b.Output("wide", y)
				b.Output("half", b.CastTo(d, y))
			},
			"rows": func(b *graph.Builder) {
				x := b.CastTo(graph.F32, b.Param("x", half(5, 19)))
				b.Output("y", b.CastTo(d, b.Add(graph.Softmax{Axis: 1}, x)))
				b.Output("z", b.Reduce(graph.Sum, b.CastTo(graph.F32, b.CastTo(d, b.Unary(graph.Exp, x))), false, 1))
			},
			"state": func(b *graph.Builder) {
				s := b.State("s", half(4, 6))
				b.Update(s, b.Add(graph.UpdateSlice{Axis: 0}, s, b.CastTo(d, b.Input("x", graph.TypeOf(graph.F32, 1, 6))),
					b.Scalar(graph.I64, 2)))
				b.Output("y", b.Transpose(s, 1, 0))
			},
			"moves": func(b *graph.Builder) {
				x, y := b.Input("x", half(3, 5)), b.Input("y", half(5, 3))
				b.Output("z", b.Add(graph.Concat{Axis: 1}, b.Transpose(y, 1, 0), x))
				b.Output("g", b.Add(graph.Gather{Axis: 0}, x, b.Input("i", graph.TypeOf(graph.I64, 4))))
			},
		} {
			t.Run(d.String()+"/"+name, func(t *testing.T) {
				b := graph.NewBuilder(name)
				build(b)
				g, err := b.Graph()
				if err != nil {
					t.Fatal(err)
				}
				check(t, g, graphtest.Values(rand.New(rand.NewPCG(1, 2)), g), 2)
			})
		}
	}
}

// TestHalfContraction is refused by name.
func TestHalfContraction(t *testing.T) {
	b := graph.NewBuilder("m")
	x := b.Input("x", graph.TypeOf(graph.BF16, 3, 3))
	b.Output("y", b.MatMul(x, x, false, false))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = passes.Run(g, passes.Config{Target: cpu.New()})
	if err == nil || !strings.Contains(err.Error(), "the CPU has no contractions with bf16: it computes in f32 and f64") {
		t.Errorf("error %v", err)
	}
}
