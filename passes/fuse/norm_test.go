package fuse_test

import (
	"slices"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/trace"
	"fusec/passes"
	"fusec/passes/passtest"
)

// normed is a graph with a batch norm of a convolution, whose statistics are outputs, too.
func normed(t *testing.T, train bool, shape ...int) *graph.Graph {
	return graphtest.Built(t, func(b *graph.Builder) {
		x := b.Input("x", passtest.F64(shape...))
		if len(shape) == 4 {
			w := b.Param("w", passtest.F64(3, shape[1], 1, 1))
			x = b.Add(graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(0, 0, 0, 0), Groups: 1}, x, w)
		}
		c := passtest.F64(x.Type.Shape.At(1))
		variance := b.Unary(graph.Square, b.State("root", c))
		y := b.Add(graph.BatchNorm{Eps: 1e-3, Momentum: 0.9, Train: train}, x, b.Param("gamma", c), b.Param("beta", c),
			b.State("mean", c), variance)
		b.Output("y", b.Unary(graph.Relu, y))
		b.Output("mean after", b.Add(graph.Result{Index: 1}, y))
		b.Output("variance after", b.Add(graph.Result{Index: 2}, y))
	})
}

// TestOpenNorms: a batch norm in evaluation joins the convolution before it; one in training stays.
func TestOpenNorms(t *testing.T) {
	for _, c := range []struct {
		train    bool
		shape    []int
		launches int // without those that make vectors of the statistics
	}{
		{false, []int{2, 5, 4, 3}, 1}, {false, []int{1, 1, 1, 1}, 1}, {false, []int{7, 3}, 1}, {true, []int{2, 5, 4, 3}, 3},
	} {
		g := normed(t, c.train, c.shape...)
		h, tr := passtest.Run(t, g, passes.Config{})
		did := slices.ContainsFunc(passtest.Stage(t, tr, trace.OpenPass).Matches,
			func(m trace.Match) bool { return m.Pattern == trace.OpenPass })
		if did == c.train {
			t.Errorf("%+v: opened: %v", c, did)
		}
		large := 0
		for _, n := range h.Nodes {
			if _, ok := n.Op.(graph.Result); !ok && trace.NeedsLaunch(n.Op) && n.Type.Shape.Rank() == len(c.shape) {
				large++
			}
		}
		if large != c.launches {
			t.Errorf("%+v: %d launches: %s", c, large, passtest.Ops(h))
		}
		if norms := tr.Unfused().Launches; norms > 4 {
			t.Errorf("%+v: %d launches unfused", c, norms)
		}
	}
}
