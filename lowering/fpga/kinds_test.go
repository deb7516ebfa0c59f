package fpga

import (
	"testing"

	"fusec/graph"
)

// f32 is a type of floats.
func f32(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }

// linear is x·w + b, with names of its own.
func linear(b *graph.Builder, x *graph.Node, name string, n int) *graph.Node {
	s := x.Type.Shape
	y := b.MatMul(x, b.Param(name+".w", f32(s.At(s.Rank()-1), n)), false, false)
	return b.Binary(graph.Add, y, b.Broadcast(b.Param(name+".b", f32(n)), y.Type.Shape))
}

// attention is one of the given sizes, as a model writes it: of rows of all heads side by side.
func attention(b *graph.Builder, a graph.Attention, batch, heads, kvHeads, queries, keys, depth int) {
	split := func(name string, heads, rows int) *graph.Node {
		x := b.Input(name, f32(batch*rows, heads*depth))
		return b.Transpose(b.Reshape(linear(b, x, name, heads*depth), batch, rows, heads, depth), 0, 2, 1, 3)
	}
	y := b.Add(a, split("q", heads, queries), split("k", kvHeads, keys), split("v", kvHeads, keys))
	b.Output("y", b.Reshape(b.Transpose(y, 0, 2, 1, 3), batch*queries, heads*depth))
}

// mixture is a router over logits and the experts behind it.
func mixture(b *graph.Builder, m graph.MoE, tokens, width, hidden, topK int) {
	x := b.Input("x", f32(tokens, width))
	gates := b.Add(graph.Softmax{Axis: 1}, linear(b, x, "gate", m.Experts))
	if topK < m.Experts {
		top := b.Add(graph.Route{K: topK}, gates)
		gates = b.Binary(graph.Mul, gates, b.CastTo(graph.F32, top))
		gates = b.Binary(graph.Div, gates, b.Expand(b.Reduce(graph.Sum, gates, false, 1), graph.IntsOf(1),
			gates.Type.Shape))
	}
	args := []*graph.Node{x, gates}
	d := graph.MoEDims{Tokens: tokens, Width: width, Hidden: hidden, Result: width}
	for _, w := range m.Weights() {
		args = append(args, b.Param(w.String(), graph.Type{DType: graph.F32, Shape: m.WeightShape(d, w)}))
	}
	b.Output("y", b.Add(m, args...))
}

