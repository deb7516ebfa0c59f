package moe_test

import (
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/passes"
	"fusec/passes/passtest"
)

// TestMoEGradients differentiates fused mixtures and compares with finite differences of the graph as written.
func TestMoEGradients(t *testing.T) {
	for _, tt := range moeSpellings {
		t.Run(tt.name, func(t *testing.T) {
			g, cfg := passtest.Trained(t, func(b *graph.Builder) *graph.Node { return tt.build(passtest.NewMoEWriter(b, 3, tt.lead...)) })
			h, tr := passtest.Gradients(t, g, cfg)
			if got := moeOf(passtest.Stage(t, tr, "simplify-again").Graph); got != tt.want {
				t.Errorf("made %q, want %q", got, tt.want)
			}
			if n := strings.Count(passtest.Ops(passtest.Stage(t, tr, "simplify-again").Graph), "moe_grad"); n != 1+strings.Count(tt.want,
				",") {
				t.Errorf("%d gradients of mixtures in %s", n, passtest.Ops(h))
			}
		})
	}
}

// TestMoEAccidentalZeros checks that gates which may be zero for no reason but their weights keep every expert at work
// where gradients are asked for: at zero they have one.
func TestMoEAccidentalZeros(t *testing.T) {
	for name, gates := range map[string]func(w *passtest.MoEWriter, l *graph.Node) *graph.Node{
		"times a mask": func(w *passtest.MoEWriter, l *graph.Node) *graph.Node {
			return w.B.Binary(graph.Mul, l, w.Float(w.B.Input("mask", graph.TypeOf(graph.Bool, 5, 3))))
		},
		"chosen": func(w *passtest.MoEWriter, l *graph.Node) *graph.Node {
			return w.B.Add(graph.Select{}, w.B.Input("mask", graph.TypeOf(graph.Bool, 5, 3)), l, w.B.Scalar(graph.F64, 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, learns := range []bool{false, true} {
				var gs []passes.Gradient
				g := graphtest.Built(t, func(b *graph.Builder) {
					w := passtest.NewMoEWriter(b, 3, 5)
					y := w.Sum(gates(w, w.B.MatMul(w.X, w.B.Param("gate", passtest.F64(4, 3)), false, false)), w.Relu)
					cost := b.Reduce(graph.Sum, b.Unary(graph.Square, y), false, 0, 1)
					b.Output("cost", cost)
					if learns {
						gs = []passes.Gradient{{Cost: cost, Of: w.X, Output: "d x"}}
					}
				})
				h, _, err := passes.Run(g, passes.Config{Gradients: gs, Verify: true, Stop: "simplify-again"})
				if err != nil {
					t.Fatal(err)
				}
				if want := map[bool]string{false: "3 relu", true: "3 relu dense"}[learns]; moeOf(h) != want {
					t.Errorf("made %q, want %q", moeOf(h), want)
				}
			}
		})
	}
}

// TestMoEWantedMask checks that a mask from the host that somebody asks a gradient by keeps every expert at work: at a
// gate of zero the mask has a gradient.
func TestMoEWantedMask(t *testing.T) {
	for _, wanted := range []bool{false, true} {
		var gs []passes.Gradient
		g := graphtest.Built(t, func(b *graph.Builder) {
			w := passtest.NewMoEWriter(b, 3, 5)
			mask := b.Input("mask", passtest.F64(5, 3))
			y := w.Sum(b.Binary(graph.Mul, w.Softmax(w.Logits()), mask), w.Relu)
			cost := b.Reduce(graph.Sum, b.Unary(graph.Square, y), false, 0, 1)
			b.Output("cost", cost)
			of := w.X
			if wanted {
				of = mask
			}
			gs = []passes.Gradient{{Cost: cost, Of: of, Output: "d " + of.Name}}
		})
		want := map[bool]string{false: "3 relu", true: "3 relu dense"}[wanted]
		_, tr := passtest.Gradients(t, g, passes.Config{Gradients: gs})
		if got := moeOf(passtest.Stage(t, tr, "simplify-again").Graph); got != want {
			t.Errorf("made %q, want %q", got, want)
		}
	}
}
