package passes

import (
	"strings"
	"testing"

	"fusec/graph"
)

// TestMoEGradients differentiates fused mixtures and compares with finite differences of the graph as written.
func TestMoEGradients(t *testing.T) {
	for _, tt := range moeSpellings {
		t.Run(tt.name, func(t *testing.T) {
			var gs []Gradient
			g := made(t, func(b *graph.Builder) {
				y := tt.build(newMoEWriter(b, 3, tt.lead...))
				axes := make([]int, y.Type.Shape.Rank())
				for i := range axes {
					axes[i] = i
				}
				cost := b.Reduce(graph.Sum, b.Unary(graph.Square, y), false, axes...)
				b.Output("cost", cost)
				for _, of := range sourcesOf(y) {
					if of.Type.DType.IsFloat() {
						gs = append(gs, Gradient{Cost: cost, Of: of, Output: "d " + of.Name})
					}
				}
			})
			h, tr := gradientsOf(t, g, Config{Gradients: gs})
			if got := moeOf(stageOf(t, tr, "simplify-again").Graph); got != tt.want {
				t.Errorf("made %q, want %q", got, tt.want)
			}
			if n := strings.Count(opsOf(stageOf(t, tr, "simplify-again").Graph), "moe_grad"); n != 1+strings.Count(tt.want, ",") {
				t.Errorf("%d gradients of mixtures in %s", n, opsOf(h))
			}
		})
	}
}

// TestMoEAccidentalZeros checks that gates which may be zero for no reason but their weights keep every expert at work
// where gradients are asked for: at zero they have one.
func TestMoEAccidentalZeros(t *testing.T) {
	for name, gates := range map[string]func(w *moeWriter, l *graph.Node) *graph.Node{
		"times a mask": func(w *moeWriter, l *graph.Node) *graph.Node {
			return w.b.Binary(graph.Mul, l, w.float(w.b.Input("mask", graph.TypeOf(graph.Bool, 5, 3))))
		},
		"chosen": func(w *moeWriter, l *graph.Node) *graph.Node {
			return w.b.Add(graph.Select{}, w.b.Input("mask", graph.TypeOf(graph.Bool, 5, 3)), l, w.b.Scalar(f64, 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, learns := range []bool{false, true} {
				var gs []Gradient
				g := made(t, func(b *graph.Builder) {
					w := newMoEWriter(b, 3, 5)
					y := w.sum(gates(w, w.b.MatMul(w.x, w.b.Param("gate", dt(4, 3)), false, false)), w.relu)
					cost := b.Reduce(graph.Sum, b.Unary(graph.Square, y), false, 0, 1)
					b.Output("cost", cost)
					if learns {
						gs = []Gradient{{Cost: cost, Of: w.x, Output: "d x"}}
					}
				})
				h, _, err := Run(g, Config{Gradients: gs, Verify: true, Stop: "simplify-again"})
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
		var gs []Gradient
		g := made(t, func(b *graph.Builder) {
			w := newMoEWriter(b, 3, 5)
			mask := b.Input("mask", dt(5, 3))
			y := w.sum(b.Binary(graph.Mul, w.softmax(w.logits()), mask), w.relu)
			cost := b.Reduce(graph.Sum, b.Unary(graph.Square, y), false, 0, 1)
			b.Output("cost", cost)
			of := w.x
			if wanted {
				of = mask
			}
			gs = []Gradient{{Cost: cost, Of: of, Output: "d " + of.Name}}
		})
		want := map[bool]string{false: "3 relu", true: "3 relu dense"}[wanted]
		_, tr := gradientsOf(t, g, Config{Gradients: gs})
		if got := moeOf(stageOf(t, tr, "simplify-again").Graph); got != want {
			t.Errorf("made %q, want %q", got, want)
		}
	}
}