// TestKinds runs every kind of launch that the overlay takes on the model, which finds races and descriptors that
// wait for ever, and compares each result with what the processor makes of the same operands.
func TestKinds(t *testing.T) {
	type build = func(b *graph.Builder)
	act := func(fn graph.UnaryFn) build {
		return func(b *graph.Builder) {
			b.Output("y", b.Unary(fn, linear(b, b.Input("x", f32(37, 40)), "l", 24)))
		}
	}
	product := func(m, k, n int) build {
		return func(b *graph.Builder) { b.Output("y", linear(b, b.Input("x", f32(m, k)), "l", n)) }
	}
	cases := []struct {
		name  string
		build build
	}{
		{"product 1×1×1", product(1, 1, 1)},
		{"product 3×5×7", product(3, 5, 7)},
		{"product 64×64×64", product(64, 64, 64)},
		{"product 100×100×100", product(100, 100, 100)},
		{"product 9×700×33", product(9, 700, 33)},
		{"product 700×16×300", product(700, 16, 300)},
		{"product 17×24×1500", product(17, 24, 1500)},
		{"product 20×9000×24", product(20, 9000, 24)}, // whose rows no scratchpad holds twice
		{"relu", act(graph.Relu)},
		{"gelu", act(graph.GeluTanh)},
		{"gelu by erf", act(graph.GeluErf)},
		{"silu", act(graph.Silu)},
		{"tanh", act(graph.Tanh)},
		{"sigmoid", act(graph.Sigmoid)},
		{"leaky relu", act(graph.LeakyRelu)},
		{"square", act(graph.Square)},
		{"residual", func(b *graph.Builder) {
			x := b.Input("x", f32(20, 48))
			b.Output("y", b.Unary(graph.Relu, b.Binary(graph.Add, x, linear(b, x, "l", 48))))
		}},
		{"residual taken away", func(b *graph.Builder) {
			x := b.Input("x", f32(20, 48))
			b.Output("y", b.Binary(graph.Sub, linear(b, x, "l", 48), x))
		}},
		{"taken from a residual", func(b *graph.Builder) {
			x := b.Input("x", f32(20, 48))
			b.Output("y", b.Binary(graph.Sub, x, linear(b, x, "l", 48)))
		}},
		{"scaled", func(b *graph.Builder) {
			y := linear(b, b.Input("x", f32(20, 48)), "l", 16)
			y = b.BinaryScalar(graph.Mul, b.BinaryScalar(graph.Add, y, 3), 0.25)
			b.Output("y", b.Binary(graph.Mul, y, b.Broadcast(b.Param("s", f32(16)), y.Type.Shape)))
		}},
		{"two layers", func(b *graph.Builder) {
			x := b.Unary(graph.Relu, linear(b, b.Input("x", f32(50, 30)), "a", 70))
			b.Output("y", linear(b, x, "b", 10))
		}},
		{"weights by rows", func(b *graph.Builder) {
			b.Output("y", b.MatMul(b.Input("x", f32(12, 40)), b.Param("w", f32(32, 40)), false, true))
		}},
		{"values by rows", func(b *graph.Builder) {
			b.Output("y", b.MatMul(linear(b, b.Input("x", f32(24, 16)), "a", 32),
				linear(b, b.Input("z", f32(40, 16)), "b", 32), false, true))
		}},
		{"values by columns", func(b *graph.Builder) {
			b.Output("y", b.MatMul(linear(b, b.Input("x", f32(24, 16)), "a", 32),
				linear(b, b.Input("z", f32(32, 16)), "b", 40), false, false))
		}},
		{"both ways round", func(b *graph.Builder) {
			z := linear(b, b.Input("z", f32(32, 16)), "b", 32)
			b.Output("y", b.MatMul(z, z, false, false))
		}},
		{"gated", func(b *graph.Builder) {
			x := b.Input("x", f32(30, 24))
			h := b.Binary(graph.Mul, b.Unary(graph.Silu, linear(b, x, "a", 64)), linear(b, x, "b", 64))
			b.Output("y", linear(b, h, "c", 24))
		}},
		{"layer norm", func(b *graph.Builder) {
			x := b.Input("x", f32(21, 72))
			b.Output("y", b.Add(graph.LayerNorm{Eps: 1e-5}, x, b.Param("gamma", f32(72)), b.Param("beta", f32(72))))
		}},
		{"rms norm", func(b *graph.Builder) {
			x := b.Input("x", f32(21, 80))
			b.Output("y", b.Unary(graph.Tanh, b.Add(graph.RMSNorm{Eps: 1e-5}, x, b.Param("gamma", f32(80)))))
		}},
		{"sum of two rms norms", func(b *graph.Builder) { // each is a task, whose ranges are found from its part of the launch
			norm := func(name string) *graph.Node {
				return b.Add(graph.RMSNorm{Eps: 1e-5}, b.Input(name, f32(21, 80)), b.Param(name+".gamma", f32(80)))
			}
			b.Output("y", b.Unary(graph.Tanh, b.Binary(graph.Add, norm("x"), norm("z"))))
		}},
		{"norm of a sum", func(b *graph.Builder) {
			x, z := b.Input("x", f32(21, 80)), b.Input("z", f32(21, 80))
			b.Output("y", b.Add(graph.RMSNorm{Eps: 1e-5}, b.Binary(graph.Add, x, z), b.Param("gamma", f32(80))))
		}},
		{"sum", func(b *graph.Builder) {
			b.Output("y", b.Unary(graph.Relu, b.Binary(graph.Add, b.Input("x", f32(21, 40)),
				b.Input("z", f32(21, 40)))))
		}},
		{"chain", func(b *graph.Builder) {
			x, z := b.Input("x", f32(21, 40)), b.Input("z", f32(21, 40))
			y := b.Binary(graph.Mul, b.BinaryScalar(graph.Add, b.Unary(graph.Tanh, x), 0.5), z)
			b.Output("y", b.Unary(graph.Sigmoid, b.Binary(graph.Sub, b.BinaryScalar(graph.Mul, y, 1.5), x)))
		}},
		{"attention", func(b *graph.Builder) { attention(b, graph.Attention{Scale: 0.2}, 2, 3, 3, 48, 48, 32) }},
		{"attention, causal", func(b *graph.Builder) {
			attention(b, graph.Attention{Scale: 0.2, Causal: true}, 1, 2,
				2, 200, 200, 64)
		}},
		{"attention, grouped", func(b *graph.Builder) {
			attention(b, graph.Attention{Scale: 0.2}, 1, 4, 2, 40, 40,
				16)
		}},
		{"attention, one query", func(b *graph.Builder) {
			attention(b, graph.Attention{Scale: 0.2, Causal: true}, 1,
				2, 2, 1, 72, 16)
		}},
		{"attention, odd keys", func(b *graph.Builder) {
			attention(b, graph.Attention{Scale: 0.2}, 1, 1, 1, 11, 77,
				16)
		}},
		{"attention, many keys", func(b *graph.Builder) {
			attention(b, graph.Attention{Scale: 0.1, Causal: true}, 1, 1, 1, 700, 700, 128)
		}},
		{"experts, one of 8", func(b *graph.Builder) {
			mixture(b, graph.MoE{Experts: 8, Activation: graph.Relu, Bias: true, Stacked: true, TopK: 1}, 50, 24, 40, 1)
		}},
		{"experts, two of 8, gated", func(b *graph.Builder) {
			mixture(b, graph.MoE{Experts: 8, Activation: graph.Silu, Gated: true, Stacked: true, TopK: 2}, 130, 32,
				48, 2)
		}},
		{"experts, all of 3", func(b *graph.Builder) {
			mixture(b, graph.MoE{Experts: 3, Activation: graph.GeluTanh, Bias: true, Stacked: true}, 20, 16, 24, 3)
		}},
	}
	for _, c := range cases {
		for _, name := range []string{"sim8", "sim16"} {
			t.Run(c.name+" on "+name, func(t *testing.T) {
				e, p := compiled(t, built(t, c.build), For(overlay(t, name)))
				for i := range p.Launches {
					if err := e.l.launches[i].refusal; err != nil {
						t.Fatalf("launch %d, %s: %v\n%v", i, p.Launches[i].Kind(), err, p)
					}
				}
				e.Profile(true)
				if err := e.Run(); err != nil {
					t.Fatal(err)
				}
				for i, d := range own(t, e) {
					if !(d.max <= 0.03 && d.rms <= 0.006) {
						t.Errorf("launch %d, %s: off by %.4f at most, %.5f rms (of the float program %.4f, %.5f)\n%s",
							i, p.Launches[i].Kind(), d.max, d.rms,
							e.counts[i].max, e.counts[i].rms, p.Launches[i].Source)
					}
				}
			})
		}
	}
}
