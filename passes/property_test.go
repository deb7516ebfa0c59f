package passes_test

import (
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/precision"
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
		g := graphtest.Random(r, graphtest.Options{Nodes: 10 + int(seed%60), Allow: func(name string) bool { return name != "host" && name != "fusion" }})
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
