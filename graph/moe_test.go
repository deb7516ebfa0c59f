package graph_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"fusec/graph"
	"fusec/kernels/ref"
	"fusec/kernels/ref/cases"
)

// TestMoEClosed gives closed gates an expert that overflows: it adds nothing, unless every expert sees every token.
func TestMoEClosed(t *testing.T) {
	f := func(dims []int, v ...float64) ref.Value {
		x, err := graph.TensorOf(v, dims...)
		if err != nil {
			t.Fatal(err)
		}
		return ref.FromTensor(x)
	}
	inf := math.Inf(1)
	args := []ref.Value{
		f([]int{2, 1}, 3, 2),                   // x
		f([]int{2, 2}, 0.5, 0, 0, 2),           // gates
		f([]int{1, 1}, 1), f([]int{1, 1}, inf), // w1
		f([]int{1, 1}, 4), f([]int{1, 1}, 1), // w2
	}
	for _, compute := range []func(graph.Op, []ref.Value) ([]ref.Value, error){ref.Op, ref.Decomposed} {
		out, err := compute(graph.MoE{Experts: 2, Activation: graph.Relu}, args)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(out[0].F, []float64{6, inf}) || !slices.Equal(out[1].I, []int64{1, 1}) {
			t.Errorf("y %v, loads %v", out[0].F, out[1].I)
		}
		if out, err = compute(graph.MoE{Experts: 2, Activation: graph.Relu, Dense: true}, args); err != nil {
			t.Fatal(err)
		}
		if !math.IsNaN(out[0].F[0]) || !slices.Equal(out[1].I, []int64{2, 2}) {
			t.Errorf("dense: y %v, loads %v", out[0].F, out[1].I)
		}
	}
}

// TestMoERepeated gives one tensor as several operands, whose gradients add up.
func TestMoERepeated(t *testing.T) {
	b := graph.NewBuilder("repeated")
	x, w := b.Input("x", graph.TypeOf(graph.F64, 2, 2)), b.Input("w", graph.TypeOf(graph.F64, 2, 2))
	y := b.Add(graph.MoE{Experts: 2, Activation: graph.Tanh, Gated: true}, x, x, w, w, w, w, w, w)
	cost := sumAll(b, b.Unary(graph.Square, y))
	b.Output("cost", cost)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	grads, err := graph.Gradients(g, cost, []*graph.Node{x, w})
	if err != nil {
		t.Fatal(err)
	}
	b.Output("dx", grads[0])
	b.Output("dw", grads[1])
	r := rand.New(rand.NewPCG(3, 1))
	small := cases.Arg{Type: x.Type, Lo: -1, Hi: 1}
	in := map[string]*graph.Tensor{"x": small.Draw(r), "w": small.Draw(r)}
	compareWithDifferences(t, g, in, []string{"x", "w"})
}

// TestMoECost counts what is sent: work grows with TopK and not with the number of experts.
func TestMoECost(t *testing.T) {
	flops := func(op graph.MoE) int64 {
		b := graph.NewBuilder("cost")
		x, gates := b.Input("x", graph.TypeOf(graph.F32, 10, 4)), b.Input("gates", graph.TypeOf(graph.F32, 10, op.Experts))
		w1, w2 := graph.TypeOf(graph.F32, op.Experts, 4, 8), graph.TypeOf(graph.F32, op.Experts, 8, 4)
		op.Activation, op.Stacked = graph.Relu, true
		y := b.Add(op, x, gates, b.Param("w1", w1), b.Param("w2", w2))
		b.Output("y", y)
		if _, err := b.Graph(); err != nil {
			t.Fatal(err)
		}
		return graph.CostOf(y).FLOPs
	}
	const pair = 2*4*8 + 8 + 2*8*4 + 2*4
	for _, c := range []struct {
		op   graph.MoE
		want int64
	}{
		{graph.MoE{Experts: 4}, 10 * 4 * pair},
		{graph.MoE{Experts: 4, TopK: 2}, 10 * 2 * pair},
		{graph.MoE{Experts: 64, TopK: 2}, 10 * 2 * pair},
		{graph.MoE{Experts: 2, TopK: 5}, 10 * 2 * pair},
		{graph.MoE{Experts: 4, TopK: 2, Dense: true}, 10 * 4 * pair},
	} {
		if got := flops(c.op); got != c.want {
			t.Errorf("%+v: %d FLOPs, want %d", c.op, got, c.want)
		}
	}
}

// TestMoEWeights finds each weight where the order of the operands says.
func TestMoEWeights(t *testing.T) {
	for _, c := range []struct {
		op       graph.MoE
		operands int
		at       map[graph.MoEWeight]int // of expert 1
	}{
		{graph.MoE{Experts: 3}, 8, map[graph.MoEWeight]int{graph.MoEW1: 3, graph.MoEW2: 6, graph.MoEB1: -1, graph.MoEW3: -1}},
		{graph.MoE{Experts: 2, Gated: true, Bias: true}, 14,
			map[graph.MoEWeight]int{graph.MoEW1: 3, graph.MoEB1: 5, graph.MoEW3: 7, graph.MoEB3: 9, graph.MoEW2: 11,
				graph.MoEB2: 13}},
		{graph.MoE{Experts: 9, Gated: true, Stacked: true}, 5,
			map[graph.MoEWeight]int{graph.MoEW1: 2, graph.MoEW3: 3, graph.MoEW2: 4}},
	} {
		if got := c.op.Operands(); got != c.operands {
			t.Errorf("%+v has %d operands, want %d", c.op, got, c.operands)
		}
		for w, want := range c.at {
			if got := c.op.Weight(w, 1); got != want {
				t.Errorf("%+v: %v stands at %d, want %d", c.op, w, got, want)
			}
		}
	}
}
