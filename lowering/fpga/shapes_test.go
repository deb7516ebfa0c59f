package fpga

import (
	"testing"

	"fusec/fpga/isa"
	"fusec/graph"
)

// TestShapes runs launches of each kind on overlays of other shapes, small and uneven ones.
func TestShapes(t *testing.T) {
	everything := func(c isa.Config) isa.Config {
		c.Tables, c.AccBits, c.KeyBlock, c.HeadDim, c.QPanels, c.Norms = 1, 32, 32, 32, 2, true
		c.Experts, c.ListLen, c.Tokens, c.TopK, c.AddrBits = 8, 64, 64, 2, 24
		return c
	}
	gemm := func(c isa.Config) isa.Config {
		c.Tables, c.AccBits, c.AddrBits = 2, 32, 24
		return c
	}
	for _, c := range []isa.Config{
		gemm(isa.Config{Name: "2×4", Rows: 2, Cols: 4, WordBytes: 2, XWords: 256, WWords: 256, YWords: 256, Params: 64}),
		gemm(isa.Config{Name: "4×2", Rows: 4, Cols: 2, WordBytes: 2, XWords: 256, WWords: 256, YWords: 128, Params: 32}),
		gemm(isa.Config{Name: "8×16", Rows: 8, Cols: 16, WordBytes: 16, XWords: 128, WWords: 64, YWords: 128, Params: 128}),
		gemm(isa.Config{Name: "16×4", Rows: 16, Cols: 4, WordBytes: 4, XWords: 64, WWords: 128, YWords: 64, Params: 256}),
		everything(isa.Config{Name: "4×4", Rows: 4, Cols: 4, WordBytes: 4, XWords: 512, WWords: 512, YWords: 512, Params: 256}),
		everything(isa.Config{Name: "16×16", Rows: 16, Cols: 16, WordBytes: 16, XWords: 256, WWords: 256, YWords: 256,
			Params: 512}),
	} {
		for name, build := range map[string]func(b *graph.Builder){
			"layers": func(b *graph.Builder) {
				x := b.Input("x", f32(37, 48))
				h := b.Unary(graph.GeluTanh, linear(b, x, "a", 96))
				b.Output("y", b.Unary(graph.Relu, b.Binary(graph.Add, x, linear(b, h, "b", 48))))
			},
			"by columns": func(b *graph.Builder) {
				z := linear(b, b.Input("z", f32(32, 16)), "b", 32)
				b.Output("y", b.MatMul(z, z, false, false))
			},
			"block": func(b *graph.Builder) { transformer(b, 64, 64, 4, 96) },
			"experts": func(b *graph.Builder) {
				mixture(b, graph.MoE{Experts: 8, Activation: graph.Silu, Gated: true, Bias: true, Stacked: true, TopK: 2}, 90, 32, 48, 2)
			},
		} {
			if (name == "block" || name == "experts") && !c.Attention() {
				continue
			}
			t.Run(name+" on "+c.Name, func(t *testing.T) {
				e, p := compiled(t, built(t, build), For(c))
				if err := e.Run(); err != nil {
					t.Fatal(err)
				}
				for i, d := range own(t, e) {
					if err := e.l.launches[i].refusal; err != nil {
						t.Errorf("launch %d, %s, runs on the processor: %v", i, p.Launches[i].Kind(), err)
					}
					if !(d.max <= 0.03 && d.rms <= 0.006) {
						t.Errorf("launch %d, %s: off by %.4f at most, %.5f rms", i, p.Launches[i].Kind(), d.max, d.rms)
					}
				}
			})
		}
	}
}
