package fpga

import (
	"fmt"
	"testing"

	"fusec/graph"
)

// transformer is a transformer block: attention of some heads over a sequence, and a network of two layers, each
// behind a norm and beside a way round.
func transformer(b *graph.Builder, seq, width, heads, hidden int) {
	x := b.Input("x", f32(seq, width))
	norm := func(x *graph.Node, name string) *graph.Node {
		return b.Add(graph.LayerNorm{Eps: 1e-5}, x, b.Param(name+".gamma", f32(width)),
			b.Param(name+".beta", f32(width)))
	}
	split := func(x *graph.Node, name string) *graph.Node {
		return b.Transpose(b.Reshape(linear(b, x, name, width), 1, seq, heads, width/heads), 0, 2, 1, 3)
	}
	h := norm(x, "n1")
	y := b.Add(graph.Attention{Scale: 0.125, Causal: false}, split(h, "q"), split(h, "k"), split(h, "v"))
	x = b.Binary(graph.Add, x, linear(b, b.Reshape(b.Transpose(y, 0, 2, 1, 3), seq, width), "o", width))
	h = b.Unary(graph.GeluTanh, linear(b, norm(x, "n2"), "up", hidden))
	b.Output("y", b.Binary(graph.Add, x, linear(b, h, "down", width)))
}

// TestCycles holds the estimated cycles, with memory of 8 bytes a cycle and a latency of 40, against those that the
// products alone would take: of each product in a stream of them, of attention, of a mixture, which is taken to give its
// experts equally many tokens, and of a whole block.
func TestCycles(t *testing.T) {
	stream := func(n int) func(b *graph.Builder) {
		return func(b *graph.Builder) {
			x := b.Input("x", f32(n, n))
			for i := range 12 {
				x = b.Unary(graph.Relu, linear(b, x, fmt.Sprint("l", i), n))
			}
			b.Output("y", x)
		}
	}
	over := func(keys int) func(b *graph.Builder) {
		return func(b *graph.Builder) { attention(b, graph.Attention{Scale: 0.125}, 1, 2, 2, keys, keys, 64) }
	}
	for _, c := range []struct {
		name  string
		build func(b *graph.Builder)
		kind  string
		most  map[string]float64 // cycles over ideal, by overlay
	}{
		{"products 64×64×64", stream(64), "linear", map[string]float64{"sim8": 1.3, "sim16": 1.3}},
		{"products 128×128×128", stream(128), "linear", map[string]float64{"sim8": 1.05, "sim16": 1.05}},
		{"products 256×256×256", stream(256), "linear", map[string]float64{"sim8": 1.05, "sim16": 1.05}},
		{"attention over 256", over(256), "attention", map[string]float64{"sim8": 1.15, "sim16": 1.15}},
		{"attention over 1024", over(1024), "attention", map[string]float64{"sim8": 1.15, "sim16": 1.15}},
		{"a mixture whose tokens go to 2 of 8 experts", func(b *graph.Builder) {
			mixture(b, graph.MoE{Experts: 8, Activation: graph.GeluTanh, Bias: true, Stacked: true, TopK: 2}, 64, 32, 64, 2)
		}, "moe", map[string]float64{"sim8": 1.6, "sim16": 4.4}}, // short commands; the larger array waits for weights
		{"block", func(b *graph.Builder) { transformer(b, 256, 256, 4, 1024) }, "",
			map[string]float64{"sim8": 1 / 0.7, "sim16": 1 / 0.7}},
	} {
		for _, name := range []string{"sim8", "sim16"} {
			t.Run(c.name+" on "+name, func(t *testing.T) {
				d := New(For(overlay(t, name)))
				p := lowered(t, built(t, c.build), d)
				r, err := d.Plan(p)
				if err != nil {
					t.Fatal(err)
				}
				var cycles, ideal int64
				n := 0
				for i, l := range r.Launches {
					if c.kind != "" && p.Launches[i].Kind() != c.kind || l.Refusal != "" {
						continue
					}
					n++
					t.Logf("%d %s %d %d %.3f", i, p.Launches[i].Kind(), l.Estimate, l.Ideal,
						float64(l.Estimate)/float64(l.Ideal))
					if c.kind == "linear" && (n == 1 || n == len(p.Launches)) {
						continue // the first waits for memory, the last for its results
					}
					cycles, ideal = cycles+l.Estimate, ideal+l.Ideal
				}
				got := float64(cycles) / float64(ideal)
				t.Logf("%.3f", got)
				if got > c.most[name] {
					t.Errorf("%d cycles where %d would do: %.3f times as many, want %.3f", cycles, ideal, got,
						c.most[name])
				}
			})
		}
	}
}
