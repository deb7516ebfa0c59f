package attention_test

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

// attentionMisses lists the missed fusions of fuse-attention in g, whose values must stay.
func attentionMisses(t *testing.T, g *graph.Graph, target rewrite.Target) []string {
	t.Helper()
	h, tr := passtest.Run(t, g, passes.Config{Target: target, Stop: "simplify-again"})
	if got := passtest.Attention(h); got != "" {
		t.Errorf("made %s", got)
	}
	return passtest.Misses(t, passtest.Stage(t, tr, "fuse-attention"), "attention")
}

// TestAttentionMisses says what is no attention, and in which words that is told.
func TestAttentionMisses(t *testing.T) {
	// with is attention with a step on the scores and one on the probabilities.
	with := func(onScores, onProbabilities passtest.Step) func(b *graph.Builder) {
		return func(b *graph.Builder) {
			q, k, v := passtest.QKV(b, graph.F64, 5, 5)
			s := b.Named(b.MatMul(q, k, false, true), "scores")
			if onScores != nil {
				s = onScores(b, s)
			}
			p := b.Named(passtest.Softmax(b, s), "probabilities")
			if onProbabilities != nil {
				p = onProbabilities(b, p)
			}
			b.Output("y", b.MatMul(p, v, false, false))
		}
	}
	keep := func(b *graph.Builder) *graph.Node { return b.Input("keep", graph.TypeOf(graph.Bool, 5, 5)) }
	tests := []struct {
		name  string
		build func(b *graph.Builder)
		want  string
	}{
		{"scores are read", with(func(b *graph.Builder, s *graph.Node) *graph.Node {
			b.Output("z", b.Named(b.Unary(graph.Tanh, s), "z"))
			return s
		}, nil), `matmul "scores": the scores, matmul "scores", are also read by tanh "z"`},
		{"scores are handed out", with(func(b *graph.Builder, s *graph.Node) *graph.Node {
			b.Output("z", s)
			return s
		}, nil), `matmul "scores": the scores, matmul "scores", are also handed out as an output`},
		{"scaled scores are read", with(func(b *graph.Builder, s *graph.Node) *graph.Node {
			s = b.Named(b.BinaryScalar(graph.Mul, s, 0.3), "scaled")
			b.Output("z", b.Named(b.Reduce(graph.MaxOf, s, false, 1), "z"))
			return s
		}, nil), `mul "scaled": the scores, mul "scaled", are also read by max over axes [1] "z"`},
		{"probabilities are read", with(nil, func(b *graph.Builder, p *graph.Node) *graph.Node {
			b.Output("z", b.Named(b.Unary(graph.Tanh, p), "z"))
			return p
		}), `softmax "probabilities": the probabilities, softmax "probabilities", are also read by tanh "z"`},
		{"probabilities are handed out", with(nil, func(b *graph.Builder, p *graph.Node) *graph.Node {
			b.Output("z", p)
			return p
		}), `softmax "probabilities": the probabilities, softmax "probabilities", are also handed out as an output`},
		{"probabilities are squared", with(nil, func(b *graph.Builder, p *graph.Node) *graph.Node {
			return b.Named(b.Unary(graph.Square, p), "p2")
		}), `square "p2": between the softmax and the product with the values stands square "p2", which is no dropout, cast or reshape`},
		{"scores through tanh", with(func(b *graph.Builder, s *graph.Node) *graph.Node {
			return b.Named(b.Unary(graph.Tanh, s), "capped")
		}, nil), `tanh "capped": between the product of queries and keys and the softmax stands tanh "capped", which is no scale, mask,` +
			` cast or reshape`},
		{"scaled by a matrix", with(func(b *graph.Builder, s *graph.Node) *graph.Node {
			return b.Named(b.Binary(graph.Mul, s, b.Input("m", passtest.F64(5, 5))), "weighed")
		}, nil), `mul "weighed": the scores are scaled by input "m" of f64[5,5], which is no scalar`},
		{"divides by the scores", with(func(b *graph.Builder, s *graph.Node) *graph.Node {
			return b.Named(b.Binary(graph.Div, b.Input("m", passtest.F64()), s), "weighed")
		}, nil), `div "weighed": the scores are scaled by matmul "scores" of f64[5,5], which is no scalar`},
		{"scores twice", with(func(b *graph.Builder, s *graph.Node) *graph.Node {
			return b.Named(b.Binary(graph.Add, s, s), "sum")
		}, nil), `matmul "scores": the scores, matmul "scores", are read twice by add "sum"`},
		{"less the scores", with(func(b *graph.Builder, s *graph.Node) *graph.Node {
			x := b.Named(b.Binary(graph.Add, b.Input("x", passtest.F64(5, 5)), b.Input("w", passtest.F64(5, 5))), "x + w")
			return b.Binary(graph.Sub, x, s)
		}, nil), `add "x + w": neither operand of add "x + w" follows from a product of queries and keys`},
		{"choice scaled by what is not known", with(func(b *graph.Builder, s *graph.Node) *graph.Node {
			s = b.Named(b.Add(graph.Select{}, keep(b), s, b.Scalar(graph.F64, inf)), "masked")
			return b.Binary(graph.Mul, s, b.Input("t", passtest.F64()))
		}, nil), `select "masked": the masked scores are scaled by input "t", which is not constant`},
		{"less a mask scaled by what is not known", with(func(b *graph.Builder, s *graph.Node) *graph.Node {
			s = b.Named(b.Binary(graph.Sub, s, b.Input("m", passtest.F64(5, 5))), "masked")
			return b.Binary(graph.Mul, s, b.Input("t", passtest.F64()))
		}, nil), `sub "masked": the masked scores are scaled by input "t", which is not constant`},
		{"softmax over the queries", func(b *graph.Builder) {
			q, k, v := passtest.QKV(b, graph.F64, 5, 5, 3)
			p := b.Named(b.Add(graph.Softmax{Axis: 1}, b.MatMul(q, k, false, true)), "p")
			b.Output("y", b.MatMul(p, v, false, false))
		}, `softmax "p": it is taken over axis 1 of [3,5,5], and not over the keys, the last`},
		{"probabilities summed over the queries", func(b *graph.Builder) {
			q, k, v := passtest.QKV(b, graph.F64, 5, 5)
			p := passtest.Softmax(b, b.MatMul(q, k, false, true))
			b.Output("y", b.Named(b.MatMul(p, v, true, false), "y"))
		}, `matmul "y": it sums the probabilities over the queries, and not over the keys`},
		{"heads of the probabilities in another order", func(b *graph.Builder) {
			q, k, _ := passtest.QKV(b, graph.F64, 5, 5, 3)
			p := b.Named(b.Transpose(passtest.Softmax(b, b.MatMul(q, k, false, true)), 1, 0, 2), "turned")
			b.Output("y", b.MatMul(p, b.Input("w", passtest.F64(5, 5, 2)), false, false))
		}, `transpose "turned": between the softmax and the product with the values stands transpose "turned", which is no dropout, ` +
			`cast or reshape`},
		{"values with batches", func(b *graph.Builder) {
			q, k, _ := passtest.QKV(b, graph.F64, 5, 5)
			p := passtest.Softmax(b, b.MatMul(q, k, false, true))
			b.Output("y", b.Named(b.MatMul(p, b.Input("w", passtest.F64(3, 5, 2)), false, false), "y"))
		}, `matmul "y": the values, [3,5,2], have batches that the probabilities, [5,5], lack`},
		{"dropped out twice", with(nil, func(b *graph.Builder, p *graph.Node) *graph.Node {
			seed := b.Input("seed", graph.TypeOf(graph.I64))
			return b.Add(graph.Dropout{P: 0.5}, b.Named(b.Add(graph.Dropout{P: 0.5}, p, seed), "d"), seed)
		}), `dropout "d": the probabilities are dropped out twice`},
		{"softmax in a narrower type", with(func(b *graph.Builder, s *graph.Node) *graph.Node {
			return b.Add(graph.Cast{To: graph.F32}, s)
		}, func(b *graph.Builder, p *graph.Node) *graph.Node {
			return b.Add(graph.Cast{To: graph.F64}, p)
		}), `softmax "probabilities": the probabilities are f32, which is narrower than the f64 of the products`},
		{"scores in a narrower type", with(func(b *graph.Builder, s *graph.Node) *graph.Node {
			s = b.Named(b.Add(graph.Cast{To: graph.F32}, s), "rounded")
			return b.Add(graph.Cast{To: graph.F64}, b.Named(b.BinaryScalar(graph.Mul, s, 2), "doubled"))
		}, nil), `mul "doubled": the scores are f32, which is narrower than the f64 of the products`},
		{"products in two types", func(b *graph.Builder) {
			q, k, v := passtest.QKV(b, graph.F64, 5, 5)
			s := b.Named(b.MatMul(q, k, false, true), "scores")
			p := b.Add(graph.Cast{To: graph.F32}, passtest.Softmax(b, s))
			b.Output("y", b.MatMul(p, b.Add(graph.Cast{To: graph.F32}, v), false, false))
		}, `matmul "scores": the product of queries and keys is f64, that with the values f32`},
		{"softmax over other groups", with(func(b *graph.Builder, s *graph.Node) *graph.Node {
			return b.Named(b.Reshape(s, 1, 25), "flat")
		}, func(b *graph.Builder, p *graph.Node) *graph.Node {
			return b.Named(b.Reshape(p, 5, 5), "back")
		}), `reshape "back": it gives [1,25] the shape [5,5], in which the keys are not the last axis`},
		{"scores from other groups", func(b *graph.Builder) {
			s := b.Reshape(b.MatMul(b.Input("q", passtest.F64(5, 3)), b.Input("k", passtest.F64(10, 3)), false, true), 25, 2)
			b.Output("y", b.MatMul(passtest.Softmax(b, b.Named(s, "s")), b.Input("v", passtest.F64(2, 3)), false, false))
		}, `reshape "s": it gives [5,10] the shape [25,2], in which the keys are not the last axis`},
		{"masked by too little", with(func(b *graph.Builder, s *graph.Node) *graph.Node {
			return b.Named(b.Add(graph.Select{}, keep(b), s, b.Scalar(graph.F64, -5)), "masked")
		}, nil), `select "masked": it gives masked scores the value -5, which is not low enough to be nothing beside others`},
		{"masked by something else", with(func(b *graph.Builder, s *graph.Node) *graph.Node {
			return b.Named(b.Add(graph.Select{}, keep(b), s, b.Input("low", passtest.F64())), "masked")
		}, nil), `select "masked": it gives masked scores the value of input "low", which is not one constant`},
		{"masked in two ways", with(func(b *graph.Builder, s *graph.Node) *graph.Node {
			s = b.Binary(graph.Add, s, b.Input("m", passtest.F64(5, 5)))
			return b.Named(b.Add(graph.Select{}, keep(b), s, b.Scalar(graph.F64, -1e9)), "masked")
		}, nil), `select "masked": it gives masked scores the value -1e+09 beside another mask, and a query may keep no key`},
		{"mask scaled by what is not known", with(func(b *graph.Builder, s *graph.Node) *graph.Node {
			s = b.Named(b.Binary(graph.Add, s, b.Input("m", passtest.F64(5, 5))), "masked")
			return b.Binary(graph.Mul, s, b.Input("t", passtest.F64()))
		}, nil), `add "masked": the masked scores are scaled by input "t", which is not constant`},
		{"mask scaled by less than nothing", with(func(b *graph.Builder, s *graph.Node) *graph.Node {
			s = b.Named(b.Binary(graph.Sub, s, b.Input("m", passtest.F64(5, 5))), "masked")
			return b.BinaryScalar(graph.Mul, s, -2)
		}, nil), `sub "masked": the masked scores are scaled by -2`},
		{"mask of a wider type", wideMask(func(b *graph.Builder) *graph.Node { return b.Input("m", passtest.F64(5, 5)) }),
			`add "masked": the mask input "m" is f64, and the products f32`},
		{"constant mask of a wider type", wideMask(func(b *graph.Builder) *graph.Node {
			return b.Named(maskOf(b, graph.F64, -1e300, func(ix []int) bool { return ix[0] > ix[1] }, 5, 5), "m")
		}), `add "masked": the mask const "m" is f64, and not all of its values are f32`},
		{"nothing to multiply", func(b *graph.Builder) {
			s := b.Named(b.MatMul(b.Input("q", passtest.F64(5, 0)), b.Input("k", passtest.F64(5, 0)), false, true), "scores")
			b.Output("y", b.MatMul(passtest.Softmax(b, s), b.Input("v", passtest.F64(5, 2)), false, false))
		}, `matmul "scores": there is nothing to compute: its operands are f64[5,0] and f64[5,0]`},
		{"rows grouped in two ways", func(b *graph.Builder) {
			s := b.MatMul(b.Input("q", passtest.F64(6, 5, 4)), b.Input("k", passtest.F64(6, 5, 4)), false, true)
			s = added(b.Input("m", passtest.F64(2, 1, 1, 5)))(b, b.Reshape(s, 2, 3, 5, 5))
			p := b.Named(passtest.Softmax(b, b.Reshape(s, 3, 2, 5, 5)), "p")
			b.Output("y", b.MatMul(p, b.Input("v", passtest.F64(3, 1, 5, 2)), false, false))
		}, `softmax "p": its rows are [2 3 5] in one place and [3 2 5] in another`},
		{"keys that differ along the queries", func(b *graph.Builder) {
			s := b.MatMul(b.Input("q", passtest.F64(4, 5, 3)), b.Input("k", passtest.F64(4, 6, 3)), false, true)
			s = added(b.Input("m", passtest.F64(20, 6)))(b, b.Reshape(s, 20, 6))
			p := b.Reshape(b.Named(passtest.Softmax(b, s), "p"), 4, 5, 6)
			b.Output("y", b.MatMul(p, b.Input("v", passtest.F64(4, 6, 2)), false, false))
		}, `softmax "p": along the axis of 20 queries, keys or values differ`},
		{"too many axes", func(b *graph.Builder) {
			x := b.Transpose(b.Input("x", passtest.F64(2, 2, 2, 2, 2, 2, 2, 4)), 7, 6, 5, 4, 3, 2, 1, 0)
			q := b.BinaryScalar(graph.Mul, b.Reshape(x, 2, 64, 4), 0.3)
			b.Output("y", b.Named(passtest.Attend(b, q, b.Input("k", passtest.F64(2, 3, 4)), b.Input("v", passtest.F64(2, 3, 4))), "y"))
		}, `matmul "y": its operands take more than 8 axes to describe`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := attentionMisses(t, graphtest.Built(t, tt.build), nil)
			if len(got) != 1 || got[0] != tt.want {
				t.Errorf("missed fusions %q\nwant %q", got, tt.want)
			}
		})
	}
}

