package attention_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/passes"
	"fusec/passes/constant"
	"fusec/passes/passtest"
)

// attended compiles g until the passes that rewrite are done and checks its values.
func attended(t *testing.T, g *graph.Graph) *graph.Graph {
	t.Helper()
	h, _, err := passes.Run(g, passes.Config{Verify: true, Stop: "simplify-again"})
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(3) {
		passtest.SameNumbers(t, g, h, graphtest.Values(rand.New(rand.NewPCG(seed, 3)), g))
	}
	return h
}

// repeat is a broadcast to the given dimensions.
func repeat(b *graph.Builder, x *graph.Node, dims ...int) *graph.Node {
	return b.Broadcast(x, graph.ShapeOf(dims...))
}

// maskOf makes a constant: 0 where keep says so, and low elsewhere.
func maskOf(b *graph.Builder, d graph.DType, low float64, keep func(ix []int) bool, dims ...int) *graph.Node {
	t := graph.NewTensor(graph.TypeOf(d, dims...))
	constant.EachIndex(t.Type.Shape, func(i int, ix []int) {
		if !keep(ix) {
			t.SetFloat(i, low)
		}
	})
	return b.Const(t)
}

// boolOf makes a constant of Bools.
func boolOf(b *graph.Builder, keep func(ix []int) bool, dims ...int) *graph.Node {
	t := graph.NewTensor(graph.TypeOf(graph.Bool, dims...))
	constant.EachIndex(t.Type.Shape, func(i int, ix []int) {
		if keep(ix) {
			t.SetFloat(i, 1)
		}
	})
	return b.Const(t)
}

// added is the step that adds a mask, repeated to the shape of the scores.
func added(mask *graph.Node) passtest.Step {
	return func(b *graph.Builder, s *graph.Node) *graph.Node {
		return b.Binary(graph.Add, s, b.Broadcast(mask, s.Type.Shape))
	}
}

// chosen is the step that selects scores where keep is true.
func chosen(keep *graph.Node, low float64) passtest.Step {
	return func(b *graph.Builder, s *graph.Node) *graph.Node {
		return b.Add(graph.Select{}, b.Broadcast(keep, s.Type.Shape), s, b.Scalar(s.Type.DType, low))
	}
}

// by is the step that scales.
func by(f graph.BinaryFn, c float64) passtest.Step {
	return func(b *graph.Builder, s *graph.Node) *graph.Node { return b.BinaryScalar(f, s, c) }
}

var (
	inf    = math.Inf(-1)
	causal = func(ix []int) bool { return ix[len(ix)-1] <= ix[len(ix)-2] }
)

// at gives the positions of a query and a key, where there are more keys than queries by more.
func at(more int, keep func(i, j int) bool) func([]int) bool {
	return func(ix []int) bool { return keep(ix[len(ix)-2]+more, ix[len(ix)-1]) }
}

// positions are the indices of n queries and of as many keys, repeated.
func positions(b *graph.Builder, n int) (i, j *graph.Node) {
	index := func(dims ...int) *graph.Node {
		x := graph.NewTensor(graph.TypeOf(graph.I64, dims...))
		for i := range n {
			x.SetFloat(i, float64(i))
		}
		return repeat(b, b.Const(x), n, n)
	}
	return index(n, 1), index(n)
}

// A spelling is one way to write attention, and what is made of it.
type spelling struct {
	name  string
	build func(b *graph.Builder) *graph.Node
	want  string
}

func TestAttentionSpellings(t *testing.T) {
	for _, tt := range concatSpellings(layoutSpellings, scaleSpellings, maskSpellings, groupSpellings, otherSpellings) {
		t.Run(tt.name, func(t *testing.T) {
			h := attended(t, graphtest.Built(t, func(b *graph.Builder) { b.Output("y", tt.build(b)) }))
			if got := passtest.Attention(h); got != tt.want {
				t.Errorf("made %q\nwant %q\nleft %s", got, tt.want, passtest.Ops(h))
			}
			if s := passtest.Ops(h); strings.Contains(s, "softmax") {
				t.Errorf("left %s", s)
			}
		})
	}
}

func concatSpellings(lists ...[]spelling) []spelling {
	var r []spelling
	for _, l := range lists {
		r = append(r, l...)
	}
	return r
}

