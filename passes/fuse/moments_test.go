package fuse_test

import (
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/passes"
	"fusec/passes/passtest"
)

// columns is a target that takes mean and variance of columns in one pass.
type columns struct{}

func (columns) Name() string                                          { return "columns" }
func (columns) Accepts(op graph.Op, args, results []graph.Type) error { return nil }
func (columns) TakesMoments() bool                                    { return true }

// TestMoments: a step of a batch norm in training is one launch for the statistics, one for what follows the norm, one for the sums
// of the gradient and one for the gradient of the rows; no normalised value is kept.
func TestMoments(t *testing.T) {
	g, cfg := passtest.Trained(t, func(b *graph.Builder) *graph.Node {
		vector := func(name string) *graph.Node { return b.Param(name, passtest.F64(5)) }
		x := b.Input("x", passtest.F64(7, 5))
		mean, variance := b.State("mean", passtest.F64(5)), b.State("variance", passtest.F64(5))
		y := b.Add(graph.BatchNorm{Eps: 1e-3, Momentum: 0.9, Train: true}, x, vector("gamma"), vector("beta"), mean, variance)
		b.Update(mean, b.Add(graph.Result{Index: 1}, y))
		b.Update(variance, b.Add(graph.Result{Index: 2}, y))
		return b.Unary(graph.Tanh, y)
	})
	cfg.Target = columns{}
	h, _ := passtest.Gradients(t, g, cfg)
	rows, full := 0, 0
	for _, n := range h.Nodes {
		f, ok := n.Op.(graph.Fusion)
		switch {
		case !ok:
		case f.Anchor == graph.AnchorRow && n.Type.Shape.Rank() == 1:
			rows++
		case n.Type.Shape.Rank() == 2:
			full++
		}
	}
	if ops := passtest.Ops(h); rows != 2 || full != 2 || strings.Contains(ops, "batch_norm") {
		t.Errorf("%d launches over columns and %d of full size: %s", rows, full, ops)
	}
}

// TestMomentsOfSlice: a normalised part of an axis has a view of its own for each reader, with its start.
func TestMomentsOfSlice(t *testing.T) {
	g, cfg := passtest.Trained(t, func(b *graph.Builder) *graph.Node {
		vector := func(name string) *graph.Node { return b.Param(name, passtest.F64(5)) }
		x := b.Add(graph.Slice{Axis: 1, Size: 5, Step: 2}, b.Input("x", passtest.F64(7, 10)), b.Scalar(graph.I64, 1))
		return b.Add(graph.BatchNorm{Eps: 1e-3, Train: true}, x, vector("gamma"), vector("beta"), vector("mean"), vector("variance"))
	})
	cfg.Target = columns{}
	passtest.Gradients(t, g, cfg)
}

// TestMomentsThroughReshape: the variance of columns is not made with its mean where this comes back in another shape than the
// values, such as that of images of one pixel.
func TestMomentsThroughReshape(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Input("x", passtest.F64(4, 1, 1, 3))
		mean := b.Reduce(graph.Mean, x, false, 0, 1, 2)
		repeated := b.Reshape(b.Broadcast(b.Reshape(mean, 3, 1, 1), graph.ShapeOf(4, 3, 1, 1)), 4, 1, 1, 3)
		square := b.Unary(graph.Square, b.Binary(graph.Sub, x, repeated))
		b.Output("y", b.Reduce(graph.Mean, square, false, 0, 1, 2))
	})
	passtest.Run(t, g, passes.Config{Target: columns{}})
}