// wideMask is attention in f32 with a mask added in f64.
func wideMask(mask func(b *graph.Builder) *graph.Node) func(b *graph.Builder) {
	return func(b *graph.Builder) {
		q, k, v := passtest.QKV(b, graph.F32, 5, 5)
		s := b.Add(graph.Cast{To: graph.F64}, b.MatMul(q, k, false, true))
		s = b.Named(b.Binary(graph.Add, s, mask(b)), "masked")
		b.Output("y", b.MatMul(b.Add(graph.Cast{To: graph.F32}, passtest.Softmax(b, s)), v, false, false))
	}
}

// noAttention is a target without a kernel for attention.
type noAttention struct{}

func (noAttention) Name() string { return "bare" }

func (noAttention) Accepts(op graph.Op, _, _ []graph.Type) error {
	if _, ok := op.(graph.Attention); ok {
		return errors.New("bare has no attention")
	}
	return nil
}

func TestAttentionRefused(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		q, k, v := passtest.QKV(b, graph.F64, 5, 5)
		b.Output("y", b.MatMul(b.Named(passtest.Softmax(b, b.MatMul(q, k, false, true)), "p"), v, false, false))
	})
	if got := attentionMisses(t, g, noAttention{}); len(got) != 1 || got[0] != `softmax "p": bare has no attention` {
		t.Errorf("missed fusions %q", got)
	}
}