var layoutSpellings = []spelling{
	{"2d", func(b *graph.Builder) *graph.Node {
		q, k, v := passtest.QKV(b, graph.F64, 5, 5)
		return passtest.Attend(b, q, k, v)
	}, "[5,4] [5,4] [5,6]"},
	{"3d", func(b *graph.Builder) *graph.Node {
		q, k, v := passtest.QKV(b, graph.F64, 5, 5, 3)
		return passtest.Attend(b, q, k, v)
	}, "[3,5,4] [3,5,4] [3,5,6]"},
	{"4d, f32", func(b *graph.Builder) *graph.Node {
		q, k, v := passtest.QKV(b, graph.F32, 5, 5, 2, 3)
		return passtest.Attend(b, q, k, v)
	}, "[2,3,5,4] [2,3,5,4] [2,3,5,6]"},
	{"5d", func(b *graph.Builder) *graph.Node {
		q, k, v := passtest.QKV(b, graph.F64, 3, 5, 2, 1, 3)
		return passtest.Attend(b, q, k, v)
	}, "[2,1,3,3,4] [2,1,3,5,4] [2,1,3,5,6]"},
	{"cross-attention", func(b *graph.Builder) *graph.Node {
		q, k, v := passtest.QKV(b, graph.F64, 3, 7, 2, 3)
		return passtest.Attend(b, q, k, v)
	}, "[2,3,3,4] [2,3,7,4] [2,3,7,6]"},
	{"one query", func(b *graph.Builder) *graph.Node {
		q, k, v := passtest.QKV(b, graph.F64, 1, 7, 2, 3)
		return passtest.Attend(b, q, k, v)
	}, "[2,3,1,4] [2,3,7,4] [2,3,7,6]"},
	{"one of everything", func(b *graph.Builder) *graph.Node {
		q, k, v := passtest.QKV(b, graph.F64, 1, 1, 1, 1)
		return passtest.Attend(b, q, k, v)
	}, "[1,1,1,4] [1,1,1,4] [1,1,1,6]"},
	{"keys by a transpose", func(b *graph.Builder) *graph.Node {
		q, k, v := passtest.QKV(b, graph.F64, 5, 7, 2, 3)
		s := b.MatMul(q, b.Transpose(k, 0, 1, 3, 2), false, false)
		return b.MatMul(passtest.Softmax(b, s), v, false, false)
	}, "[2,3,5,4] [2,3,7,4] [2,3,7,6]"},
	{"keys as a permuted view", func(b *graph.Builder) *graph.Node {
		q, _, v := passtest.QKV(b, graph.F64, 5, 7, 2, 3)
		k := b.Transpose(b.Input("x", passtest.F64(2, 7, 3, 4)), 0, 2, 3, 1)
		return b.MatMul(passtest.Softmax(b, b.MatMul(q, k, false, false)), v, false, false)
	}, "[2,3,5,4] [2,3,7,4] [2,3,7,6]"},
	{"every operand transposed", func(b *graph.Builder) *graph.Node {
		q, k, v := b.Input("q", passtest.F64(3, 4, 5)), b.Input("k", passtest.F64(3, 4, 7)), b.Input("v", passtest.F64(3, 6, 7))
		return b.MatMul(passtest.Softmax(b, b.MatMul(q, k, true, false)), v, false, true)
	}, "[3,5,4] [3,7,4] [3,7,6]"},
	{"scores and result turned around", func(b *graph.Builder) *graph.Node {
		q, k, v := passtest.QKV(b, graph.F64, 5, 7, 3)
		s := b.Transpose(b.MatMul(k, q, false, true), 0, 2, 1)
		return b.MatMul(v, passtest.Softmax(b, s), true, true)
	}, "[3,5,4] [3,7,4] [3,7,6]"},
	{"result turned around, values transposed", func(b *graph.Builder) *graph.Node {
		q, k, _ := passtest.QKV(b, graph.F64, 5, 7, 3)
		return b.MatMul(b.Input("w", passtest.F64(3, 6, 7)), passtest.Softmax(b, b.MatMul(q, k, false, true)), false, true)
	}, "[3,5,4] [3,7,4] [3,7,6]"},
	{"heads split, batch and heads in one axis", func(b *graph.Builder) *graph.Node {
		x := b.Input("x", passtest.F64(10, 12))
		part := func(w string) *graph.Node {
			y := b.Transpose(b.Reshape(b.MatMul(x, b.Param(w, passtest.F64(12, 12)), false, false), 2, 5, 3, 4), 0, 2, 1, 3)
			return b.Reshape(y, 6, 5, 4)
		}
		y := b.Reshape(passtest.Attend(b, part("wq"), part("wk"), part("wv")), 2, 3, 5, 4)
		return b.Reshape(b.Transpose(y, 0, 2, 1, 3), 10, 12)
	}, "[2,3,5,4] [2,3,5,4] [2,3,5,4]"},
	{"stacked projection", func(b *graph.Builder) *graph.Node {
		x := b.Reshape(b.MatMul(b.Input("x", passtest.F64(10, 12)), b.Param("w", passtest.F64(12, 36)), false, false), 2, 5, 3, 3, 4)
		part := func(i int) *graph.Node {
			return b.Transpose(b.Reshape(b.Slice(x, 2, i, 1, 1), 2, 5, 3, 4), 0, 2, 1, 3)
		}
		return passtest.Attend(b, part(0), part(1), part(2))
	}, "[2,3,5,4] [2,3,5,4] [2,3,5,4]"},
	{"scores regrouped for the softmax", func(b *graph.Builder) *graph.Node {
		q, k, v := passtest.QKV(b, graph.F64, 5, 7, 2, 3)
		p := b.Reshape(passtest.Softmax(b, b.Reshape(b.MatMul(q, k, false, true), 30, 7)), 2, 3, 5, 7)
		return b.MatMul(p, v, false, false)
	}, "[2,3,5,4] [2,3,7,4] [2,3,7,6]"},
	{"one query, scores as a vector", func(b *graph.Builder) *graph.Node {
		q, k, v := passtest.QKV(b, graph.F64, 1, 7)
		s := added(b.Input("m", passtest.F64(7)))(b, b.Reshape(b.MatMul(q, k, false, true), 7))
		return b.MatMul(b.Reshape(passtest.Softmax(b, s), 1, 7), v, false, false)
	}, "[1,4] [7,4] [7,6] mask f64[1,7]"},
	{"queries for all batches", func(b *graph.Builder) *graph.Node {
		_, k, v := passtest.QKV(b, graph.F64, 5, 7, 2, 3)
		return passtest.Attend(b, b.Input("p", passtest.F64(3, 5, 4)), k, v)
	}, "[2,3,5,4] [2,3,7,4] [2,3,7,6]"},
}

