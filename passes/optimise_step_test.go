package passes_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/optim"
	"fusec/passes"
	"fusec/passes/passtest"
)

// stepped is two layers with a cost, and what an optimiser is to change.
func stepped(t *testing.T) (*graph.Graph, []passes.Step) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		y := passtest.Linear(b, b.Unary(graph.Tanh, passtest.Linear(b, b.Input("x", passtest.F64(4, 3)), "w1", 5)), "w2", 2)
		b.Output("cost", b.Reduce(graph.Mean, b.Unary(graph.Square, y), false, 0, 1))
	})
	var steps []passes.Step
	for _, name := range []string{"w1", "w1b", "w2", "w2b"} {
		steps = append(steps, passes.Step{Param: g.Lookup(name), Cost: g.Outputs[0].Node})
	}
	return g, steps
}

// TestOptimiseStep compares the updates of the compiled graph with a step written out by hand.
func TestOptimiseStep(t *testing.T) {
	g, steps := stepped(t)
	h, tr, err := passes.Run(g, passes.Config{Verify: true, Optimizer: &optim.Optimizer{Rule: optim.SGD{},
		Rate: optim.Constant(0.1)}, Steps: steps})
	if err != nil {
		t.Fatal(err)
	}
	in := graphtest.Values(rand.New(rand.NewPCG(1, 2)), h)
	in[optim.RateInput].SetFloat(0, 0.25)
	outputs, updates := passtest.Eval(t, h, in)
	if len(outputs) != 2 || outputs["cost"] == nil || outputs[optim.NormOutput] == nil {
		t.Errorf("the outputs are %v", outputs)
	}
	cost := func() float64 {
		out, _ := passtest.Eval(t, g, in)
		return out["cost"].Float(0)
	}
	for _, s := range steps {
		w := in[s.Param.Name]
		for i := range w.Type.Shape.Elems() {
			const e = 1e-5
			v := w.Float(i)
			w.SetFloat(i, v+e)
			up := cost()
			w.SetFloat(i, v-e)
			d := (up - cost()) / (2 * e)
			w.SetFloat(i, v)
			if got := updates[s.Param.Name].Float(i); got-(v-0.25*d) > 1e-8 || got-(v-0.25*d) < -1e-8 {
				t.Errorf("%s[%d] becomes %v, want %v", s.Param.Name, i, got, v-0.25*d)
			}
		}
	}
	if n := passtest.Stage(t, tr, "optimise-step").Notes; len(n) != 1 || !strings.Contains(n[0].Text,
		"optim.SGD changes 4 parameters") {
		t.Errorf("the notes are %v", n)
	}
	// One fusion updates the four parameters, in as many segments.
	merged := 0
	for _, n := range h.Nodes {
		if f, ok := n.Op.(graph.Fusion); ok && len(f.Segments()) == 4 {
			merged++
		}
	}
	if merged != 1 || len(passtest.Stage(t, tr, "merge-launches").Matches) != 1 {
		t.Errorf("%d fusions update all parameters: %s", merged, passtest.Launches(h))
	}
}

func TestOptimiseStepRefuses(t *testing.T) {
	sgd := &optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(0.1)}
	scaled := &optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(0.1), LossScale: optim.LossScale{Initial: 2}}
	g, steps := stepped(t)
	other := graph.New("other")
	stranger := graph.Extend(other).Param("s", passtest.F64(2))
	for _, c := range []struct {
		cfg  passes.Config
		want string
	}{
		{passes.Config{Steps: steps}, "there is no optimiser"},
		{passes.Config{Optimizer: sgd}, "no parameter to change"},
		{passes.Config{Optimizer: &optim.Optimizer{}, Steps: steps}, "has no rule"},
		{passes.Config{Optimizer: sgd, Steps: steps, Disable: map[string]bool{"optimise-step": true}},
			`pass "optimise-step" cannot be left out: optim.SGD is to change `},
		{passes.Config{Optimizer: sgd, Steps: []passes.Step{{Param: stranger, Cost: steps[0].Cost}}}, "not a node of the graph"},
		{passes.Config{Optimizer: sgd, Steps: []passes.Step{{Cost: steps[0].Cost}}}, "without saying of what"},
		{passes.Config{Optimizer: sgd, Steps: []passes.Step{{Param: steps[0].Param}}}, "without a cost or a gradient"},
		{passes.Config{Optimizer: sgd, Steps: []passes.Step{{Param: g.Lookup("x"), Cost: steps[0].Cost}}}, `a step of input "x"`},
		{passes.Config{Optimizer: scaled, Steps: []passes.Step{{Param: steps[0].Param, Value: steps[0].Param}}},
			"its cost is not known"},
	} {
		if _, _, err := passes.Run(g, c.cfg); err == nil || !strings.Contains(passtest.WithoutLines(err.Error()),
			passtest.WithoutLines(c.want)) {
			t.Errorf("error %v, want one about %s", err, c.want)
		}
	}
	// A cost through which no gradient can be taken.
	var opaque passes.Step
	h := graphtest.Built(t, func(b *graph.Builder) {
		w := b.Param("w", passtest.F64(3))
		y := b.Add(graph.Host{Name: "mystery", Type: passtest.F64()}, w)
		b.Output("cost", y)
		opaque = passes.Step{Param: w, Cost: y}
	})
	if _, _, err := passes.Run(h, passes.Config{Optimizer: scaled, Steps: []passes.Step{opaque}}); err == nil ||
		!strings.Contains(err.Error(), `has no gradient`) {
		t.Errorf("error %v", err)
	}
}

