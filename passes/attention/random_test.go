package attention_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/passes"
	"fusec/passes/passtest"
	"fusec/passes/rewrite"
)

// scoresLeft reports whether g takes a softmax of what follows from a product.
func scoresLeft(g *graph.Graph) bool {
	return slices.ContainsFunc(g.Nodes, func(n *graph.Node) bool {
		_, ok := n.Op.(graph.Softmax)
		return ok && rewrite.ProductUnder(n.Args[0]) != nil
	})
}

// TestAttentionRandom composes spellings at random. Each becomes one attention of the same values, except where a
// choice by −1e9 meets another mask and nobody knows whether a query keeps a key.
func TestAttentionRandom(t *testing.T) {
	n := uint64(1500)
	if testing.Short() {
		n = 200
	}
	refused := 0
	for seed := range n {
		r := rand.New(rand.NewPCG(seed, 11))
		b := graph.NewBuilder("random")
		w := &graphtest.AttentionWriter{Writer: graphtest.Writer{R: r, B: b, D: []graph.DType{graph.F32, graph.F64}[r.IntN(2)]}}
		one := func(of ...int) int { return of[r.IntN(len(of))] }
		w.Batch, w.Heads, w.Groups = one(1, 1, 2, 3), one(1, 2, 3), one(1, 1, 2, 3)
		w.Queries, w.Keys, w.Depth, w.Width = one(1, 3, 5), one(1, 3, 5, 7), one(1, 3, 4), one(1, 2, 5)
		b.Output("y", w.Write())
		g, err := b.Graph()
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		h, tr, err := passes.Run(g, passes.Config{Verify: true})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		in := graphtest.Values(r, g)
		passtest.SameNumbers(t, g, h, in)
		if seed%4 == 0 {
			passtest.SameOnCPU(t, g, h, in)
		}
		left := passtest.Ops(passtest.Stage(t, tr, "simplify-again").Graph)
		misses := passtest.Stage(t, tr, "fuse-attention").Misses
		switch {
		case len(misses) == 1 && strings.Contains(misses[0].Reason, "beside another mask"):
			refused++
		case !scoresLeft(passtest.Stage(t, tr, "raise").Graph): // a constant mask left nothing of them
		case strings.Count(left, "attention") != 1 || strings.Contains(left, "softmax") || strings.Contains(left, "concat"):
			t.Errorf("seed %d: %s became %s: %+v", seed, passtest.Ops(g), left, misses)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if refused > int(n/10) {
		t.Errorf("%d of %d were refused", refused, n)
	}
}