var scaleSpellings = []spelling{
	{"scores divided", scaled(nil, nil, by(graph.Div, 4)), "[5,4] [7,4] [7,6] ×0.25"},
	{"scores divided by a root", scaled(nil, nil, by(graph.Div, math.Sqrt(3))), "[5,4] [7,4] [7,6] ×0.5774"},
	{"scores multiplied", scaled(nil, nil, by(graph.Mul, 0.3)), "[5,4] [7,4] [7,6] ×0.3"},
	{"scores by a scalar before", scaled(nil, nil, func(b *graph.Builder, s *graph.Node) *graph.Node {
		return b.Binary(graph.Mul, b.Scalar(graph.F64, 0.3), s)
	}), "[5,4] [7,4] [7,6] ×0.3"},
	{"on q", scaled(by(graph.Div, 3), nil), "[5,4] [7,4] [7,6] ×0.3333"},
	{"on k", scaled(nil, by(graph.Mul, 0.7)), "[5,4] [7,4] [7,6] ×0.7"},
	{"on q, k and scores", scaled(by(graph.Mul, 0.5), by(graph.Mul, 0.6), by(graph.Mul, 3), by(graph.Div, 5)),
		"[5,4] [7,4] [7,6] ×0.18"},
	{"negative", scaled(nil, nil, func(b *graph.Builder, s *graph.Node) *graph.Node { return b.Unary(graph.Neg, s) },
		by(graph.Mul, 0.3)), "[5,4] [7,4] [7,6] ×-0.3"},
	{"negated", scaled(nil, nil, func(b *graph.Builder, s *graph.Node) *graph.Node { return b.Unary(graph.Neg, s) }),
		"[5,4] [7,4] [7,6] ×-1"},
	{"f32, repeated constant", func(b *graph.Builder) *graph.Node {
		q, k, v := passtest.QKV(b, graph.F32, 5, 7)
		return passtest.Attend(b, q, k, v, func(b *graph.Builder, s *graph.Node) *graph.Node {
			return b.Binary(graph.Mul, s, b.Const(graph.Filled(s.Type, 0.35)))
		})
	}, "[5,4] [7,4] [7,6] ×0.35"},
	{"q scaled before its heads are split", func(b *graph.Builder) *graph.Node {
		_, k, v := passtest.QKV(b, graph.F64, 5, 7, 2, 3)
		x := b.BinaryScalar(graph.Mul, b.Input("x", passtest.F64(2, 5, 12)), 0.3)
		return passtest.Attend(b, b.Transpose(b.Reshape(x, 2, 5, 3, 4), 0, 2, 1, 3), k, v)
	}, "[2,3,5,4] [2,3,7,4] [2,3,7,6] ×0.3"},
	{"temperature known at run time", scaled(nil, nil, func(b *graph.Builder, s *graph.Node) *graph.Node {
		return b.Binary(graph.Mul, s, b.Param("temperature", passtest.F64()))
	}), "[5,4] [7,4] [7,6]"},
	{"temperature first, then a constant", scaled(nil, nil, func(b *graph.Builder, s *graph.Node) *graph.Node {
		return b.Binary(graph.Mul, b.Param("temperature", passtest.F64()), s)
	}, by(graph.Mul, 0.3)), "[5,4] [7,4] [7,6] ×0.3"},
	{"q scaled after its axes were regrouped unevenly", func(b *graph.Builder) *graph.Node {
		q := b.BinaryScalar(graph.Mul, b.Reshape(b.Transpose(b.Input("x", passtest.F64(4, 3)), 1, 0), 2, 6), 0.3)
		return passtest.Attend(b, q, b.Input("k", passtest.F64(5, 6)), b.Input("v", passtest.F64(5, 2)))
	}, "[2,6] [5,6] [5,2] ×0.3"},
}

// scaled is attention with steps on q, k and the scores.
func scaled(onQ, onK passtest.Step, steps ...passtest.Step) func(*graph.Builder) *graph.Node {
	return func(b *graph.Builder) *graph.Node {
		q, k, v := passtest.QKV(b, graph.F64, 5, 7)
		if onQ != nil {
			q = onQ(b, q)
		}
		if onK != nil {
			k = onK(b, k)
		}
		return passtest.Attend(b, q, k, v, steps...)
	}
}

// masked is attention of 2 batches and 3 heads with steps on the scores.
func masked(sq, sk int, steps ...func(b *graph.Builder) passtest.Step) func(*graph.Builder) *graph.Node {
	return func(b *graph.Builder) *graph.Node {
		q, k, v := passtest.QKV(b, graph.F64, sq, sk, 2, 3)
		var all []passtest.Step
		for _, s := range steps {
			all = append(all, s(b))
		}
		return passtest.Attend(b, q, k, v, all...)
	}
}

const (
	square4D = "[2,3,5,4] [2,3,5,4] [2,3,5,6]"
	cross4D  = "[2,3,3,4] [2,3,5,4] [2,3,5,6]"
)

// fixed adds a constant mask.
func fixed(low float64, keep func([]int) bool, dims ...int) func(*graph.Builder) passtest.Step {
	return func(b *graph.Builder) passtest.Step { return added(maskOf(b, graph.F64, low, keep, dims...)) }
}

// given adds a mask that is known at run time.
func given(name string, dims ...int) func(*graph.Builder) passtest.Step {
	return func(b *graph.Builder) passtest.Step { return added(b.Input(name, passtest.F64(dims...))) }
}

// picked selects by a mask known at run time.
func picked(name string, low float64, dims ...int) func(*graph.Builder) passtest.Step {
	return func(b *graph.Builder) passtest.Step {
		return chosen(b.Input(name, graph.TypeOf(graph.Bool, dims...)), low)
	}
}

// padded keeps the first keys of each batch, as many as given.
func padded(lengths ...int) func([]int) bool {
	return func(ix []int) bool { return ix[len(ix)-1] < lengths[ix[0]] }
}