// TestMergeLaunches says which launches become one.
func TestMergeLaunches(t *testing.T) {
	scaled := func(b *graph.Builder, x *graph.Node, by float64) *graph.Node {
		return b.Unary(graph.Tanh, b.BinaryScalar(graph.Mul, x, by))
	}
	for _, c := range []struct {
		name  string
		build func(b *graph.Builder)
		want  string
	}{
		{"several shapes", func(b *graph.Builder) {
			b.Output("y", scaled(b, b.Input("x", passtest.F64(3, 4)), 2))
			b.Output("v", scaled(b, b.Input("u", passtest.F64(7)), 2))
		}, "elementwise{mul tanh mul tanh}"},
		{"seen through a view", func(b *graph.Builder) {
			b.Output("y", scaled(b, b.Transpose(b.Input("x", passtest.F64(3, 4)), 1, 0), 2))
			b.Output("v", scaled(b, b.Input("u", passtest.F64(7)), 2))
		}, "elementwise{transpose[1,0] mul tanh mul tanh}"},
		{"handed out through a view", func(b *graph.Builder) {
			b.Output("y", b.Reshape(scaled(b, b.Input("x", passtest.F64(3, 4)), 2), 12))
			b.Output("v", scaled(b, b.Input("u", passtest.F64(7)), 2))
		}, "elementwise{mul tanh mul tanh}"},
		{"other constants", func(b *graph.Builder) {
			b.Output("y", scaled(b, b.Input("x", passtest.F64(3, 4)), 2))
			b.Output("v", scaled(b, b.Input("u", passtest.F64(7)), 3))
		}, "elementwise{mul tanh} elementwise{mul tanh}"},
		{"other operations", func(b *graph.Builder) {
			b.Output("y", scaled(b, b.Input("x", passtest.F64(3, 4)), 2))
			b.Output("v", b.Unary(graph.Exp, b.BinaryScalar(graph.Mul, b.Input("u", passtest.F64(7)), 2)))
		}, "elementwise{mul tanh} elementwise{mul exp}"},
		{"other element types", func(b *graph.Builder) {
			b.Output("y", scaled(b, b.Input("x", passtest.F64(3, 4)), 2))
			b.Output("v", scaled(b, b.Input("u", graph.TypeOf(graph.F32, 7)), 2))
		}, "elementwise{mul tanh} elementwise{mul tanh}"},
		{"a value that something waits for", func(b *graph.Builder) {
			y := scaled(b, b.Input("x", passtest.F64(3, 4)), 2)
			b.Output("y", y)
			b.Output("sorted", b.Add(graph.Concat{Axis: 0}, y, y))
			b.Output("v", scaled(b, b.Input("u", passtest.F64(7)), 2))
		}, "elementwise{mul tanh} concat elementwise{mul tanh}"},
		{"operands in another order", func(b *graph.Builder) {
			x, y := b.Input("x", passtest.F64(3)), b.Input("y", passtest.F64(3))
			b.Output("a", b.Binary(graph.Sub, b.Unary(graph.Exp, x), y))
			u, v := b.Input("u", passtest.F64(5)), b.Input("v", passtest.F64(5))
			b.Output("b", b.Binary(graph.Sub, v, b.Unary(graph.Exp, u)))
		}, "elementwise{exp sub} elementwise{exp sub}"},
		{"rounded inputs that products read, and others that are widened again", func(b *graph.Builder) {
			y := b.CastTo(graph.BF16, b.Input("x", graph.TypeOf(graph.F32, 3, 4)))
			y = b.MatMul(y, b.CastTo(graph.BF16, b.Input("w", graph.TypeOf(graph.F32, 4, 5))), false, false)
			u := b.CastTo(graph.F32, b.CastTo(graph.BF16, b.Input("u", graph.TypeOf(graph.F32, 7))))
			v := b.CastTo(graph.F32, b.CastTo(graph.BF16, b.Input("v", graph.TypeOf(graph.F32, 8))))
			b.Output("y", y)
			b.Output("uv", b.Add(graph.Concat{Axis: 0}, u, v))
		}, "elementwise{cast bf16 cast f32 cast bf16 cast f32} concat elementwise{cast bf16 cast bf16} matmul{matmul}"},
		{"several results", func(b *graph.Builder) {
			for _, n := range []string{"1", "2", "3"} {
				x := b.Input("x"+n, passtest.F64(len(n), 5))
				y := b.Unary(graph.Exp, x)
				b.Output("y"+n, y)
				b.Output("z"+n, b.Unary(graph.Sqrt, y))
			}
		}, "elementwise{exp sqrt exp sqrt exp sqrt}"},
	} {
		h, _ := passtest.Run(t, graphtest.Built(t, c.build), passes.Config{})
		if got := passtest.Launches(h); !sameWords(got, c.want) {
			t.Errorf("%s: left %s, want %s", c.name, got, c.want)
		}
	}
}

// sameWords compares lists of launches in any order.
func sameWords(a, b string) bool {
	count := map[string]int{}
	for _, w := range strings.SplitAfter(a, "} ") {
		count[strings.TrimSpace(w)]++
	}
	for _, w := range strings.SplitAfter(b, "} ") {
		count[strings.TrimSpace(w)]--
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return true
}
