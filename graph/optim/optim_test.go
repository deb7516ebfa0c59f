package optim_test

import (
	"math"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/optim"
)

func TestSchedules(t *testing.T) {
	for _, c := range []struct {
		name string
		s    optim.Schedule
		want map[int]float64
	}{
		{"constant", optim.Constant(0.3), map[int]float64{0: 0.3, 99: 0.3}},
		{"step decay", optim.StepDecay(0.8, 0.5, 10), map[int]float64{0: 0.8, 9: 0.8, 10: 0.4, 25: 0.2}},
		{"linear", optim.Linear(1, 0.5, 10), map[int]float64{0: 1, 5: 0.75, 10: 0.5, 11: 0.5}},
		{"linear of no steps", optim.Linear(1, 0.5, 0), map[int]float64{0: 0.5}},
		{"cosine", optim.Cosine(1, 0, 8), map[int]float64{0: 1, 2: (1 + math.Sqrt2/2) / 2, 4: 0.5, 8: 0, 100: 0}},
		{"inverse root", optim.InverseSqrt(0.6), map[int]float64{0: 0.6, 3: 0.3, 8: 0.2}},
		{"warm-up", optim.Warmup(4, optim.StepDecay(1, 0.1, 2)), map[int]float64{0: 0.25, 3: 1, 4: 1, 5: 1, 6: 0.1}},
		{"warm-up and cosine", optim.WarmupCosine(2, 0.2, 10, 110), map[int]float64{0: 0.2, 9: 2, 10: 2, 60: 1.1,
			110: 0.2, 500: 0.2}},
	} {
		for step, want := range c.want {
			if got := c.s(step); math.Abs(got-want) > 1e-15 {
				t.Errorf("%s: step %d has the rate %v, want %v", c.name, step, got, want)
			}
		}
	}
}

func TestDecayMatrices(t *testing.T) {
	for _, c := range []struct {
		dims []int
		no   bool
	}{{nil, true}, {[]int{7}, true}, {[]int{1, 7, 1, 1}, true}, {[]int{7, 2}, false}, {[]int{4, 1, 3, 3}, false}} {
		if g := optim.DecayMatrices("w", graph.TypeOf(graph.F32, c.dims...)); g.NoDecay != c.no || g.Frozen ||
			g.Rate != 0 {
			t.Errorf("%v is in the group %+v", c.dims, g)
		}
	}
}

// twoMoments gives one moment for the two that it names.
type twoMoments struct{ optim.SGD }

func (twoMoments) Moments() []string { return []string{"a", "b"} }

func (twoMoments) Step(_ *graph.Builder, _ optim.Now, w, _ *graph.Node, m []*graph.Node) (*graph.Node, []*graph.Node) {
	return w, m[:1]
}

// TestAppendRefuses names what does not fit.
func TestAppendRefuses(t *testing.T) {
	ok := optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(1)}
	scaled, odd := ok, ok
	scaled.LossScale.Initial = 2
	odd.Rule = twoMoments{}
	for _, c := range []struct {
		o     optim.Optimizer
		want  string
		build func(b *graph.Builder) []optim.Pair
	}{
		{optim.Optimizer{}, "has no rule", func(*graph.Builder) []optim.Pair { return nil }},
		{ok, "no parameter to change", func(*graph.Builder) []optim.Pair { return nil }},
		{ok, `gradient of param "w" (optim_test.go:`, func(b *graph.Builder) []optim.Pair {
			return []optim.Pair{{b.Param("w", graph.TypeOf(graph.F32, 3)), b.Input("g", graph.TypeOf(graph.F32, 4))}}
		}},
		{ok, "is f64[3], which does not fit f32[3]", func(b *graph.Builder) []optim.Pair {
			return []optim.Pair{{b.Param("w", graph.TypeOf(graph.F32, 3)), b.Input("g", graph.TypeOf(graph.F64, 3))}}
		}},
		{ok, `a source named "optim/rate"`, func(b *graph.Builder) []optim.Pair {
			return []optim.Pair{{b.Param("w", graph.TypeOf(graph.F32, 3)), b.Input("optim/rate",
				graph.TypeOf(graph.F32, 3))}}
		}},
		{scaled, "made without the loss scale", func(b *graph.Builder) []optim.Pair {
			return []optim.Pair{{b.Param("w", graph.TypeOf(graph.F32, 3)), b.Input("g", graph.TypeOf(graph.F32, 3))}}
		}},
		{ok, `is updated by the graph`, func(b *graph.Builder) []optim.Pair {
			w := b.Param("w", graph.TypeOf(graph.F32, 3))
			b.Update(w, b.Unary(graph.Neg, w))
			return []optim.Pair{{w, w}}
		}},
		{odd, "gives 1 new moments for 2", func(b *graph.Builder) []optim.Pair {
			return []optim.Pair{{b.Param("w", graph.TypeOf(graph.F32, 3)), b.Input("g", graph.TypeOf(graph.F32, 3))}}
		}},
	} {
		b := graph.NewBuilder("")
		pairs := c.build(b)
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.o.Append(g, pairs, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want one about %s", err, c.want)
		}
	}
}

// TestAppend leaves a graph that is well formed, with updates for the parameter and every state.
func TestAppend(t *testing.T) {
	o := optim.Optimizer{Rule: optim.AdamW{}, Rate: optim.Constant(1), Clip: 1, Accumulate: 2,
		LossScale: optim.LossScale{Initial: 4, GrowAfter: 3}}
	b := graph.NewBuilder("step")
	w, cost := b.Param("w", graph.TypeOf(graph.F32, 2, 3)), b.Input("cost", graph.TypeOf(graph.F32))
	grad := b.Input("g", graph.TypeOf(graph.F32, 6))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	if seed, err := o.Seed(g, cost, nil); err != nil || seed.Type != cost.Type {
		t.Fatalf("the seed is %v, %v", seed, err)
	}
	if err := o.Append(g, []optim.Pair{{w, grad}}, []*graph.Node{cost}); err != nil {
		t.Fatal(err)
	}
	if err := graph.Verify(g); err != nil {
		t.Fatal(err)
	}
	updated := map[*graph.Node]bool{}
	for _, u := range g.Updates {
		updated[u.Target] = true
	}
	for _, n := range g.Sources() {
		if _, input := n.Op.(graph.Input); !input && !updated[n] {
			t.Errorf("%v is not updated", n)
		}
	}
	for _, name := range []string{optim.StepState, optim.SkippedState, optim.ScaleState,
		optim.MomentState("mean", "w"), optim.MomentState("sum", "w")} {
		if g.Lookup(name) == nil {
			t.Errorf("no state %q", name)
		}
	}
}