var maskSpellings = []spelling{
	{"input, full", masked(5, 5, given("m", 2, 3, 5, 5)), square4D + " mask f64[2,3,5,5]"},
	{"input, for all", masked(5, 5, given("m", 5, 5)), square4D + " mask f64[1,1,5,5]"},
	{"input, by batch", masked(5, 5, given("m", 2, 1, 5, 5)), square4D + " mask f64[2,1,5,5]"},
	{"input, by head", masked(5, 5, given("m", 1, 3, 1, 1)), square4D + " mask f64[1,3,1,1]"},
	{"input, by key", masked(5, 5, given("m", 5)), square4D + " mask f64[1,1,1,5]"},
	{"input, by batch and key", masked(5, 5, func(b *graph.Builder) passtest.Step {
		return added(b.Reshape(b.Input("m", passtest.F64(2, 5)), 2, 1, 1, 5))
	}), square4D + " mask f64[2,1,1,5]"},
	{"input, a scalar", masked(5, 5, given("m")), square4D + " mask f64[1,1,1,1]"},
	{"input, taken off and scaled", masked(5, 5, func(b *graph.Builder) passtest.Step {
		m := b.Input("m", passtest.F64(5, 5))
		return func(b *graph.Builder, s *graph.Node) *graph.Node {
			return b.BinaryScalar(graph.Mul, b.Binary(graph.Sub, s, b.Broadcast(m, s.Type.Shape)), 0.3)
		}
	}), square4D + " ×0.3 mask f64[1,1,5,5]"},
	{"input, taken off", masked(5, 5, func(b *graph.Builder) passtest.Step {
		m := b.Input("m", passtest.F64(5, 5))
		return func(b *graph.Builder, s *graph.Node) *graph.Node {
			return b.Binary(graph.Sub, s, b.Broadcast(m, s.Type.Shape))
		}
	}), square4D + " mask f64[1,1,5,5]"},
	{"inputs, several", masked(5, 5, given("m", 2, 1, 1, 5), given("n", 3, 5, 1), picked("keep", inf, 5, 5)),
		square4D + " mask f64[2,3,5,5]"},
	{"mask first", masked(5, 5, func(b *graph.Builder) passtest.Step {
		m := b.Input("m", passtest.F64(5, 5))
		return func(b *graph.Builder, s *graph.Node) *graph.Node {
			return b.Binary(graph.Add, b.Broadcast(m, s.Type.Shape), s)
		}
	}), square4D + " mask f64[1,1,5,5]"},
	{"mask from another product", masked(5, 5, func(b *graph.Builder) passtest.Step {
		m := b.MatMul(b.Input("r", passtest.F64(2, 3, 5, 2)), b.Param("w", passtest.F64(2, 5)), false, false)
		return func(b *graph.Builder, s *graph.Node) *graph.Node { return b.Binary(graph.Add, s, m) }
	}), square4D + " mask f64[2,3,5,5]"},
	{"batch and heads in one axis, mask by batch", func(b *graph.Builder) *graph.Node {
		q, k, v := passtest.QKV(b, graph.F64, 5, 5, 6)
		m := b.Input("m", passtest.F64(2, 1, 1, 5))
		return passtest.Attend(b, q, k, v, func(b *graph.Builder, s *graph.Node) *graph.Node {
			return b.Reshape(added(m)(b, b.Reshape(s, 2, 3, 5, 5)), 6, 5, 5)
		})
	}, square4D + " mask f64[2,1,1,5]"},

	{"causal, −Inf", masked(5, 5, fixed(inf, causal, 5, 5)), square4D + " causal"},
	{"causal, −1e9", masked(5, 5, fixed(-1e9, causal, 5, 5)), square4D + " causal"},
	{"causal, −1e4", masked(5, 5, fixed(-1e4, causal, 5, 5)), square4D + " mask f64[1,1,5,5]"},
	{"causal, full", masked(5, 5, fixed(-1e9, causal, 2, 3, 5, 5)), square4D + " causal"},
	{"causal, fewer queries", masked(3, 5, fixed(inf, at(2, func(i, j int) bool { return j <= i }), 3, 5)), cross4D + " causal"},
	{"causal, more queries, −Inf", masked(5, 3, fixed(inf, at(-2, func(i, j int) bool { return j <= i }), 5, 3)),
		"[2,3,5,4] [2,3,3,4] [2,3,3,6] causal"},
	{"causal, more queries, −1e9", masked(5, 3, fixed(-1e9, at(-2, func(i, j int) bool { return j <= i }), 5, 3)),
		"[2,3,5,4] [2,3,3,4] [2,3,3,6] mask f64[1,1,5,3]"},
	{"causal from the start, fewer queries", masked(3, 5, fixed(inf, causal, 3, 5)), cross4D + " causal lengths [3 3] tail"},
	{"causal by select", masked(5, 5, func(b *graph.Builder) passtest.Step { return chosen(boolOf(b, causal, 5, 5), inf) }),
		square4D + " causal"},
	{"causal by select, −1e9", masked(5, 5, func(b *graph.Builder) passtest.Step { return chosen(boolOf(b, causal, 5, 5), -1e9) }),
		square4D + " causal"},
	{"causal by select of what is masked", masked(5, 5, func(b *graph.Builder) passtest.Step {
		later := boolOf(b, func(ix []int) bool { return !causal(ix) }, 5, 5)
		return func(b *graph.Builder, s *graph.Node) *graph.Node {
			return b.Add(graph.Select{}, b.Broadcast(later, s.Type.Shape), b.Scalar(graph.F64, -1e9), s)
		}
	}), square4D + " causal"},
	{"causal by comparison, large", masked(70, 70, func(b *graph.Builder) passtest.Step {
		i, j := positions(b, 70)
		return chosen(b.Binary(graph.Le, j, i), inf)
	}), "[2,3,70,4] [2,3,70,4] [2,3,70,6] causal"},
	{"causal by arithmetic, large", masked(70, 70, func(b *graph.Builder) passtest.Step {
		ones := maskOf(b, graph.F64, 1, func(ix []int) bool { return !causal(ix) }, 70, 70)
		return added(b.BinaryScalar(graph.Mul, b.Binary(graph.Sub, b.Scalar(graph.F64, 1), ones), -1e9))
	}), "[2,3,70,4] [2,3,70,4] [2,3,70,6] causal"},
	{"causal by a choice of numbers, large", masked(70, 70, func(b *graph.Builder) passtest.Step {
		i, j := positions(b, 70)
		return added(b.Add(graph.Select{}, b.Binary(graph.Ge, i, j), b.Scalar(graph.F64, 0), b.Scalar(graph.F64, inf)))
	}), "[2,3,70,4] [2,3,70,4] [2,3,70,6] causal"},
	{"window by distance, large", masked(70, 70, func(b *graph.Builder) passtest.Step {
		i, j := positions(b, 70)
		far := b.BinaryScalar(graph.Ge, b.Unary(graph.Abs, b.Binary(graph.Sub, i, j)), 9)
		return added(b.BinaryScalar(graph.Mul, b.Add(graph.Cast{To: graph.F64}, far), -1e9))
	}), "[2,3,70,4] [2,3,70,4] [2,3,70,6] window 9"},
	{"causal and scaled after", masked(5, 5, fixed(inf, causal, 5, 5), func(*graph.Builder) passtest.Step { return by(graph.Div, 4) }),
		square4D + " ×0.25 causal"},
	{"causal taken off", masked(5, 5, func(b *graph.Builder) passtest.Step {
		m := maskOf(b, graph.F64, 1e9, causal, 5, 5)
		return func(b *graph.Builder, s *graph.Node) *graph.Node {
			return b.Binary(graph.Sub, s, b.Broadcast(m, s.Type.Shape))
		}
	}), square4D + " causal"},

	{"window", masked(5, 5, fixed(inf, at(0, func(i, j int) bool { return i-j < 2 && j-i < 2 }), 5, 5)), square4D + " window 2"},
	{"window, causal", masked(5, 5, fixed(-1e9, at(0, func(i, j int) bool { return j <= i && i-j < 3 }), 5, 5)),
		square4D + " causal window 3"},
	{"window, fewer queries", masked(3, 5, fixed(inf, at(2, func(i, j int) bool { return j <= i && i-j < 2 }), 3, 5)),
		cross4D + " causal window 2"},
	{"nothing", masked(5, 5, fixed(inf, func([]int) bool { return true }, 5, 5)), square4D},
	{"zeros and an input", masked(5, 5, fixed(-1e9, func([]int) bool { return true }, 5, 5), given("m", 5, 5)),
		square4D + " mask f64[1,1,5,5]"},

	{"padding", masked(5, 5, fixed(inf, padded(3, 5), 2, 1, 1, 5)), square4D + " lengths [3 5]"},
	{"padding, −1e9", masked(5, 5, fixed(-1e9, padded(3, 5), 2, 1, 1, 5)), square4D + " lengths [3 5]"},
	{"padding of everything, −Inf", masked(5, 5, fixed(inf, padded(0, 2), 2, 1, 1, 5)), square4D + " lengths [0 2]"},
	{"padding of everything, −1e9", masked(5, 5, fixed(-1e9, padded(0, 2), 2, 1, 1, 5)), square4D + " mask f64[2,1,1,5]"},
	{"padding of everything by select, −1e9",
		masked(5, 5, func(b *graph.Builder) passtest.Step { return chosen(boolOf(b, padded(0, 2), 2, 1, 1, 5), -1e9) }),
		square4D + " mask bool[2,1,1,5]"},
	{"padding and causal", masked(5, 5, fixed(inf, padded(3, 5), 2, 1, 1, 5), fixed(-1e9, causal, 5, 5)),
		square4D + " causal lengths [3 5]"},
	{"padding and causal in one sum", masked(5, 5, func(b *graph.Builder) passtest.Step {
		m := b.Binary(graph.Add, repeat(b, maskOf(b, graph.F64, inf, padded(3, 5), 2, 1, 1, 5), 2, 1, 5, 5),
			repeat(b, maskOf(b, graph.F64, inf, causal, 5, 5), 2, 1, 5, 5))
		return added(m)
	}), square4D + " causal lengths [3 5]"},
	{"padding by head", masked(5, 5, fixed(inf, func(ix []int) bool { return ix[3] < 2+ix[1] }, 1, 3, 1, 5)),
		square4D + " mask f64[1,3,1,5]"},
	{"padding on the left", masked(5, 5, fixed(inf, func(ix []int) bool { return ix[3] > ix[0] }, 2, 1, 1, 5)),
		square4D + " mask f64[2,1,1,5]"},
	{"padding known at run time, causal −Inf", masked(5, 5, given("m", 2, 1, 1, 5), fixed(inf, causal, 5, 5)),
		square4D + " causal mask f64[2,1,1,5]"},
	{"padding known at run time, causal −1e9", masked(5, 5, given("m", 2, 1, 1, 5), fixed(-1e9, causal, 5, 5)),
		square4D + " mask f64[2,1,5,5]"},
	{"padding and causal in one sum, at run time", masked(5, 5, func(b *graph.Builder) passtest.Step {
		m := b.Binary(graph.Add, repeat(b, b.Input("m", passtest.F64(2, 1, 1, 5)), 2, 1, 5, 5),
			repeat(b, maskOf(b, graph.F64, inf, causal, 5, 5), 2, 1, 5, 5))
		return added(m)
	}), square4D + " causal mask f64[2,1,1,5]"},
	{"causal less an input", masked(5, 5, func(b *graph.Builder) passtest.Step {
		return added(b.Binary(graph.Sub, maskOf(b, graph.F64, inf, causal, 5, 5), b.Input("m", passtest.F64(5, 5))))
	}), square4D + " causal mask f64[1,1,5,5]"},
	{"causal plus a number", masked(5, 5, func(b *graph.Builder) passtest.Step {
		return added(b.Binary(graph.Add, maskOf(b, graph.F64, inf, causal, 5, 5), b.Input("m", passtest.F64())))
	}), square4D + " causal mask f64[1,1,1,1]"},
	{"left padding and causal", masked(5, 5, fixed(inf, func(ix []int) bool { return ix[3] > ix[0] }, 2, 1, 1, 5),
		fixed(inf, causal, 5, 5)), square4D + " causal mask f64[2,1,1,5]"},
	{"checkered", masked(5, 5, fixed(-1e9, func(ix []int) bool { return (ix[0]+ix[1])%2 == 0 }, 5, 5)),
		square4D + " mask f64[1,1,5,5]"},
	{"bias", masked(5, 5, func(b *graph.Builder) passtest.Step {
		x := graph.NewTensor(passtest.F64(3, 5, 5))
		for i := range 75 {
			x.SetFloat(i, -float64(i%7))
		}
		return added(b.Const(x))
	}, fixed(inf, causal, 5, 5)), square4D + " causal mask f64[1,3,5,5]"},

	{"select by an input", masked(5, 5, picked("keep", inf, 2, 1, 1, 5)), square4D + " mask bool[2,1,1,5]"},
	{"select by an input, −1e9", masked(5, 5, picked("keep", -1e9, 2, 1, 1, 5)), square4D + " mask bool[2,1,1,5]"},
	{"select by an input, −1e9, by query", masked(5, 5, picked("keep", -1e9, 5, 5)), square4D + " mask bool[1,1,5,5]"},
	{"select by an input, inverted", masked(5, 5, func(b *graph.Builder) passtest.Step {
		drop := b.Input("drop", graph.TypeOf(graph.Bool, 5, 5))
		return func(b *graph.Builder, s *graph.Node) *graph.Node {
			return b.Add(graph.Select{}, b.Broadcast(drop, s.Type.Shape), b.Scalar(graph.F64, inf), s)
		}
	}), square4D + " mask bool[1,1,5,5]"},
	{"selects by two inputs", masked(5, 5, picked("keep", inf, 2, 1, 1, 5), picked("also", inf, 5, 5)),
		square4D + " mask bool[2,1,5,5]"},
	{"select by an input and causal", masked(5, 5, func(b *graph.Builder) passtest.Step {
		keep := b.Binary(graph.And, repeat(b, b.Input("keep", graph.TypeOf(graph.Bool, 2, 1, 1, 5)), 2, 1, 5, 5),
			repeat(b, boolOf(b, causal, 5, 5), 2, 1, 5, 5))
		return chosen(keep, inf)
	}), square4D + " causal mask bool[2,1,1,5]"},
}

