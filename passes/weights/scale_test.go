package weights_test

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

// TestScaleFilters has an image whose channels are scaled by what a run computes, before a convolution.
func TestScaleFilters(t *testing.T) {
	one := graph.IntsOf(1, 1)
	pointwise := graph.Conv2D{Stride: one, Dilation: one, Pad: graph.IntsOf(0, 0, 0, 0), Groups: 1}
	grouped, padded := pointwise, pointwise
	grouped.Groups, padded.Pad = 2, graph.IntsOf(1, 1, 1, 1)
	// gate is a number for each channel of x, from its means.
	gate := func(b *graph.Builder, x *graph.Node) *graph.Node {
		return b.Unary(graph.Sigmoid, b.Reduce(graph.Mean, x, true, 2, 3))
	}
	scaled := func(b *graph.Builder, x *graph.Node) *graph.Node {
		return b.Binary(graph.Mul, b.Broadcast(gate(b, x), x.Type.Shape), x)
	}
	for _, c := range []struct {
		name  string
		image []int
		op    graph.Conv2D
		w     []int
		scale func(b *graph.Builder, x *graph.Node) *graph.Node
		more  bool // the scaled image is an output, too
		moves bool
	}{
		{"a gate", []int{1, 6, 9, 7}, pointwise, []int{5, 6, 1, 1}, scaled, false, true},
		{"a gate before a border", []int{1, 6, 9, 9}, padded, []int{2, 6, 3, 3}, scaled, false, true},
		{"more filters than pixels", []int{1, 6, 2, 2}, pointwise, []int{5, 6, 1, 1}, scaled, false, false},
		{"several images", []int{2, 6, 9, 7}, pointwise, []int{5, 6, 1, 1}, scaled, false, false},
		{"groups", []int{1, 6, 9, 7}, grouped, []int{4, 3, 1, 1}, scaled, false, false},
		{"another reader", []int{1, 6, 9, 7}, pointwise, []int{5, 6, 1, 1}, scaled, true, false},
		{"one number", []int{1, 6, 9, 7}, pointwise, []int{5, 6, 1, 1}, func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Mul, x, b.Broadcast(b.Reduce(graph.Mean, x, false, 0, 1, 2, 3), x.Type.Shape))
		}, false, false},
		{"a number for each row", []int{1, 6, 9, 7}, pointwise, []int{5, 6, 1, 1}, func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Mul, x, b.Broadcast(b.Reduce(graph.Mean, x, true, 1, 3), x.Type.Shape))
		}, false, false},
		{"squares", []int{1, 6, 9, 7}, pointwise, []int{5, 6, 1, 1}, func(b *graph.Builder, x *graph.Node) *graph.Node {
			return b.Binary(graph.Mul, x, x)
		}, false, false},
		{"an image of each pixel's own", []int{1, 6, 9, 7}, pointwise, []int{5, 6, 1, 1},
			func(b *graph.Builder, x *graph.Node) *graph.Node {
				return b.Binary(graph.Mul, x, b.Unary(graph.Sigmoid, x))
			}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := graph.NewBuilder("scaled")
			x := c.scale(b, b.Unary(graph.Tanh, b.Input("x", passtest.F64(c.image...))))
			b.Output("y", b.Add(c.op, x, b.Param("w", passtest.F64(c.w...))))
			if c.more {
				b.Output("scaled", x)
			}
			g, err := b.Graph()
			if err != nil {
				t.Fatal(err)
			}
			target := cpu.New()
			_, tr := passtest.Run(t, g, passes.Config{Frozen: true, Stop: "fold-weights", Target: target})
			moved := len(passtest.Stage(t, tr, "fold-weights").Matches) > 0
			if moved != c.moves {
				t.Errorf("the scale moves: %v, want %v", moved, c.moves)
			}
			for _, cfg := range []passes.Config{{Frozen: true, Stop: "fold-weights"}, {Stop: "fold-weights", Target: target}} {
				if _, tr := passtest.Run(t, g, cfg); len(passtest.Stage(t, tr, "fold-weights").Matches) > 0 {
					t.Errorf("it moves for a target %v with frozen weights %v", cfg.Target, cfg.Frozen)
				}
			}
			h, _ := passtest.Run(t, g, passes.Config{Frozen: true, Target: target})
			if text := graph.Print(h); c.moves && strings.Contains(text, "copy") {
				t.Errorf("filters are copied:\n%s", text)
			}
			passtest.SameOnCPU(t, g, h, graphtest.Values(rand.New(rand.NewPCG(1, 2)), g))
		})
	}
}
