package passes

import (
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/optim"
	"fusec/kernels/ref"
)

// stepped is two layers with a cost, and what an optimiser is to change.
func stepped(t *testing.T) (*graph.Graph, []Step) {
	g := made(t, func(b *graph.Builder) {
		y := linear(b, b.Unary(graph.Tanh, linear(b, b.Input("x", dt(4, 3)), "w1", 5)), "w2", 2)
		b.Output("cost", b.Reduce(graph.Mean, b.Unary(graph.Square, y), false, 0, 1))
	})
	var steps []Step
	for _, name := range []string{"w1", "w1b", "w2", "w2b"} {
		steps = append(steps, Step{Param: g.Lookup(name), Cost: g.Outputs[0].Node})
	}
	return g, steps
}

// TestOptimiseStep compares the updates of the compiled graph with a step written out by hand.
func TestOptimiseStep(t *testing.T) {
	g, steps := stepped(t)
	h, tr, err := Run(g, Config{Verify: true, Optimizer: &optim.Optimizer{Rule: optim.SGD{},
		Rate: optim.Constant(0.1)}, Steps: steps})
	if err != nil {
		t.Fatal(err)
	}
	in := graphtest.Values(rand.New(rand.NewPCG(1, 2)), h)
	in[optim.RateInput].SetFloat(0, 0.25)
	outputs, updates, err := ref.Eval(h, in)
	if err != nil {
		t.Fatal(err)
	}
	if len(outputs) != 2 || outputs["cost"] == nil || outputs[optim.NormOutput] == nil {
		t.Errorf("the outputs are %v", outputs)
	}
	cost := func() float64 {
		out, _, err := ref.Eval(g, in)
		if err != nil {
			t.Fatal(err)
		}
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
	if n := stageOf(t, tr, "optimise-step").Notes; len(n) != 1 || !strings.Contains(n[0].Text,
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
	if merged != 1 || len(stageOf(t, tr, "merge-launches").Matches) != 1 {
		t.Errorf("%d fusions update all parameters: %s", merged, launches(h))
	}
}

func TestOptimiseStepRefuses(t *testing.T) {
	sgd := &optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(0.1)}
	scaled := &optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(0.1), LossScale: optim.LossScale{Initial: 2}}
	g, steps := stepped(t)
	other := graph.New("other")
	stranger := graph.Extend(other).Param("s", dt(2))
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Steps: steps}, "there is no optimiser"},
		{Config{Optimizer: sgd}, "no parameter to change"},
		{Config{Optimizer: &optim.Optimizer{}, Steps: steps}, "has no rule"},
		{Config{Optimizer: sgd, Steps: steps, Disable: map[string]bool{"optimise-step": true}}, "which is disabled"},
		{Config{Optimizer: sgd, Steps: []Step{{Param: stranger, Cost: steps[0].Cost}}}, "not a node of the graph"},
		{Config{Optimizer: sgd, Steps: []Step{{Cost: steps[0].Cost}}}, "without saying of what"},
		{Config{Optimizer: sgd, Steps: []Step{{Param: steps[0].Param}}}, "without a cost or a gradient"},
		{Config{Optimizer: sgd, Steps: []Step{{Param: g.Lookup("x"), Cost: steps[0].Cost}}}, `a step of input "x"`},
		{Config{Optimizer: scaled, Steps: []Step{{Param: steps[0].Param, Value: steps[0].Param}}},
			"its cost is not known"},
	} {
		if _, _, err := Run(g, c.cfg); err == nil || !strings.Contains(withoutLines(err.Error()),
			withoutLines(c.want)) {
			t.Errorf("error %v, want one about %s", err, c.want)
		}
	}
	// A cost through which no gradient can be taken.
	var opaque Step
	h := made(t, func(b *graph.Builder) {
		w := b.Param("w", dt(3))
		y := b.Add(graph.Host{Name: "mystery", Type: dt()}, w)
		b.Output("cost", y)
		opaque = Step{Param: w, Cost: y}
	})
	if _, _, err := Run(h, Config{Optimizer: scaled, Steps: []Step{opaque}}); err == nil ||
		!strings.Contains(err.Error(), "no gradient that could be made anew") {
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
			b.Output("y", scaled(b, b.Input("x", dt(3, 4)), 2))
			b.Output("v", scaled(b, b.Input("u", dt(7)), 2))
		}, "elementwise{mul tanh mul tanh}"},
		{"seen through a view", func(b *graph.Builder) {
			b.Output("y", scaled(b, b.Transpose(b.Input("x", dt(3, 4)), 1, 0), 2))
			b.Output("v", scaled(b, b.Input("u", dt(7)), 2))
		}, "elementwise{transpose[1,0] mul tanh mul tanh}"},
		{"other constants", func(b *graph.Builder) {
			b.Output("y", scaled(b, b.Input("x", dt(3, 4)), 2))
			b.Output("v", scaled(b, b.Input("u", dt(7)), 3))
		}, "elementwise{mul tanh} elementwise{mul tanh}"},
		{"other operations", func(b *graph.Builder) {
			b.Output("y", scaled(b, b.Input("x", dt(3, 4)), 2))
			b.Output("v", b.Unary(graph.Exp, b.BinaryScalar(graph.Mul, b.Input("u", dt(7)), 2)))
		}, "elementwise{mul tanh} elementwise{mul exp}"},
		{"other element types", func(b *graph.Builder) {
			b.Output("y", scaled(b, b.Input("x", dt(3, 4)), 2))
			b.Output("v", scaled(b, b.Input("u", graph.TypeOf(graph.F32, 7)), 2))
		}, "elementwise{mul tanh} elementwise{mul tanh}"},
		{"a value that something waits for", func(b *graph.Builder) {
			y := scaled(b, b.Input("x", dt(3, 4)), 2)
			b.Output("y", y)
			b.Output("sorted", b.Add(graph.Concat{Axis: 0}, y, y))
			b.Output("v", scaled(b, b.Input("u", dt(7)), 2))
		}, "elementwise{mul tanh} concat elementwise{mul tanh}"},
		{"operands in another order", func(b *graph.Builder) {
			x, y := b.Input("x", dt(3)), b.Input("y", dt(3))
			b.Output("a", b.Binary(graph.Sub, b.Unary(graph.Exp, x), y))
			u, v := b.Input("u", dt(5)), b.Input("v", dt(5))
			b.Output("b", b.Binary(graph.Sub, v, b.Unary(graph.Exp, u)))
		}, "elementwise{exp sub} elementwise{exp sub}"},
		{"several results", func(b *graph.Builder) {
			for _, n := range []string{"1", "2", "3"} {
				x := b.Input("x"+n, dt(len(n), 5))
				y := b.Unary(graph.Exp, x)
				b.Output("y"+n, y)
				b.Output("z"+n, b.Unary(graph.Sqrt, y))
			}
		}, "elementwise{exp sqrt exp sqrt exp sqrt}"},
	} {
		h, _ := run(t, made(t, c.build), Config{})
		if got := launches(h); !sameWords(got, c.want) {
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
