package passes_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/precision"
	"fusec/graph/trace"
	"fusec/kernels/ref"
	"fusec/passes"
	"fusec/passes/passtest"
)

// TestValuesStay runs all passes on random graphs and compares the results with the oracle's.
func TestValuesStay(t *testing.T) {
	n := uint64(400)
	if testing.Short() {
		n = 60
	}
	for seed := range n {
		r := rand.New(rand.NewPCG(seed, 1))
		g := graphtest.Random(r, graphtest.Options{Nodes: 10 + int(seed%60), Steps: seed%16 == 15,
			Allow: func(name string) bool { return name != "host" && name != "fusion" }})
		in := graphtest.Values(r, g)
		h, _, err := passes.Run(g, passes.Config{Verify: true})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if err := passtest.Same(g, h, in); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}

// TestContracts holds the rules to what they say of numbers, class by class, on random graphs with what they look for.
func TestContracts(t *testing.T) {
	n := uint64(150)
	if testing.Short() {
		n = 60
	}
	compared := map[trace.Class]int{}
	for seed := range n {
		c := graphtest.Hostile(seed, func(name string) bool { return name != "host" && name != "fusion" })
		if c.Draw == graphtest.Special {
			continue // a rule may give a number where the written form makes NaN or an infinity on the way
		}
		_, tr, err := passes.Run(c.Graph, passes.Config{})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		classes, err := passtest.Contracts(tr, c.Values())
		if err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		for c, times := range classes {
			compared[c] += times
		}
	}
	for _, c := range []trace.Class{trace.ClassExact, trace.ClassReassociated, trace.ClassApproximate} {
		if compared[c] < 10 {
			t.Errorf("%d stages were compared of the class %s", compared[c], c)
		}
	}
}

// TestContractsOfRounding holds products of rounded operands to what the casts say of each operand.
func TestContractsOfRounding(t *testing.T) {
	for _, p := range []precision.Precision{precision.BF16, precision.F16} {
		for seed := range uint64(20) {
			r := rand.New(rand.NewPCG(seed, 5))
			m, k, n := 1+r.IntN(7), 1+r.IntN(40), 1+r.IntN(7)
			g := graphtest.Built(t, func(b *graph.Builder) {
				b.Output("y", b.MatMul(b.Input("x", f32(m, k)), b.Param("w", f32(k, n)), false, false))
			})
			h, tr, err := passes.Run(g, passes.Config{Precision: p}.RoundingFrom(1))
			if err != nil {
				t.Fatal(err)
			}
			bound := passtest.Stage(t, tr, "precision").Numeric.Bound
			if got, want := passtest.Stage(t, tr, "precision").Numeric, trace.Approximate(p.Half().Epsilon()); got != want {
				t.Errorf("%v: %v, want %v", p, got, want)
			}
			in := graphtest.Values(r, g)
			want, _, err := ref.EvalBound(g, in)
			if err != nil {
				t.Fatal(err)
			}
			got, _ := passtest.Eval(t, h, in)
			for i, y := range want["y"].F {
				if room := ((1+bound)*(1+bound) - 1) * want["y"].Mag[i]; !(math.Abs(got["y"].Float(i)-y) <= room) {
					t.Errorf("%v, seed %d: element %d is %v, want %v ± %v", p, seed, i, got["y"].Float(i), y, room)
				}
			}
		}
	}
}

// TestContractsAreChecked checks that a stage which changes more than it says is found.
func TestContractsAreChecked(t *testing.T) {
	var stages []trace.Stage
	for _, shift := range []float64{0, 0x1p-40, 1} {
		stages = append(stages, trace.Stage{Graph: graphtest.Built(t, func(b *graph.Builder) {
			b.Output("y", b.BinaryScalar(graph.Add, b.Input("x", graph.TypeOf(graph.F64, 3)), 1+shift))
		})})
	}
	in := graphtest.Values(rand.New(rand.NewPCG(1, 1)), stages[0].Graph)
	for _, c := range []struct {
		from, to int
		says     trace.Numeric
		ok       bool
	}{
		{0, 0, trace.Exact, true},
		{0, 1, trace.Exact, false},
		{0, 1, trace.Reassociated.In(graph.F64), true},
		{0, 2, trace.Reassociated.In(graph.F64), false},
		{0, 2, trace.Approximate(1e-5), false},
		{0, 2, trace.Approximate(1), true},
	} {
		from, to := stages[c.from], stages[c.to]
		to.Numeric = c.says
		if _, err := passtest.Contracts(&trace.Trace{Stages: []trace.Stage{from, to}}, in); (err == nil) != c.ok {
			t.Errorf("%v for %v to %v: %v", c.says, graph.Print(from.Graph), graph.Print(to.Graph), err)
		}
	}
}

// TestPrecisionOfRandomGraphs rounds all that can be, however small, and looks only at what the verifier says: values of
// random graphs are too wild to be compared.
func TestPrecisionOfRandomGraphs(t *testing.T) {
	for seed := range uint64(150) {
		g := graphtest.Random(rand.New(rand.NewPCG(seed, 3)), graphtest.Options{Nodes: 30, Floats: graph.F32})
		for _, p := range []precision.Precision{precision.BF16, precision.F16} {
			h, _, err := passes.Run(g, passes.Config{Verify: true, Precision: p}.RoundingFrom(1))
			if err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, graph.Print(g))
			}
			for i, o := range h.Outputs {
				if o.Node.Type != g.Outputs[i].Node.Type {
					t.Fatalf("seed %d: output %q has become %v", seed, o.Name, o.Node.Type)
				}
			}
			for _, u := range h.Updates {
				if u.Value.Type != u.Target.Type {
					t.Fatalf("seed %d: %s is updated with %v", seed, u.Target.Where(), u.Value.Type)
				}
			}
		}
	}
}
