package cpu_test

import (
	"testing"

	"fusec/graph"
	"fusec/kernels/ref"
	"fusec/lowering"
	"fusec/lowering/cpu"
	"fusec/passes"
)

// withCost appends the sum of the first output's squares, as the output "cost".
func withCost(g *graph.Graph) *graph.Node {
	b := graph.Extend(g)
	cost := b.Reduce(graph.Sum, b.Unary(graph.Square, g.Outputs[0].Node), false, 0, 1)
	b.Output("cost", cost)
	return cost
}

// trained is the program of a graph, its cost and the gradients by all sources.
func trained(t testing.TB, g *graph.Graph, d *cpu.Device) *lowering.Program {
	t.Helper()
	cost := withCost(g)
	var gs []passes.Gradient
	for _, n := range g.Sources() {
		gs = append(gs, passes.Gradient{Cost: cost, Of: n, Output: "d " + n.Name})
	}
	final, _, err := passes.Run(g, passes.Config{Target: d, Verify: true, Gradients: gs})
	if err != nil {
		t.Fatal(err)
	}
	p, err := lowering.Lower(final, d.Name())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// checkAttentions looks for the two attentions of a block that is trained, forward and backward, and for no copy.
func checkAttentions(t *testing.T, p *lowering.Program) {
	t.Helper()
	attentions, softmaxes, copies := 0, 0, 0
	for _, l := range p.Launches {
		switch op := l.Op.(type) {
		case graph.Copy:
			copies++
		case graph.Fusion:
			switch op.Kind {
			case graph.KindAttention:
				attentions++
			case graph.KindSoftmax:
				softmaxes++
			}
		}
	}
	if attentions != 2 || softmaxes != 0 || copies != 0 {
		t.Errorf("%d attentions, %d softmaxes and %d copies, want 2, 0 and 0:\n%v", attentions, softmaxes, copies, p)
	}
}

// TestTrainedModel looks at the launches of the transformer block that Gorgonia built.
func TestTrainedModel(t *testing.T) {
	g, err := graph.LoadGraph("../../testdata/models/transformer-block.graph")
	if err != nil {
		t.Fatal(err)
	}
	p := trained(t, g, cpu.New())
	checkAttentions(t, p)
	if len(p.Launches) != 27 {
		t.Errorf("%d launches, want 27:\n%v", len(p.Launches), p)
	}
}

// TestTrainedBlock compares the gradients of a block with those of the original graph.
func TestTrainedBlock(t *testing.T) {
	plain := block(2, 9, 24, 3, 40)
	in := values(plain)
	cost := withCost(plain)
	grads, err := graph.Gradients(plain, cost, plain.Sources())
	if err != nil {
		t.Fatal(err)
	}
	b := graph.Extend(plain)
	for i, n := range plain.Sources() {
		b.Output("d "+n.Name, grads[i])
	}
	want, _, err := ref.EvalBound(plain, in)
	if err != nil {
		t.Fatal(err)
	}

	d := cpu.New(cpu.Workers(2))
	p := trained(t, block(2, 9, 24, 3, 40), d)
	checkAttentions(t, p)
	e, err := d.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for i, b := range p.Buffers {
		if b.Role == lowering.Input || b.Role == lowering.Param {
			if err := e.Bind(i, in[b.Name]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := e.Run(); err != nil {
		t.Fatal(err)
	}
	if len(p.Outputs) != len(want) {
		t.Errorf("%d outputs, want %d", len(p.Outputs), len(want))
	}
	for _, o := range p.Outputs {
		if err := ref.Check(e.Output(o.Buffer), want[o.Name]); err != nil {
			t.Errorf("output %q: %v", o.Name, err)
		}
	}
}

// TestJoinedGradients has the gradients of queries, keys and values written side by side, for the gradient of the layer that makes
// all three.
func TestJoinedGradients(t *testing.T) {
	const batch, steps, heads, depth = 2, 9, 3, 8
	b := graph.NewBuilder("joined")
	head := func(name string) *graph.Node {
		x := b.Input(name, graph.TypeOf(graph.F32, batch, steps, heads*depth))
		return b.Transpose(b.Reshape(x, batch, steps, heads, depth), 0, 2, 1, 3)
	}
	whole := func(x *graph.Node) *graph.Node {
		return b.Reshape(b.Transpose(x, 0, 2, 1, 3), batch, steps, heads*depth)
	}
	q, k, v, dout := head("q"), head("k"), head("v"), head("dout")
	op := graph.Attention{Scale: 0.3, Causal: true}
	out := b.Add(op, q, k, v)
	dq := b.Add(graph.AttentionGrad{Attention: op}, q, k, v, out, b.Add(graph.Result{Index: 1}, out), dout)
	all := b.Add(graph.Concat{Axis: 2}, whole(dq), whole(b.Add(graph.Result{Index: 1}, dq)), whole(b.Add(graph.Result{Index: 2}, dq)))
	x := b.Input("x", graph.TypeOf(graph.F32, batch*steps, 5))
	b.Output("dw", b.MatMul(b.Reshape(all, batch*steps, 3*heads*depth), x, true, false))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	g, _, err = passes.Run(g, passes.Config{Target: cpu.New(), Verify: true})
	if err != nil {
		t.Fatal(err)
	}
	p := check(t, g, values(g), 2)
	for _, l := range p.Launches {
		if _, joins := l.Op.(graph.Concat); joins {
			t.Errorf("the gradients are copied:\n%v", p)
		}
	}
}
