package passes

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/ref"
)

// same reports where two graphs give different values on random inputs. Where the first gives NaN, the second may give
// anything, and a number where the first overflows: a rewrite may be right where arithmetic as written is not.
func same(g, h *graph.Graph, in map[string]*graph.Tensor) error {
	want, wantUp, err := ref.EvalBound(g, in)
	if err != nil {
		return fmt.Errorf("before: %w", err)
	}
	got, gotUp, err := ref.EvalBound(h, in)
	if err != nil {
		return fmt.Errorf("after: %w", err)
	}
	if len(want) != len(got) || len(wantUp) != len(gotUp) {
		return fmt.Errorf("%d outputs and %d updates became %d and %d", len(want), len(wantUp), len(got), len(gotUp))
	}
	for name, w := range want {
		if err := sameValue(w, got[name]); err != nil {
			return fmt.Errorf("output %q: %w", name, err)
		}
	}
	for name, w := range wantUp {
		if err := sameValue(w, gotUp[name]); err != nil {
			return fmt.Errorf("update of %q: %w", name, err)
		}
	}
	return nil
}

func sameValue(want, got ref.Value) error {
	if want.Type != got.Type {
		return fmt.Errorf("type %v became %v", want.Type, got.Type)
	}
	for i, w := range want.I {
		if math.IsInf(magnitude(want, i), 1) {
			continue
		}
		if w != got.I[i] {
			return fmt.Errorf("element %d: %d became %d", i, w, got.I[i])
		}
	}
	eps := 1e-5
	switch want.Type.DType {
	case graph.F64:
		eps = 1e-6 // constants written to six digits
	case graph.BF16, graph.F16:
		eps = want.Type.DType.Epsilon()
	}
	for i, w := range want.F {
		v := got.F[i]
		mag := magnitude(want, i)
		if w == v || math.IsNaN(w) || math.IsInf(w, 0) && !math.IsNaN(v-v) || math.IsInf(mag, 1) || math.Abs(w-v) <= eps*mag {
			continue
		}
		return fmt.Errorf("element %d: %v became %v (± %g)", i, w, v, eps*mag)
	}
	return nil
}

func magnitude(v ref.Value, i int) float64 {
	if v.Mag != nil {
		return v.Mag[i]
	}
	if v.F != nil {
		return math.Abs(v.F[i])
	}
	return 0
}

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
		h, _, err := Run(g, Config{Verify: true})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if err := same(g, h, in); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}
