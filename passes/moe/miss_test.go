package moe_test

import (
	"errors"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/passes"
	"fusec/passes/passtest"
	"fusec/passes/rewrite"
)

// moeMisses lists the missed fusions of fuse-moe in g, whose values must stay.
func moeMisses(t *testing.T, g *graph.Graph, target rewrite.Target) []string {
	t.Helper()
	h, tr := passtest.Run(t, g, passes.Config{Target: target, Stop: "simplify-again"})
	if got := moeOf(h); got != "" {
		t.Errorf("made %s", got)
	}
	return passtest.Misses(t, passtest.Stage(t, tr, "fuse-moe"), "moe")
}

// TestMoEMisses says what is no mixture of experts, and in which words that is told.
func TestMoEMisses(t *testing.T) {
	// with is a mixture of which expert 1 is another.
	with := func(second func(w *passtest.MoEWriter) *graph.Node) func(w *passtest.MoEWriter) *graph.Node {
		return func(w *passtest.MoEWriter) *graph.Node {
			return w.Sum(w.Softmax(w.Logits()), func(e int) *graph.Node {
				if e == 1 {
					return w.B.Named(second(w), "odd")
				}
				return w.Relu(e)
			})
		}
	}
	net := func(w *passtest.MoEWriter, x *graph.Node, hidden func(h *graph.Node) *graph.Node) *graph.Node {
		h := w.B.Named(w.B.MatMul(x, w.Param("up", x.Type.Shape.At(x.Type.Shape.Rank()-1), 5), false, false), "first")
		return w.B.MatMul(hidden(h), w.Param("down", 5, 3), false, false)
	}
	relu := func(w *passtest.MoEWriter) func(h *graph.Node) *graph.Node {
		return func(h *graph.Node) *graph.Node { return w.B.Named(w.B.Unary(graph.Relu, h), "hidden") }
	}
	tests := []struct {
		name  string
		build func(w *passtest.MoEWriter) *graph.Node
		want  string
	}{
		{"result is handed out", with(func(w *passtest.MoEWriter) *graph.Node {
			y := net(w, w.X, relu(w))
			w.B.Output("z", y)
			return y
		}), `matmul "odd": the result of an expert, matmul "odd", is also handed out as an output`},
		{"result is read", with(func(w *passtest.MoEWriter) *graph.Node {
			y := net(w, w.X, relu(w))
			w.B.Output("z", w.B.Named(w.B.Unary(graph.Tanh, y), "z"))
			return y
		}), `matmul "odd": the result of an expert, matmul "odd", is also read by tanh "z"`},
		{"hidden values are read", with(func(w *passtest.MoEWriter) *graph.Node {
			return net(w, w.X, func(h *graph.Node) *graph.Node {
				h = relu(w)(h)
				w.B.Output("z", w.B.Named(w.B.Unary(graph.Tanh, h), "z"))
				return h
			})
		}), `relu "hidden": a hidden value of an expert, relu "hidden", is also read by tanh "z"`},
		{"weighted result is read", func(w *passtest.MoEWriter) *graph.Node {
			p := w.Softmax(w.Logits())
			term := w.B.Named(w.B.Binary(graph.Mul, w.Relu(0), w.Column(p, 0)), "weighted")
			w.B.Output("z", w.B.Named(w.B.Unary(graph.Tanh, term), "z"))
			return w.B.Binary(graph.Add, term, w.B.Binary(graph.Mul, w.Relu(1), w.Column(p, 1)))
		}, `mul "weighted": the weighted result of an expert, mul "weighted", is also read by tanh "z"`},
		{"another activation", with(func(w *passtest.MoEWriter) *graph.Node {
			return net(w, w.X, func(h *graph.Node) *graph.Node { return w.B.Add(graph.Unary{Fn: graph.LeakyRelu, Alpha: 0.1}, h) })
		}), `matmul "odd": expert 1, matmul "odd", has the activation leaky_relu(0.1), and expert 0 relu`},
		{"another width", with(func(w *passtest.MoEWriter) *graph.Node {
			h := w.B.Unary(graph.Relu, w.B.MatMul(w.X, w.Param("up", 4, 6), false, false))
			return w.B.MatMul(h, w.Param("down", 6, 3), false, false)
		}), `matmul "odd": expert 1, matmul "odd", has 6 hidden values, and expert 0 has 5`},
		{"other tokens", with(func(w *passtest.MoEWriter) *graph.Node { return net(w, w.B.Input("v", passtest.F64(5, 4)), relu(w)) }),
			`matmul "odd": expert 1, matmul "odd", is computed from input "v", and expert 0 from input "x"`},
		{"tokens of another width",
			with(func(w *passtest.MoEWriter) *graph.Node { return net(w, w.B.Input("v", passtest.F64(5, 2)), relu(w)) }),
			`matmul "odd": expert 1, matmul "odd", has tokens of 2 elements, and expert 0 of 4`},
		{"one expert is gated", with(func(w *passtest.MoEWriter) *graph.Node {
			return net(w, w.X, func(h *graph.Node) *graph.Node {
				return w.B.Binary(graph.Mul, w.B.Unary(graph.Relu, h), w.B.MatMul(w.X, w.Param("more", 4, 5), false, false))
			})
		}), `matmul "odd": expert 1, matmul "odd", has a second factor in its hidden values, and expert 0 no second factor`},
		{"a product of activations", with(func(w *passtest.MoEWriter) *graph.Node {
			return net(w, w.X, func(h *graph.Node) *graph.Node {
				more := w.B.MatMul(w.X, w.Param("more", 4, 5), false, false)
				return w.B.Named(w.B.Binary(graph.Mul, w.B.Unary(graph.Relu, h), w.B.Unary(graph.Tanh, more)), "both")
			})
		}),
			`tanh %18 of "x" and "more5": the second factor of an expert's hidden values, tanh %18 of "x" and "more5", is no linear layer`},
		{"no activation", with(func(w *passtest.MoEWriter) *graph.Node {
			return net(w, w.X, func(h *graph.Node) *graph.Node { return h })
		}), `matmul "first": matmul "first" stands before the last linear layer of an expert; wanted an activation of another linear ` +
			`layer`},
		{"dropout", with(func(w *passtest.MoEWriter) *graph.Node {
			return net(w, w.X, func(h *graph.Node) *graph.Node {
				return w.B.Named(w.B.Add(graph.Dropout{P: 0.5}, w.B.Unary(graph.Relu, h), w.B.Input("seed", graph.TypeOf(graph.I64))), "drop")
			})
		}), `dropout "drop": dropout "drop" stands before the last linear layer of an expert; wanted an activation of another linear ` +
			`layer`},
		{"one linear layer", with(func(w *passtest.MoEWriter) *graph.Node { return w.B.MatMul(w.X, w.Param("one", 4, 3), false, false) }),
			`input "x": input "x" stands before the last linear layer of an expert; wanted an activation of another linear layer`},
		{"an expert that is the tokens", with(func(w *passtest.MoEWriter) *graph.Node { return w.B.Slice(w.X, 1, 0, 3, 1) }),
			`slice "odd": the result of an expert, slice "odd", is no linear layer`},
		{"a residual in the expert", with(func(w *passtest.MoEWriter) *graph.Node {
			return w.B.Binary(graph.Add, net(w, w.X, relu(w)), w.B.Input("r", passtest.F64(5, 3)))
		}), `add "odd": to the result of an expert is added input "r", which is no bias: it is not the same for all tokens`},
		{"weights of each token", with(func(w *passtest.MoEWriter) *graph.Node {
			h := w.B.Unary(graph.Relu, w.B.MatMul(w.B.Reshape(w.X, 5, 1, 4), w.B.Input("each", passtest.F64(5, 4, 5)), false, false))
			return w.B.MatMul(w.B.Reshape(h, 5, 5), w.Param("down", 5, 3), false, false)
		}), `matmul %15 of "each" and "x": the weights input "each" are f64[5,4,5], not one matrix`},
		{"tokens as columns", with(func(w *passtest.MoEWriter) *graph.Node {
			h := w.B.Unary(graph.Relu, w.B.Named(w.B.MatMul(w.B.Input("t", passtest.F64(4, 5)), w.Param("up", 4, 5), true, false), "first"))
			return w.B.MatMul(h, w.Param("down", 5, 3), false, false)
		}), `matmul "first": matmul "first" reads its tokens as columns`},
		{"stacked, tokens of their own", func(w *passtest.MoEWriter) *graph.Node {
			b := w.B
			h := b.Unary(graph.Relu, b.MatMul(b.Input("own", passtest.F64(3, 5, 4)), w.Param("up", 3, 4, 5), false, false))
			y := b.MatMul(h, w.Param("down", 3, 5, 3), false, false)
			p := b.Reshape(b.Transpose(w.Softmax(w.Logits()), 1, 0), 3, 5, 1)
			return b.Reduce(graph.Sum, b.Binary(graph.Mul, y, b.Broadcast(p, y.Type.Shape)), false, 0)
		}, `input "own": input "own" has tokens of its own for each expert, or not 5 of them`},
		{"stacked, one matrix for all", func(w *passtest.MoEWriter) *graph.Node {
			b := w.B
			h := b.Unary(graph.Relu, b.MatMul(w.X, w.Param("up", 3, 4, 5), false, false))
			y := b.Named(b.MatMul(h, w.Param("down", 5, 3), false, false), "last")
			p := b.Reshape(b.Transpose(w.Softmax(w.Logits()), 1, 0), 3, 5, 1)
			return b.Reduce(graph.Sum, b.Binary(graph.Mul, y, b.Broadcast(p, y.Type.Shape)), false, 0)
		}, `matmul "last": the weights param "down2" are f64[5,3], not one matrix for each of 3 experts`},
		{"experts share their first layer's product", func(w *passtest.MoEWriter) *graph.Node {
			up := w.Param("up", 4, 5)
			return w.Sum(w.Softmax(w.Logits()), func(e int) *graph.Node {
				h := w.B.Named(w.B.MatMul(w.X, up, false, false), "shared")
				bias := w.B.Broadcast(w.Param("bias", 5), graph.ShapeOf(5, 5))
				h = w.B.Unary(graph.Relu, w.B.Named(w.B.Binary(graph.Add, h, bias), "biased"))
				return w.B.MatMul(h, w.Param("down", 5, 3), false, false)
			})
		}, `matmul "shared": a hidden value of an expert, matmul "shared", is also read by add "biased"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := graphtest.Built(t, func(b *graph.Builder) { b.Output("y", tt.build(passtest.NewMoEWriter(b, 3, 5))) })
			got := moeMisses(t, g, nil)
			if len(got) != 1 || got[0] != tt.want {
				t.Errorf("missed fusions %q\nwant %q", got, tt.want)
			}
		})
	}
}

// noMoE is a target without a kernel for mixtures of experts.
type noMoE struct{}

func (noMoE) Name() string { return "bare" }

func (noMoE) Accepts(op graph.Op, _, _ []graph.Type) error {
	if _, ok := op.(graph.MoE); ok {
		return errors.New("bare has no mixtures")
	}
	return nil
}

func TestMoERefused(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		w := passtest.NewMoEWriter(b, 3, 5)
		b.Output("y", b.Named(w.Sum(w.Softmax(w.Logits()), w.Relu), "y"))
	})
	if got := moeMisses(t, g, noMoE{}); len(got) != 1 || got[0] != `add "y": bare has no mixtures` {
		t.Errorf("missed fusions %q", got)
	}
}

// TestMoENoMisses checks that a sum of products of which nothing is a gate of experts is not worth telling.
func TestMoENoMisses(t *testing.T) {
	for name, build := range map[string]func(w *passtest.MoEWriter) *graph.Node{
		"one expert": func(w *passtest.MoEWriter) *graph.Node {
			y := w.B.Binary(graph.Mul, w.Relu(0), w.Column(w.Softmax(w.Logits()), 0))
			return w.B.Binary(graph.Add, y, w.B.Input("r", passtest.F64(5, 3)))
		},
		"a highway": func(w *passtest.MoEWriter) *graph.Node {
			b, t := w.B, w.B.Broadcast(w.B.Input("t", passtest.F64(5, 1)), graph.ShapeOf(5, 3))
			return b.Binary(graph.Add, b.Binary(graph.Mul, w.Relu(0), t), b.Binary(graph.Mul, b.Input("r", passtest.F64(5, 3)), t))
		},
		"gates of elements": func(w *passtest.MoEWriter) *graph.Node {
			b, p := w.B, w.B.Unary(graph.Sigmoid, w.B.MatMul(w.X, w.Param("gate", 4, 6), false, false))
			y := b.Binary(graph.Mul, w.Relu(0), b.Slice(p, 1, 0, 3, 1))
			return b.Binary(graph.Add, y, b.Binary(graph.Mul, w.Relu(1), b.Slice(p, 1, 3, 3, 1)))
		},
		"a weighted sum over tokens": func(w *passtest.MoEWriter) *graph.Node {
			t := w.B.Broadcast(w.B.Input("t", passtest.F64(5, 1)), graph.ShapeOf(5, 3))
			return w.B.Reduce(graph.Sum, w.B.Binary(graph.Mul, w.Relu(0), t), false, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := graphtest.Built(t, func(b *graph.Builder) { b.Output("y", build(passtest.NewMoEWriter(b, 3, 5))) })
			if got := moeMisses(t, g, nil); len(got) != 0 {
				t.Errorf("missed fusions %q", got)
			}
		})
	}
}

// TestMoENotes reads what is said of a gate that drops no work, and of whose lines.
func TestMoENotes(t *testing.T) {
	for name, tt := range map[string]struct {
		gates func(w *passtest.MoEWriter) *graph.Node
		want  string
	}{
		"softmax": {func(w *passtest.MoEWriter) *graph.Node { return w.Softmax(w.Logits()) },
			"drops no work: the gate, softmax \"gates\" (attention.go:"},
		"sigmoid": {func(w *passtest.MoEWriter) *graph.Node { return w.B.Named(w.B.Unary(graph.Sigmoid, w.Logits()), "s") },
			"drops no work: the gate, sigmoid \"s\" (miss_test.go:"},
	} {
		t.Run(name, func(t *testing.T) {
			g := graphtest.Built(t, func(b *graph.Builder) {
				w := passtest.NewMoEWriter(b, 3, 5)
				b.Output("y", w.Sum(tt.gates(w), w.Relu))
			})
			_, tr := passtest.Run(t, g, passes.Config{Stop: "fuse-moe"})
			n := passtest.Stage(t, tr, "fuse-moe").Notes
			if len(n) != 1 || !strings.Contains(n[0].Text, tt.want) || !strings.Contains(n[0].Text, "a top-k mask on the gate would") {
				t.Errorf("notes %+v", n)
			}
		})
	}
}
