package cpu_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/lowering"
	"fusec/lowering/cpu"
	"fusec/passes"
)

// block is a transformer block: self-attention and a feed-forward network, normalised after each residual.
func block(batch, seq, dim, heads, hidden int) *graph.Graph {
	return transformer(1, batch, seq, dim, heads, hidden)
}

// transformer is so many blocks.
func transformer(layers, batch, seq, dim, heads, hidden int) *graph.Graph {
	b := graph.NewBuilder("block")
	rows := batch * seq
	x := b.Input("x", graph.TypeOf(graph.F32, rows, dim))
	for i := range layers {
		prefix := ""
		if layers > 1 {
			prefix = fmt.Sprintf("layer%d/", i)
		}
		linear := func(name string, x *graph.Node, in, out int) *graph.Node {
			w := b.Param(prefix+"w"+name, graph.TypeOf(graph.F32, in, out))
			bias := b.Param(prefix+"b"+name, graph.TypeOf(graph.F32, out))
			y := b.MatMul(x, w, false, false)
			return b.Binary(graph.Add, y, b.Broadcast(bias, y.Type.Shape))
		}
		norm := func(name string, x *graph.Node) *graph.Node {
			vector := graph.TypeOf(graph.F32, dim)
			return b.Add(graph.LayerNorm{Eps: 1e-5}, x, b.Param(prefix+"g"+name, vector), b.Param(prefix+"h"+name, vector))
		}
		qkv := b.Reshape(linear("qkv", x, dim, 3*dim), batch, seq, 3, heads, dim/heads)
		part := func(i int) *graph.Node {
			p := b.Reshape(b.Slice(qkv, 2, i, 1, 1), batch, seq, heads, dim/heads)
			return b.Transpose(p, 0, 2, 1, 3)
		}
		scores := b.BinaryScalar(graph.Mul, b.MatMul(part(0), part(1), false, true), 1/math.Sqrt(float64(dim/heads)))
		o := b.MatMul(b.Add(graph.Softmax{Axis: 3}, scores), part(2), false, false)
		o = b.Reshape(b.Transpose(o, 0, 2, 1, 3), rows, dim)
		y := norm("1", b.Binary(graph.Add, x, linear("o", o, dim, dim)))
		h := b.Unary(graph.GeluTanh, linear("1", y, dim, hidden))
		x = norm("2", b.Binary(graph.Add, y, linear("2", h, hidden, dim)))
	}
	b.Output("y", x)
	g, err := b.Graph()
	if err != nil {
		panic(err)
	}
	return g
}

func values(g *graph.Graph) map[string]*graph.Tensor {
	r := rand.New(rand.NewPCG(7, 7))
	in := graphtest.Values(r, g)
	for n, v := range graphtest.Weights(r, g) {
		in[n] = v
	}
	return in
}

func TestBlock(t *testing.T) {
	g := block(2, 9, 24, 3, 40)
	p := check(t, g, values(g), 2)
	t.Log(p)
	if len(p.Launches) != 7 {
		t.Errorf("%d launches, want 7:\n%v", len(p.Launches), p)
	}
}

func BenchmarkBlock(b *testing.B) {
	g := block(4, 128, 256, 8, 1024)
	in := values(g)
	e, p := compiled(b, g, in)
	defer e.Close()
	for b.Loop() {
		if err := e.Run(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(p.Launches)), "launches")
}

// BenchmarkCompile compiles a transformer: all passes, and with "whole" lowering and kernels too.
func BenchmarkCompile(b *testing.B) {
	for _, layers := range []int{1, 12} {
		g := transformer(layers, 4, 128, 256, 8, 1024)
		d := cpu.New()
		b.Run(fmt.Sprintf("passes/layers=%d", layers), func(b *testing.B) {
			for b.Loop() {
				if _, _, err := passes.Run(g, passes.Config{Target: d}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("whole/layers=%d", layers), func(b *testing.B) {
			for b.Loop() {
				final, _, err := passes.Run(g, passes.Config{Target: d})
				if err != nil {
					b.Fatal(err)
				}
				p, err := lowering.Lower(final, d.Name())
				if err != nil {
					b.Fatal(err)
				}
				e, err := d.Compile(p)
				if err != nil {
					b.Fatal(err)
				}
				e.Close()
			}
		})
	}
}