var groupSpellings = []spelling{
	{"grouped queries, keys repeated", grouped(func(b *graph.Builder, x *graph.Node) *graph.Node {
		d := x.Type.Shape.At(3)
		return b.Reshape(repeat(b, b.Reshape(x, 2, 2, 1, 7, d), 2, 2, 3, 7, d), 2, 6, 7, d)
	}), "[2,6,5,4] [2,2,7,4] [2,2,7,6]"},
	{"grouped queries, keys joined", grouped(func(b *graph.Builder, x *graph.Node) *graph.Node {
		one, two := b.Slice(x, 1, 0, 1, 1), b.Slice(x, 1, 1, 1, 1)
		return b.Add(graph.Concat{Axis: 1}, one, one, one, two, two, two)
	}), "[2,6,5,4] [2,2,7,4] [2,2,7,6]"},
	{"grouped queries, repeated before heads are split off", func(b *graph.Builder) *graph.Node {
		q := b.Input("q", passtest.F64(2, 6, 5, 4))
		part := func(name string) *graph.Node {
			x := b.Reshape(b.Input(name, passtest.F64(2, 7, 8)), 2, 7, 2, 1, 4)
			return b.Transpose(b.Reshape(repeat(b, x, 2, 7, 2, 3, 4), 2, 7, 6, 4), 0, 2, 1, 3)
		}
		return passtest.Attend(b, q, part("k"), part("v"))
	}, "[2,6,5,4] [2,2,7,4] [2,2,7,4]"},
	{"groups in an axis of their own", func(b *graph.Builder) *graph.Node {
		q, k, v := b.Input("q", passtest.F64(2, 2, 3, 5, 4)), b.Input("k", passtest.F64(2, 2, 1, 7, 4)),
			b.Input("v", passtest.F64(2, 2, 1, 7, 6))
		return passtest.Attend(b, q, k, v)
	}, "[2,6,5,4] [2,2,7,4] [2,2,7,6]"},
	{"groups among the queries", func(b *graph.Builder) *graph.Node {
		q, k, v := b.Input("q", passtest.F64(2, 6, 5, 4)), b.Input("k", passtest.F64(2, 2, 7, 4)), b.Input("v", passtest.F64(2, 2, 7, 6))
		s := b.Reshape(b.MatMul(b.Reshape(q, 2, 2, 15, 4), k, false, true), 2, 6, 5, 7)
		s = added(maskOf(b, graph.F64, inf, at(2, func(i, j int) bool { return j <= i }), 5, 7))(b, s)
		return b.Reshape(b.MatMul(b.Reshape(passtest.Softmax(b, s), 2, 2, 15, 7), v, false, false), 2, 6, 5, 6)
	}, "[2,6,5,4] [2,2,7,4] [2,2,7,6] causal"},
	{"heads repeated in another order", grouped(func(b *graph.Builder, x *graph.Node) *graph.Node {
		return b.Add(graph.Concat{Axis: 1}, x, x, x)
	}), "[2,6,5,4] [2,6,7,4] [2,6,7,6]"},
	{"groups among the queries, heads in one axis", func(b *graph.Builder) *graph.Node {
		q, k, v := b.Input("q", passtest.F64(2, 6, 5, 4)), b.Input("k", passtest.F64(2, 2, 7, 4)), b.Input("v", passtest.F64(2, 2, 7, 6))
		s := b.Reshape(b.MatMul(b.Reshape(q, 2, 2, 15, 4), k, false, true), 12, 5, 7)
		s = added(b.Input("m", passtest.F64(5, 7)))(b, s)
		return b.Reshape(b.MatMul(b.Reshape(passtest.Softmax(b, s), 2, 2, 15, 7), v, false, false), 2, 6, 5, 6)
	}, "[12,5,4] [4,7,4] [4,7,6] mask f64[1,5,7]"},
	{"heads joined in reverse", grouped(func(b *graph.Builder, x *graph.Node) *graph.Node {
		one, two := b.Slice(x, 1, 0, 1, 1), b.Slice(x, 1, 1, 1, 1)
		return b.Add(graph.Concat{Axis: 1}, two, two, two, one, one, one)
	}), "[2,6,5,4] [2,6,7,4] [2,6,7,6]"},
	{"heads joined unevenly", grouped(func(b *graph.Builder, x *graph.Node) *graph.Node {
		one, two := b.Slice(x, 1, 0, 1, 1), b.Slice(x, 1, 1, 1, 1)
		return b.Add(graph.Concat{Axis: 1}, one, one, two, two, two, two)
	}), "[2,6,5,4] [2,6,7,4] [2,6,7,6]"},
	{"some heads joined", func(b *graph.Builder) *graph.Node {
		first := func(x *graph.Node) *graph.Node {
			one, two := b.Slice(x, 1, 0, 1, 1), b.Slice(x, 1, 1, 1, 1)
			return b.Add(graph.Concat{Axis: 1}, one, one, two, two)
		}
		return passtest.Attend(b, b.Input("q", passtest.F64(2, 4, 5, 4)), first(b.Input("k", passtest.F64(2, 3, 7, 4))),
			first(b.Input("v", passtest.F64(2, 3, 7, 6))))
	}, "[2,4,5,4] [2,4,7,4] [2,4,7,6]"},
	{"parts joined that are no heads", grouped(func(b *graph.Builder, x *graph.Node) *graph.Node {
		y := b.Unary(graph.Tanh, b.Slice(x, 1, 0, 1, 1))
		return b.Add(graph.Concat{Axis: 1}, y, y, y, x, b.Slice(x, 1, 1, 1, 1))
	}), "[2,6,5,4] [2,6,7,4] [2,6,7,6]"},
	{"keys repeated, values not", func(b *graph.Builder) *graph.Node {
		q, k, v := b.Input("q", passtest.F64(2, 6, 5, 4)), b.Input("k", passtest.F64(2, 1, 7, 4)), b.Input("v", passtest.F64(2, 6, 7, 6))
		return passtest.Attend(b, q, k, v)
	}, "[2,6,5,4] [2,6,7,4] [2,6,7,6]"},
	{"one head of keys, 4d", func(b *graph.Builder) *graph.Node {
		return passtest.Attend(b, b.Input("q", passtest.F64(2, 6, 5, 4)), b.Input("k", passtest.F64(2, 1, 7, 4)),
			b.Input("v", passtest.F64(2, 1, 7, 6)))
	}, "[2,6,5,4] [2,1,7,4] [2,1,7,6]"},
	{"one head of keys, 3d", func(b *graph.Builder) *graph.Node {
		return passtest.Attend(b, b.Input("q", passtest.F64(6, 5, 4)), b.Input("k", passtest.F64(1, 7, 4)),
			b.Input("v", passtest.F64(7, 6)))
	}, "[6,5,4] [1,7,4] [1,7,6]"},
	{"one head of keys, joined", func(b *graph.Builder) *graph.Node {
		k, v := b.Input("k", passtest.F64(2, 1, 7, 4)), b.Input("v", passtest.F64(2, 1, 7, 6))
		return passtest.Attend(b, b.Input("q", passtest.F64(2, 3, 5, 4)), b.Add(graph.Concat{Axis: 1}, k, k, k),
			b.Add(graph.Concat{Axis: 1}, v, v, v))
	}, "[2,3,5,4] [2,1,7,4] [2,1,7,6]"},
	{"keys for all batches and heads", func(b *graph.Builder) *graph.Node {
		return passtest.Attend(b, b.Input("q", passtest.F64(2, 6, 5, 4)), b.Input("k", passtest.F64(7, 4)),
			b.Input("v", passtest.F64(7, 6)))
	}, "[2,6,5,4] [2,1,7,4] [2,1,7,6]"},
}

