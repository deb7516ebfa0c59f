package moe_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/lowering/cpu"
	"fusec/passes"
	"fusec/passes/passtest"
)

// composeMoE writes a mixture drawn at random.
func composeMoE(t *testing.T, r *rand.Rand) (*graphtest.MoEWriter, *graph.Graph) {
	t.Helper()
	b := graph.NewBuilder("random")
	one := func(of ...int) int { return of[r.IntN(len(of))] }
	coin := func() bool { return r.IntN(2) == 0 }
	w := &graphtest.MoEWriter{Writer: graphtest.Writer{R: r, B: b, D: []graph.DType{graph.F32, graph.F64}[r.IntN(2)]}}
	lead := []int{one(1, 2, 5)}
	w.Experts, w.Hidden, w.Result = one(2, 3, 5), one(1, 2, 5), one(1, 2, 3)
	if coin() {
		lead = append(lead, one(1, 3))
	}
	w.X = b.Input("x", graph.TypeOf(w.D, append(lead, one(1, 2, 4))...))
	w.Activation = []graph.Unary{{Fn: graph.Relu}, {Fn: graph.Silu}, {Fn: graph.GeluErf}, {Fn: graph.Tanh},
		{Fn: graph.LeakyRelu, Alpha: 0.25}}[r.IntN(5)]
	w.Gated, w.Bias, w.Flat = coin(), coin(), coin()
	b.Output("y", w.Write())
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return w, g
}

// TestMoERandom composes spellings at random. Each becomes one mixture of the same values.
func TestMoERandom(t *testing.T) {
	n := uint64(600)
	if testing.Short() {
		n = 100
	}
	for seed := range n {
		r := rand.New(rand.NewPCG(seed, 21))
		w, g := composeMoE(t, r)
		h, tr, err := passes.Run(g, passes.Config{Verify: true})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		passtest.SameNumbers(t, g, h, graphtest.Values(r, g))
		again := passtest.Stage(t, tr, "simplify-again").Graph
		left := moeOf(again)
		if left == "" || strings.Contains(left, ",") || strings.Contains(left, "dense") == w.Closed ||
			strings.Contains(left, "gated") != w.Gated {
			t.Errorf("%s became %q: %s\nmisses %+v", passtest.Ops(passtest.Stage(t, tr, "raise").Graph), left, passtest.Ops(again),
				passtest.Stage(t, tr, "fuse-moe").Misses)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestMoERandomOnCPU runs some of them.
func TestMoERandomOnCPU(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 22))
		_, g := composeMoE(t, r)
		h, _, err := passes.Run(g, passes.Config{Target: cpu.New(), Verify: true})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		passtest.SameOnCPU(t, g, h, graphtest.Values(r, g))
	}
}
