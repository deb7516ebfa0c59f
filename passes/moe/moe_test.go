package moe_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/passes"
	"fusec/passes/passtest"
)

// A spelling is one way to write a mixture of experts.
type spelling struct {
	name  string
	lead  []int
	build func(w *passtest.MoEWriter) *graph.Node
	want  string // as moeOf tells
}

// gated is the plain sum under gates made from the softmax.
func gated(gates func(w *passtest.MoEWriter, p *graph.Node) *graph.Node) func(w *passtest.MoEWriter) *graph.Node {
	return func(w *passtest.MoEWriter) *graph.Node { return w.Sum(gates(w, w.Softmax(w.Logits())), w.Relu) }
}

func asTheyAre(_ *passtest.MoEWriter, p *graph.Node) *graph.Node { return p }

var moeSpellings = []spelling{
	{"softmax, tokens in three axes", []int{2, 3}, gated(asTheyAre), "3 relu dense"},
	{"one token", []int{1}, gated(asTheyAre), "3 relu dense"},
	{"constant mask", []int{4}, gated(func(w *passtest.MoEWriter, p *graph.Node) *graph.Node {
		mask := graph.NewTensor(p.Type)
		for i := range 4 {
			mask.SetFloat(3*i+i%3, 1)
		}
		return w.B.Binary(graph.Mul, p, w.B.Const(mask))
	}), "3 relu"},
	{"constant weights that are no mask", []int{4}, gated(func(w *passtest.MoEWriter, p *graph.Node) *graph.Node {
		return w.B.Binary(graph.Mul, p, w.B.Broadcast(w.B.Const(graph.Filled(passtest.F64(3), 0.5)), p.Type.Shape))
	}), "3 relu dense"},
	{"select by an input", []int{4}, gated(func(w *passtest.MoEWriter, p *graph.Node) *graph.Node {
		return w.B.Add(graph.Select{}, w.B.Input("keep", graph.TypeOf(graph.Bool, 4, 3)), p, w.B.Scalar(graph.F64, 0))
	}), "3 relu"},
	{"top 2 by route", []int{2, 3}, gated(func(w *passtest.MoEWriter, p *graph.Node) *graph.Node {
		return w.B.Binary(graph.Mul, w.Float(w.B.Add(graph.Route{K: 2}, p)), p)
	}), "3 relu top 2 exactly"},
	{"route with a capacity, renormalised", []int{5}, gated(func(w *passtest.MoEWriter, p *graph.Node) *graph.Node {
		p = w.B.Add(graph.Select{}, w.B.Add(graph.Route{K: 2, Capacity: 2}, p), p, w.B.Scalar(graph.F64, 0))
		return w.B.Binary(graph.Div, p, w.B.BinaryScalar(graph.Add, w.Statistic(graph.Sum, p), 1e-9))
	}), "3 relu top 2 exactly"},
	{"expert choice", []int{5}, gated(func(w *passtest.MoEWriter, p *graph.Node) *graph.Node {
		return w.B.Binary(graph.Mul, p, w.Float(w.B.Add(graph.Route{Capacity: 2, ExpertChoice: true}, p)))
	}), "3 relu"},
	{"at least the second of top_k", []int{5}, gated(func(w *passtest.MoEWriter, p *graph.Node) *graph.Node {
		second := w.B.Slice(w.B.Add(graph.TopK{K: 2}, p), 1, 1, 1, 1)
		return w.B.Binary(graph.Mul, p, w.Float(w.B.Binary(graph.Ge, p, w.B.Broadcast(second, p.Type.Shape))))
	}), "3 relu top 2"},
	{"one-hot of the indices of top_k", []int{5}, gated(func(w *passtest.MoEWriter, p *graph.Node) *graph.Node {
		b, s := w.B, graph.ShapeOf(5, 2, 3)
		ix, err := graph.TensorOf([]int64{0, 1, 2}, 3)
		if err != nil {
			b.Fail(err)
		}
		at := b.Broadcast(b.Reshape(b.Add(graph.Result{Index: 1}, b.Add(graph.TopK{K: 2}, p)), 5, 2, 1), s)
		hits := w.Float(b.Binary(graph.Eq, at, b.Broadcast(b.Const(ix), s)))
		return b.Binary(graph.Mul, p, b.Reduce(graph.Sum, hits, false, 1))
	}), "3 relu top 2"},
	{"two steps, the larger taken off", []int{5}, gated(func(w *passtest.MoEWriter, p *graph.Node) *graph.Node {
		b := w.B
		first := w.Float(b.Binary(graph.Ge, p, w.Statistic(graph.MaxOf, p)))
		rest := b.Binary(graph.Sub, p, b.Binary(graph.Mul, p, first))
		second := w.Float(b.Binary(graph.Le, w.Statistic(graph.MaxOf, rest), rest))
		return b.Binary(graph.Add, b.Binary(graph.Mul, p, first), b.Binary(graph.Mul, second, p))
	}), "3 relu top 2"},
	{"two steps, by select", []int{5}, gated(func(w *passtest.MoEWriter, p *graph.Node) *graph.Node {
		b := w.B
		rest := b.Add(graph.Select{}, b.Binary(graph.Lt, p, w.Statistic(graph.MaxOf, p)), p, b.Scalar(graph.F64, -1))
		return b.Add(graph.Select{}, b.Binary(graph.Ge, p, w.Statistic(graph.MaxOf, rest)), p, b.Scalar(graph.F64, 0))
	}), "3 relu top 2"},
	{"logits chosen or −Inf", []int{5}, func(w *passtest.MoEWriter) *graph.Node {
		l := w.Logits()
		l = w.B.Add(graph.Select{}, w.B.Add(graph.Route{K: 2}, l), l, w.B.Scalar(graph.F64, math.Inf(-1)))
		return w.Sum(w.Softmax(l), w.Relu)
	}, "3 relu top 2 exactly"},
	{"logits less 1e9 times a mask", []int{5}, func(w *passtest.MoEWriter) *graph.Node {
		l := w.Logits()
		off := w.Float(w.B.Binary(graph.Lt, l, w.Statistic(graph.MaxOf, l)))
		return w.Sum(w.Softmax(w.B.Binary(graph.Sub, l, w.B.BinaryScalar(graph.Mul, off, 1e9))), w.Relu)
	}, "3 relu"},
	{"logits and the logarithm of a mask", []int{5}, func(w *passtest.MoEWriter) *graph.Node {
		l := w.Logits()
		on := w.Float(w.B.Add(graph.Route{K: 1}, l))
		return w.Sum(w.Softmax(w.B.Binary(graph.Add, l, w.B.Unary(graph.Log, on))), w.Relu)
	}, "3 relu top 1"},
	{"logits with a constant mask", []int{4}, func(w *passtest.MoEWriter) *graph.Node {
		mask := graph.NewTensor(passtest.F64(4, 3))
		for i := range 12 {
			if i%3 != i/3%3 {
				mask.SetFloat(i, -1e9)
			}
		}
		return w.Sum(w.Softmax(w.B.Binary(graph.Add, w.Logits(), w.B.Const(mask))), w.Relu)
	}, "3 relu"},
	{"relu gates", []int{5}, func(w *passtest.MoEWriter) *graph.Node {
		return w.Sum(w.B.Unary(graph.Relu, w.Logits()), w.Relu)
	}, "3 relu"},
	{"gates with the experts first", []int{5}, func(w *passtest.MoEWriter) *graph.Node {
		p := w.B.Add(graph.Softmax{Axis: 0}, w.B.MatMul(w.Param("gate", 4, 3), w.X, true, true))
		i := -1
		return w.SumOf(func(e int) *graph.Node {
			i++
			c := w.B.Reshape(w.B.Slice(p, 0, i, 1, 1), 5, 1)
			return w.B.Broadcast(c, graph.ShapeOf(5, 3))
		})
	}, "3 relu dense"},
	{"two of three experts", []int{5}, func(w *passtest.MoEWriter) *graph.Node {
		p := w.Softmax(w.Logits())
		y := w.B.Binary(graph.Mul, w.Relu(0), w.Column(p, 2))
		return w.B.Binary(graph.Add, y, w.B.Binary(graph.Mul, w.Column(p, 1), w.Relu(1)))
	}, "2 relu dense"},
	{"one gate for two experts", []int{5}, func(w *passtest.MoEWriter) *graph.Node {
		p := w.Softmax(w.Logits())
		y := w.B.Binary(graph.Mul, w.Relu(0), w.Column(p, 2))
		y = w.B.Binary(graph.Add, y, w.B.Binary(graph.Mul, w.Column(p, 2), w.Relu(1)))
		return w.B.Binary(graph.Add, y, w.B.Binary(graph.Mul, w.Column(p, 0), w.Relu(2)))
	}, "3 relu dense"},
	{"a residual between, and signs", []int{5}, func(w *passtest.MoEWriter) *graph.Node {
		b, p := w.B, w.Softmax(w.Logits())
		y := b.Binary(graph.Sub, b.Input("r", passtest.F64(5, 3)), b.Binary(graph.Mul, w.Relu(0), w.Column(p, 0)))
		y = b.Binary(graph.Sub, y, b.Unary(graph.Tanh, b.Input("s", passtest.F64(5, 3))))
		return b.Binary(graph.Sub, y, b.Binary(graph.Mul, w.Relu(1), w.Column(p, 1)))
	}, "2 relu dense"},
	{"a number added", []int{5}, func(w *passtest.MoEWriter) *graph.Node {
		return w.B.Binary(graph.Add, w.Sum(w.Softmax(w.Logits()), w.Relu), w.B.Input("c", passtest.F64()))
	}, "3 relu dense"},
	{"half of the sum in a larger one", []int{2, 3}, func(w *passtest.MoEWriter) *graph.Node {
		b, p := w.B, w.Softmax(w.Logits())
		y := b.Binary(graph.Add, b.Binary(graph.Mul, w.Relu(0), w.Column(p, 0)), b.Binary(graph.Mul, w.Relu(1), w.Column(p, 1)))
		y = b.Unary(graph.Neg, b.Reshape(b.BinaryScalar(graph.Mul, y, 0.3), 6, 3))
		third := b.Reshape(b.Binary(graph.Mul, w.Relu(2), w.Column(p, 2)), 6, 3)
		return b.Binary(graph.Sub, y, third)
	}, "3 relu dense"},
	{"uneven constants", []int{5}, func(w *passtest.MoEWriter) *graph.Node {
		b, p := w.B, w.Softmax(w.Logits())
		y := b.Binary(graph.Mul, b.BinaryScalar(graph.Mul, w.Relu(0), 3), w.Column(p, 0))
		return b.Binary(graph.Add, y, b.BinaryScalar(graph.Div, b.Binary(graph.Mul, w.Relu(1), w.Column(p, 1)), 3))
	}, "2 relu dense"},
	{"divided one by one", []int{5}, func(w *passtest.MoEWriter) *graph.Node {
		b := w.B
		p := b.Unary(graph.Sigmoid, w.Logits())
		sum := b.Broadcast(b.Reduce(graph.Sum, p, true, 1), graph.ShapeOf(5, 3))
		return w.SumOf(func(e int) *graph.Node { return b.Binary(graph.Div, w.Column(p, e), sum) })
	}, "3 relu dense"},
	{"a temperature for all", []int{5}, func(w *passtest.MoEWriter) *graph.Node {
		c := w.B.Input("c", passtest.F64())
		p := w.Softmax(w.Logits())
		return w.SumOf(func(e int) *graph.Node { return w.B.Binary(graph.Mul, w.Column(p, e), c) })
	}, "3 relu dense"},
	{"two mixtures", []int{5}, func(w *passtest.MoEWriter) *graph.Node {
		y := w.Sum(w.Softmax(w.Logits()), w.Relu)
		return w.B.Binary(graph.Add, y, w.Sum(w.B.Unary(graph.Sigmoid, w.Logits()), w.Relu))
	}, "3 relu dense, 3 relu dense"},
	{"weights transposed", []int{5}, func(w *passtest.MoEWriter) *graph.Node {
		return w.Sum(w.Softmax(w.Logits()), func(int) *graph.Node {
			h := w.B.Unary(graph.Tanh, w.B.MatMul(w.X, w.Param("up", 5, 4), false, true))
			return w.B.MatMul(h, w.B.Transpose(w.Param("down", 3, 5), 1, 0), false, false)
		})
	}, "3 tanh dense"},
	{"slices of stacked weights, transposed, and biases", []int{5}, func(w *passtest.MoEWriter) *graph.Node {
		b := w.B
		up, down, bias := w.Param("up", 3, 5, 4), w.Param("down", 3, 5, 3), w.Param("bias", 3, 3)
		return w.Sum(w.Softmax(w.Logits()), func(e int) *graph.Node {
			h := b.Unary(graph.Silu, b.MatMul(w.X, b.Reshape(b.Slice(up, 0, e, 1, 1), 5, 4), false, true))
			y := b.MatMul(h, b.Reshape(b.Slice(down, 0, e, 1, 1), 5, 3), false, false)
			return b.Binary(graph.Add, b.Broadcast(b.Slice(bias, 0, e, 1, 1), y.Type.Shape), y)
		})
	}, "3 silu bias stacked dense"},
	{"slices out of order", []int{5}, func(w *passtest.MoEWriter) *graph.Node {
		b := w.B
		up, down := w.Param("up", 3, 4, 5), w.Param("down", 3, 5, 3)
		return w.Sum(w.Softmax(w.Logits()), func(e int) *graph.Node {
			h := b.Unary(graph.Silu, b.MatMul(w.X, b.Reshape(b.Slice(up, 0, 2-e, 1, 1), 4, 5), false, false))
			return b.MatMul(h, b.Reshape(b.Slice(down, 0, e, 1, 1), 5, 3), false, false)
		})
	}, "3 silu dense"},
	{"geglu with biases", []int{2, 3}, func(w *passtest.MoEWriter) *graph.Node {
		b := w.B
		linear := func(x *graph.Node, in, out int) *graph.Node {
			y := b.MatMul(x, w.Param("w", in, out), false, false)
			return b.Binary(graph.Add, y, b.Broadcast(w.Param("b", out), y.Type.Shape))
		}
		return w.Sum(w.Softmax(w.Logits()), func(int) *graph.Node {
			return linear(b.Binary(graph.Mul, linear(w.X, 4, 5), b.Unary(graph.GeluErf, linear(w.X, 4, 5))), 5, 3)
		})
	}, "3 gelu_erf gated bias dense"},
	{"batched products", []int{2, 3}, func(w *passtest.MoEWriter) *graph.Node {
		b := w.B
		linear := func(x *graph.Node, in, out int) *graph.Node {
			y := b.MatMul(x, w.Param("w", 3, in, out), false, false)
			return b.Binary(graph.Add, y, b.Broadcast(w.Param("b", 3, 1, out), y.Type.Shape))
		}
		x := b.Broadcast(b.Reshape(w.X, 1, 6, 4), graph.ShapeOf(3, 6, 4))
		y := linear(b.Binary(graph.Mul, b.Unary(graph.Silu, linear(x, 4, 5)), linear(x, 4, 5)), 5, 3)
		p := b.Reshape(b.Transpose(b.Reshape(w.Softmax(w.Logits()), 6, 3), 1, 0), 3, 6, 1)
		return b.Reshape(b.Reduce(graph.Sum, b.Binary(graph.Mul, y, b.Broadcast(p, y.Type.Shape)), false, 0), 2, 3, 3)
	}, "3 silu gated bias stacked dense"},
	{"batched products, experts in the middle, averaged", []int{5}, func(w *passtest.MoEWriter) *graph.Node {
		b := w.B
		h := b.Unary(graph.Relu, b.MatMul(w.X, w.Param("up", 3, 4, 5), false, false))
		y := b.Transpose(b.MatMul(h, w.Param("down", 3, 3, 5), false, true), 1, 0, 2)
		p := w.Softmax(w.Logits())
		p = b.Binary(graph.Mul, p, w.Float(b.Add(graph.Route{K: 1}, p)))
		return b.Reduce(graph.Mean, b.Binary(graph.Mul, y, b.Broadcast(b.Reshape(p, 5, 3, 1), y.Type.Shape)), false, 1)
	}, "3 relu stacked top 1 exactly"},
	{"results joined along an axis of experts", []int{5}, func(w *passtest.MoEWriter) *graph.Node {
		b := w.B
		one := func() *graph.Node { return b.Reshape(w.Relu(0), 5, 1, 3) }
		y := b.Add(graph.Concat{Axis: 1}, one(), one(), one())
		p := b.Reshape(w.Softmax(w.Logits()), 5, 3, 1)
		return b.Reduce(graph.Sum, b.Binary(graph.Mul, b.Broadcast(p, y.Type.Shape), y), false, 1)
	}, "3 relu dense"},
	{"results of one element", []int{5}, func(w *passtest.MoEWriter) *graph.Node {
		b, p := w.B, w.Softmax(w.Logits())
		var y *graph.Node
		for e := range 3 {
			h := b.Unary(graph.Relu, b.MatMul(w.X, w.Param("up", 4, 5), false, false))
			t := b.Binary(graph.Mul, b.Slice(p, 1, e, 1, 1), b.MatMul(h, w.Param("down", 5, 1), false, false))
			if y == nil {
				y = t
			} else {
				y = b.Binary(graph.Add, y, t)
			}
		}
		return y
	}, "3 relu dense"},
}

// TestMoE compiles every spelling and looks for one MoE of the same values, and nothing else that multiplies matrices
// but the gate.
func TestMoE(t *testing.T) {
	for _, tt := range moeSpellings {
		t.Run(tt.name, func(t *testing.T) {
			g := graphtest.Built(t, func(b *graph.Builder) { b.Output("y", tt.build(passtest.NewMoEWriter(b, 3, tt.lead...))) })
			h, tr, err := passes.Run(g, passes.Config{Verify: true, Stop: "simplify-again"})
			if err != nil {
				t.Fatal(err)
			}
			if got := moeOf(h); got != tt.want {
				t.Errorf("made %q, want %q\nof %s\nmisses %+v", got, tt.want, passtest.Ops(passtest.Stage(t, tr, "raise").Graph),
					passtest.Stage(t, tr, "fuse-moe").Misses)
			}
			if n := strings.Count(passtest.Ops(h), "matmul"); n > strings.Count(tt.want, ",")+1 {
				t.Errorf("left %s", passtest.Ops(h))
			}
			for seed := range uint64(3) {
				passtest.SameNumbers(t, g, h, graphtest.Values(rand.New(rand.NewPCG(seed, 9)), g))
			}
		})
	}
}
