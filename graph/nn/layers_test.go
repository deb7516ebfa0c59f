package nn_test

import (
	"maps"
	"slices"
	"testing"

	"fusec"
	"fusec/graph/nn"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// block is a transformer block as of Llama: attention and a gated feed-forward network, each after an RMSNorm and
// beside a residual. It returns the value and the weights.
func block(t testing.TB, b *net, x *gorgonia.Node, dim, heads, kvHeads, hidden int) (*gorgonia.Node, gorgonia.Nodes) {
	t.Helper()
	layer, err := nn.NewMultiHeadAttention(b.g, b.d, "attn", dim, heads, kvHeads)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range layer.Params() { // values that are the same for each machine
		gorgonia.WithValue(b.in("", w.Shape()...).Value())(w)
	}
	layer.Options.Causal = true
	layer.Rotary = &nn.RoPEOptions{}
	norm := func(name string, x *gorgonia.Node) (*gorgonia.Node, *gorgonia.Node) {
		gain := b.in(name, dim)
		return must(nn.RMSNorm(x, gain, 1e-6)), gain
	}
	n1, gain1 := norm("gain1", x)
	x = must(gorgonia.Add(x, must(layer.Forward(n1))))
	n2, gain2 := norm("gain2", x)
	w1, w2, w3 := b.in("w1", dim, hidden), b.in("w2", dim, hidden), b.in("w3", hidden, dim)
	h := must(nn.SwiGLU(must(nn.Linear(n2, w1, nil)), must(nn.Linear(n2, w2, nil))))
	y := must(gorgonia.Add(x, must(nn.Linear(h, w3, nil))))
	return y, append(layer.Params(), gain1, gain2, w1, w2, w3)
}

// TestBlock trains a block on both machines for a step.
func TestBlock(t *testing.T) {
	first := map[string][]float64{}
	for _, machine := range machines {
		b := newNet(tensor.Float64)
		x := b.in("x", 2, 5, 8)
		y, weights := block(t, b, x, 8, 4, 2, 12)
		cost := must(nn.CrossEntropy(must(nn.Linear(y, b.in("head", 8, 7), nil)),
			b.floats("labels", []float64{1, 2, 6, 0, -1, 3, 3, 1, 5, 4}, 2, 5)))
		if _, err := gorgonia.Grad(cost, weights...); err != nil {
			t.Fatal(err)
		}
		by := differences(t, b.g, cost, weights[0])
		vm := machine(b.g, gorgonia.BindDualValues(weights...))
		run(t, vm)
		agreeFirst(t, first, "cost", values(t, cost.Value()))
		for i, w := range weights {
			g, err := w.Grad()
			if err != nil {
				t.Fatal(err)
			}
			agreeFirst(t, first, "gradient of "+w.Name(), values(t, g))
			if i == 0 {
				agree(t, "by differences, of "+w.Name(), values(t, g), by, 1e-5)
			}
		}
		if m, ok := vm.(*fusec.Machine); ok {
			if k := kinds(m); !slices.Contains(k, "attention") {
				t.Errorf("no attention among %v", k)
			}
			if backward(m) {
				t.Error("something of Gorgonia's backward pass is left")
			}
		}
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
	}
}

// agreeFirst compares with the value of that name that came first.
func agreeFirst(t *testing.T, first map[string][]float64, name string, got []float64) {
	t.Helper()
	if first[name] == nil {
		first[name] = got
	}
	agree(t, name, got, first[name], 1e-9)
}

// TestBlockLaunches requires a block to be a few launches, each of the expected kind.
func TestBlockLaunches(t *testing.T) {
	b := newNet(tensor.Float32)
	block(t, b, b.in("x", 2, 16, 32), 32, 4, 2, 64)
	m := fusec.NewMachine(b.g)
	defer m.Close()
	run(t, m)
	want := map[string]int{"norm": 2, "linear": 7, "rope": 2, "attention": 1}
	got := map[string]int{}
	for _, k := range kinds(m) {
		got[k]++
	}
	if !maps.Equal(got, want) {
		t.Errorf("launches %v, want %v:\n%v", got, want, m.Program().Lowered())
	}
}

// TestCross attends to a memory of another length, without biases and with dropout, on both machines.
func TestCross(t *testing.T) {
	first := map[string][]float64{}
	for _, machine := range machines {
		b := newNet(tensor.Float64)
		x, memory := b.in("x", 3, 6), b.in("memory", 5, 6)
		m := &nn.MultiHeadAttention{Heads: 3, KVHeads: 1,
			Wq: b.in("wq", 6, 6), Wk: b.in("wk", 6, 2), Wv: b.in("wv", 6, 2), Wo: b.in("wo", 6, 6)}
		m.Options = nn.AttentionOptions{Dropout: 0.25, Seed: nn.NewSeeds(b.g, 1).Next()}
		y := must(m.Cross(x, memory))
		weights := append(m.Params(), x, memory)
		if len(weights) != 6 {
			t.Errorf("%d weights, want 4", len(weights)-2)
		}
		if _, err := gorgonia.Grad(b.cost(y), weights...); err != nil {
			t.Fatal(err)
		}
		vm := machine(b.g, gorgonia.BindDualValues(weights...))
		run(t, vm)
		for _, w := range weights {
			g, err := w.Grad()
			if err != nil {
				t.Fatal(err)
			}
			agreeFirst(t, first, "gradient of "+w.Name(), values(t, g))
		}
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestTraining fits a graph convolution to the classes of five vertices with one of Gorgonia's solvers.
func TestTraining(t *testing.T) {
	b := newNet(tensor.Float32)
	layer, err := nn.NewGraphConv(b.g, b.d, "conv", 3, 4)
	if err != nil {
		t.Fatal(err)
	}
	gorgonia.WithValue(b.in("", 3, 4).Value())(layer.W)
	y := must(layer.Forward(b.in("x", 5, 3), b.ints("source", sources...), b.ints("target", targets...)))
	cost := must(nn.CrossEntropy(y, b.ints("labels", 0, 1, 2, 3, -1)))
	if _, err := gorgonia.Grad(cost, layer.Params()...); err != nil {
		t.Fatal(err)
	}
	m := fusec.NewMachine(b.g, gorgonia.BindDualValues(layer.Params()...))
	defer m.Close()
	solver := gorgonia.NewAdamSolver(gorgonia.WithLearnRate(0.05))
	var losses []float64
	for range 200 {
		run(t, m)
		losses = append(losses, values(t, cost.Value())...)
		if err := solver.Step(gorgonia.NodesToValueGrads(layer.Params())); err != nil {
			t.Fatal(err)
		}
		m.Reset()
	}
	if l := losses[len(losses)-1]; !(l < losses[0]/4) {
		t.Errorf("the loss fell from %v to %v only", losses[0], l)
	}
}
