package graphtest

import (
	"fmt"
	"testing"

	"fusec/graph"
)

// Transformer is a stack of layers with attention written out, and a cost, as a user writes them: parameters have names
// such as "block3/attn/query", and every node has a line. In the layer odd, if there is one, the weights of attention
// are squared, so that it cannot be fused.
func Transformer(t testing.TB, layers, odd int) *graph.Graph {
	const tokens, dim, hidden, words = 32, 64, 128, 50
	line := 0
	f32 := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
	g := Built(t, func(b *graph.Builder) {
		scope := ""
		weight := func(name string, dims ...int) *graph.Node { return b.Param(scope+name, f32(dims...)) }
		named := func(n *graph.Node, name string) *graph.Node { return b.Named(n, scope+name) }
		linear := func(x *graph.Node, name string, out int) *graph.Node {
			y := b.MatMul(x, weight(name+"/weight", x.Type.Shape.At(1), out), false, false)
			return named(b.Binary(graph.Add, y, b.Broadcast(weight(name+"/bias", out), y.Type.Shape)), name+"/out")
		}
		norm := func(x *graph.Node, name string) *graph.Node {
			return named(b.Add(graph.LayerNorm{Eps: 1e-5}, x, weight(name+"/gain", dim), weight(name+"/bias", dim)), name+"/out")
		}
		ids := b.Input("tokens", graph.TypeOf(graph.I64, tokens))
		x := b.Named(b.Add(graph.Gather{}, weight("embedding/weight", words, dim), ids), "embedding/out")
		for i := range layers {
			scope = fmt.Sprintf("block%d/", i)
			h := norm(x, "norm1")
			q, k, v := linear(h, "attn/query", dim), linear(h, "attn/key", dim), linear(h, "attn/value", dim)
			scores := named(b.BinaryScalar(graph.Mul, b.MatMul(q, k, false, true), 0.125), "attn/scores")
			p := named(b.Add(graph.Softmax{Axis: 1}, scores), "attn/probs")
			if i == odd {
				p = named(b.Unary(graph.Square, p), "attn/squared")
			}
			x = named(b.Binary(graph.Add, x, linear(b.MatMul(p, v, false, false), "attn/proj", dim)), "attn/residual")
			h = b.Unary(graph.GeluTanh, linear(norm(x, "norm2"), "mlp/up", hidden))
			x = named(b.Binary(graph.Add, x, linear(h, "mlp/down", dim)), "mlp/residual")
		}
		scope = ""
		logits := linear(norm(x, "norm"), "head", words)
		want := b.Input("want", f32(tokens, words))
		b.Output("cost", b.Named(b.Reduce(graph.Mean, b.Unary(graph.Square, b.Binary(graph.Sub, logits, want)), false, 0, 1), "cost"))
	})
	for _, n := range g.Nodes {
		line++
		for i := range n.Origin {
			n.Origin[i].Pos = fmt.Sprintf("model.go:%d", line)
		}
	}
	g.Name = "transformer"
	return g
}