// TestAttentionNoMisses checks that a softmax that is not between contractions is not worth telling.
func TestAttentionNoMisses(t *testing.T) {
	for name, build := range map[string]func(b *graph.Builder){
		"classifier": func(b *graph.Builder) {
			b.Output("y", passtest.Softmax(b, b.MatMul(b.Input("x", passtest.F64(4, 5)), b.Param("w", passtest.F64(5, 3)), false, false)))
		},
		"softmax of an input": func(b *graph.Builder) {
			b.Output("y", b.MatMul(passtest.Softmax(b, b.Input("x", passtest.F64(4, 5))), b.Param("w", passtest.F64(5, 3)), false, false))
		},
		"gate": func(b *graph.Builder) {
			x := b.Input("x", passtest.F64(4, 5))
			gate := passtest.Softmax(b, b.MatMul(x, b.Param("w", passtest.F64(5, 3)), false, false))
			one := b.Broadcast(b.Slice(gate, 1, 0, 1, 1), graph.ShapeOf(4, 5))
			b.Output("y", b.MatMul(b.Binary(graph.Mul, x, one), b.Param("v", passtest.F64(5, 2)), false, false))
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := attentionMisses(t, graphtest.Built(t, build), nil); len(got) != 0 {
				t.Errorf("missed fusions %q", got)
			}
		})
	}
}

// TestAttentionPlaces checks that a missed fusion names the user's lines.
func TestAttentionPlaces(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		q, k, v := passtest.QKV(b, graph.F64, 5, 5)
		s := b.MatMul(q, k, false, true)
		b.Output("z", b.Unary(graph.Tanh, s))
		b.Output("y", b.MatMul(passtest.Softmax(b, s), v, false, false))
	})
	_, tr := passtest.Run(t, g, passes.Config{Stop: "fuse-attention"})
	m := passtest.Stage(t, tr, "fuse-attention").Misses
	if len(m) != 1 || !strings.Contains(m[0].Reason, `tanh %4 of "q" and "k" (miss_test.go:`) ||
		!strings.Contains(m[0].At, "(miss_test.go:") {
		t.Errorf("missed fusions %+v", m)
	}
}