// grouped is attention of 6 heads of queries and 2 of keys and values, repeated by more.
func grouped(more passtest.Step) func(*graph.Builder) *graph.Node {
	return func(b *graph.Builder) *graph.Node {
		return passtest.Attend(b, b.Input("q", passtest.F64(2, 6, 5, 4)), more(b, b.Input("k", passtest.F64(2, 2, 7, 4))),
			more(b, b.Input("v", passtest.F64(2, 2, 7, 6))))
	}
}

var otherSpellings = []spelling{
	{"softmax by hand", func(b *graph.Builder) *graph.Node {
		q, k, v := passtest.QKV(b, graph.F64, 5, 7, 2, 3)
		s := b.BinaryScalar(graph.Div, b.MatMul(q, k, false, true), 2)
		e := b.Unary(graph.Exp, b.Binary(graph.Sub, s, passtest.Spread(b, b.Reduce(graph.MaxOf, s, false, 3), s)))
		return b.MatMul(b.Binary(graph.Div, e, passtest.Spread(b, b.Reduce(graph.Sum, e, false, 3), s)), v, false, false)
	}, "[2,3,5,4] [2,3,7,4] [2,3,7,6] ×0.5"},
	{"softmax by hand, without the maximum", func(b *graph.Builder) *graph.Node {
		q, k, v := passtest.QKV(b, graph.F64, 5, 7)
		e := b.Unary(graph.Exp, b.MatMul(q, k, false, true))
		return b.MatMul(b.Binary(graph.Div, e, passtest.Spread(b, b.Reduce(graph.Sum, e, false, 1), e)), v, false, false)
	}, "[5,4] [7,4] [7,6]"},
	{"dropout", func(b *graph.Builder) *graph.Node {
		q, k, v := passtest.QKV(b, graph.F64, 5, 7, 6)
		p := passtest.Softmax(b, b.MatMul(q, k, false, true))
		return b.MatMul(b.Add(graph.Dropout{P: 0.3}, p, b.Input("seed", graph.TypeOf(graph.I64))), v, false, false)
	}, "[6,5,4] [6,7,4] [6,7,6] dropout 0.3"},
	{"dropout of grouped queries, regrouped", func(b *graph.Builder) *graph.Node {
		q, k, v := b.Input("q", passtest.F64(2, 6, 5, 4)), b.Input("k", passtest.F64(2, 2, 7, 4)), b.Input("v", passtest.F64(2, 2, 7, 6))
		p := passtest.Softmax(b, b.MatMul(b.Reshape(q, 2, 2, 15, 4), k, false, true))
		p = b.Add(graph.Dropout{P: 0.3}, b.Reshape(p, 2, 6, 5, 7), b.Input("seed", graph.TypeOf(graph.I64)))
		return b.MatMul(b.Reshape(p, 2, 2, 15, 7), v, false, false)
	}, "[2,2,15,4] [2,2,7,4] [2,2,7,6] dropout 0.3"},
	{"zeros for NaN", func(b *graph.Builder) *graph.Node {
		q, k, v := passtest.QKV(b, graph.F64, 5, 7, 3)
		s := added(maskOf(b, graph.F64, inf, func(ix []int) bool { return ix[0] != 2 && ix[1] < 5 }, 5, 7))(b,
			b.MatMul(q, k, false, true))
		p := passtest.Softmax(b, s)
		return b.MatMul(b.Add(graph.Select{}, b.Binary(graph.Ne, p, p), b.Scalar(graph.F64, 0), p), v, false, false)
	}, "[3,5,4] [3,7,4] [3,7,6] mask f64[1,5,7]"},
	{"zeros for NaN, the other way round", func(b *graph.Builder) *graph.Node {
		q, k, v := passtest.QKV(b, graph.F64, 5, 7)
		p := passtest.Softmax(b, b.MatMul(q, k, false, true))
		p = b.Add(graph.Select{}, b.Binary(graph.Eq, p, p), p, repeat(b, b.Scalar(graph.F64, 0), 5, 7))
		return b.MatMul(p, v, false, false)
	}, "[5,4] [7,4] [7,6]"},
	{"softmax in a wider type", func(b *graph.Builder) *graph.Node {
		q, k, v := passtest.QKV(b, graph.F32, 5, 7, 3)
		s := b.Add(graph.Cast{To: graph.F64}, b.MatMul(q, k, false, true))
		s = b.BinaryScalar(graph.Mul, s, 0.5)
		return b.MatMul(b.Add(graph.Cast{To: graph.F32}, passtest.Softmax(b, s)), v, false, false)
	}, "[3,5,4] [3,7,4] [3,7,6] ×0.5"},
	{"mask in a wider type", func(b *graph.Builder) *graph.Node {
		q, k, v := passtest.QKV(b, graph.F32, 5, 5, 3)
		s := b.Add(graph.Cast{To: graph.F64}, b.MatMul(q, k, false, true))
		s = added(b.Add(graph.Cast{To: graph.F64}, b.Input("m", graph.TypeOf(graph.F32, 5, 5))))(b, s)
		return b.MatMul(b.Add(graph.Cast{To: graph.F32}, passtest.Softmax(b, s)), v, false, false)
	}, "[3,5,4] [3,5,4] [3,5,6] mask f32[1,5,5]"},
	{"constant mask in a wider type", func(b *graph.Builder) *graph.Node {
		q, k, v := passtest.QKV(b, graph.F32, 5, 5, 3)
		s := b.Add(graph.Cast{To: graph.F64}, b.MatMul(q, k, false, true))
		s = added(maskOf(b, graph.F64, -1e9, func(ix []int) bool { return (ix[0]+ix[1])%2 == 0 }, 5, 5))(b, s)
		return b.MatMul(b.Add(graph.Cast{To: graph.F32}, passtest.Softmax(b, s)), v, false, false)
	}, "[3,5,4] [3,5,4] [3,5,6] mask f32[1,5,5]"},
}
