package graph_test

import (
	"math"
	"testing"

	"fusec/graph"
)

// TestAttentionGradient says what the gradient of an attention is made of: one operation, and scores only where the
// gradient of a mask is wanted.
func TestAttentionGradient(t *testing.T) {
	const sq, sk = 5, 7
	for _, c := range []struct {
		name            string
		y, lse, mask    bool // where the gradient comes from, and whether that of the mask is wanted
		dlse, hasScores bool
	}{
		{name: "result", y: true},
		{name: "log-sum-exp", lse: true, dlse: true},
		{name: "both", y: true, lse: true, dlse: true},
		{name: "mask", y: true, mask: true, hasScores: true},
		{name: "mask, both", y: true, lse: true, mask: true, dlse: true, hasScores: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := graph.NewBuilder("gradient")
			q, k := b.Input("q", graph.TypeOf(graph.F64, 2, sq, 3)), b.Input("k", graph.TypeOf(graph.F64, 2, sk, 3))
			m := b.Input("m", graph.TypeOf(graph.F64, sq, sk))
			y := b.Add(graph.Attention{Scale: 1, HasMask: true}, q, k, k, m)
			cost := b.Scalar(graph.F64, 0)
			if c.y {
				cost = b.Binary(graph.Add, cost, sumAll(b, y))
			}
			if c.lse {
				cost = b.Binary(graph.Add, cost, sumAll(b, b.Add(graph.Result{Index: 1}, y)))
			}
			b.Output("cost", cost)
			g, err := b.Graph()
			if err != nil {
				t.Fatal(err)
			}
			wrt := []*graph.Node{q, k}
			if c.mask {
				wrt = append(wrt, m)
			}
			if _, err := graph.Gradients(g, cost, wrt); err != nil {
				t.Fatal(err)
			}
			found, scores := 0, false
			for _, n := range g.Nodes {
				if op, ok := n.Op.(graph.AttentionGrad); ok {
					found++
					if op.HasDlse != c.dlse {
						t.Errorf("it has the gradient of the log-sum-exp: %v", op.HasDlse)
					}
				}
				scores = scores || n.Type.Shape == graph.ShapeOf(2, sq, sk)
			}
			if found != 1 || scores != c.hasScores {
				t.Errorf("%d gradients of attention, scores %v:\n%s", found, scores, graph.Print(g))
			}
		})
	}
}

// TestAttentionGradCost compares the work counted with that of the attention: five products where it has two.
func TestAttentionGradCost(t *testing.T) {
	x, lse := graph.TypeOf(graph.F32, 3, 10, 4), graph.TypeOf(graph.F32, 3, 10)
	op := graph.Attention{Causal: true}
	forward := graph.InfoOf(op).FLOPs(op, []graph.Type{x, x, x}, nil)
	grad := graph.AttentionGrad{Attention: op}
	got := graph.InfoOf(grad).FLOPs(grad, []graph.Type{x, x, x, x, lse, x}, nil)
	if want := forward * (10*4 + 16) / (4*4 + 16); got != want {
		t.Errorf("%d operations, want %d", got, want)
	}
	huge := graph.TypeOf(graph.F32, math.MaxInt32, math.MaxInt32)
	if n := graph.InfoOf(grad).FLOPs(grad, []graph.Type{huge, huge, huge}, nil); n != math.MaxInt64 {
		t.Errorf("%d operations", n)
	}
}
