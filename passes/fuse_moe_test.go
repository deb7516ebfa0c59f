package passes

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
)

// moeWriter writes mixtures of experts over tokens x.
type moeWriter struct {
	b       *graph.Builder
	x       *graph.Node // [lead..., 4]
	experts int
	names   int
}

func newMoEWriter(b *graph.Builder, experts int, lead ...int) *moeWriter {
	return &moeWriter{b: b, x: b.Input("x", dt(append(lead, 4)...)), experts: experts}
}

func (w *moeWriter) param(name string, dims ...int) *graph.Node {
	w.names++
	return w.b.Param(fmt.Sprintf("%s%d", name, w.names), dt(dims...))
}

// logits are [lead..., experts].
func (w *moeWriter) logits() *graph.Node {
	return w.b.Named(w.b.MatMul(w.x, w.param("gate", 4, w.experts), false, false), "logits")
}

func (w *moeWriter) softmax(logits *graph.Node) *graph.Node {
	return w.b.Named(softmax(w.b, logits), "gates")
}

// column is column e of gates, repeated to the width 3.
func (w *moeWriter) column(gates *graph.Node, e int) *graph.Node {
	last := gates.Type.Shape.Rank() - 1
	c := w.b.Slice(gates, last, e, 1, 1)
	return w.b.Broadcast(c, c.Type.Shape.With(last, 3))
}

// relu is an expert without biases, from 4 by 5 to 3 elements.
func (w *moeWriter) relu(int) *graph.Node {
	h := w.b.Unary(graph.Relu, w.b.MatMul(w.x, w.param("up", 4, 5), false, false))
	return w.b.MatMul(h, w.param("down", 5, 3), false, false)
}

func (w *moeWriter) sum(gates *graph.Node, expert func(e int) *graph.Node) *graph.Node {
	var y *graph.Node
	for e := range w.experts {
		t := w.b.Binary(graph.Mul, expert(e), w.column(gates, e))
		if y == nil {
			y = t
		} else {
			y = w.b.Binary(graph.Add, y, t)
		}
	}
	return y
}

// statistic repeats a reduction along the last axis of x to the shape of x.
func (w *moeWriter) statistic(f graph.ReduceFn, x *graph.Node) *graph.Node {
	return w.b.Broadcast(w.b.Reduce(f, x, true, x.Type.Shape.Rank()-1), x.Type.Shape)
}

func (w *moeWriter) float(c *graph.Node) *graph.Node { return w.b.Add(graph.Cast{To: f64}, c) }

// moeSpelling is one way to write a mixture of experts.
type moeSpelling struct {
	name  string
	lead  []int
	build func(w *moeWriter) *graph.Node
	want  string // as moeOf tells
}

// gated is the plain sum under gates made from the softmax.
func gated(gates func(w *moeWriter, p *graph.Node) *graph.Node) func(w *moeWriter) *graph.Node {
	return func(w *moeWriter) *graph.Node { return w.sum(gates(w, w.softmax(w.logits())), w.relu) }
}

func asTheyAre(_ *moeWriter, p *graph.Node) *graph.Node { return p }

var moeSpellings = []moeSpelling{
	{"softmax, tokens in three axes", []int{2, 3}, gated(asTheyAre), "3 relu dense"},
	{"one token", []int{1}, gated(asTheyAre), "3 relu dense"},
	{"constant mask", []int{4}, gated(func(w *moeWriter, p *graph.Node) *graph.Node {
		mask := graph.NewTensor(p.Type)
		for i := range 4 {
			mask.SetFloat(3*i+i%3, 1)
		}
		return w.b.Binary(graph.Mul, p, w.b.Const(mask))
	}), "3 relu"},
	{"constant weights that are no mask", []int{4}, gated(func(w *moeWriter, p *graph.Node) *graph.Node {
		return w.b.Binary(graph.Mul, p, w.b.Broadcast(w.b.Const(graph.Filled(dt(3), 0.5)), p.Type.Shape))
	}), "3 relu dense"},
	{"select by an input", []int{4}, gated(func(w *moeWriter, p *graph.Node) *graph.Node {
		return w.b.Add(graph.Select{}, w.b.Input("keep", graph.TypeOf(graph.Bool, 4, 3)), p, w.b.Scalar(f64, 0))
	}), "3 relu"},
	{"top 2 by route", []int{2, 3}, gated(func(w *moeWriter, p *graph.Node) *graph.Node {
		return w.b.Binary(graph.Mul, w.float(w.b.Add(graph.Route{K: 2}, p)), p)
	}), "3 relu top 2"},
	{"route with a capacity, renormalised", []int{5}, gated(func(w *moeWriter, p *graph.Node) *graph.Node {
		p = w.b.Add(graph.Select{}, w.b.Add(graph.Route{K: 2, Capacity: 2}, p), p, w.b.Scalar(f64, 0))
		return w.b.Binary(graph.Div, p, w.b.BinaryScalar(graph.Add, w.statistic(graph.Sum, p), 1e-9))
	}), "3 relu top 2"},
	{"expert choice", []int{5}, gated(func(w *moeWriter, p *graph.Node) *graph.Node {
		return w.b.Binary(graph.Mul, p, w.float(w.b.Add(graph.Route{Capacity: 2, ExpertChoice: true}, p)))
	}), "3 relu"},
	{"at least the second of top_k", []int{5}, gated(func(w *moeWriter, p *graph.Node) *graph.Node {
		second := w.b.Slice(w.b.Add(graph.TopK{K: 2}, p), 1, 1, 1, 1)
		return w.b.Binary(graph.Mul, p, w.float(w.b.Binary(graph.Ge, p, w.b.Broadcast(second, p.Type.Shape))))
	}), "3 relu top 2"},
	{"one-hot of the indices of top_k", []int{5}, gated(func(w *moeWriter, p *graph.Node) *graph.Node {
		b, s := w.b, graph.ShapeOf(5, 2, 3)
		ix, err := graph.TensorOf([]int64{0, 1, 2}, 3)
		if err != nil {
			b.Fail(err)
		}
		at := b.Broadcast(b.Reshape(b.Add(graph.Result{Index: 1}, b.Add(graph.TopK{K: 2}, p)), 5, 2, 1), s)
		hits := w.float(b.Binary(graph.Eq, at, b.Broadcast(b.Const(ix), s)))
		return b.Binary(graph.Mul, p, b.Reduce(graph.Sum, hits, false, 1))
	}), "3 relu top 2"},
	{"two steps, the larger taken off", []int{5}, gated(func(w *moeWriter, p *graph.Node) *graph.Node {
		b := w.b
		first := w.float(b.Binary(graph.Ge, p, w.statistic(graph.MaxOf, p)))
		rest := b.Binary(graph.Sub, p, b.Binary(graph.Mul, p, first))
		second := w.float(b.Binary(graph.Le, w.statistic(graph.MaxOf, rest), rest))
		return b.Binary(graph.Add, b.Binary(graph.Mul, p, first), b.Binary(graph.Mul, second, p))
	}), "3 relu top 2"},
	{"two steps, by select", []int{5}, gated(func(w *moeWriter, p *graph.Node) *graph.Node {
		b := w.b
		rest := b.Add(graph.Select{}, b.Binary(graph.Lt, p, w.statistic(graph.MaxOf, p)), p, b.Scalar(f64, -1))
		return b.Add(graph.Select{}, b.Binary(graph.Ge, p, w.statistic(graph.MaxOf, rest)), p, b.Scalar(f64, 0))
	}), "3 relu top 2"},
	{"logits chosen or −Inf", []int{5}, func(w *moeWriter) *graph.Node {
		l := w.logits()
		l = w.b.Add(graph.Select{}, w.b.Add(graph.Route{K: 2}, l), l, w.b.Scalar(f64, inf))
		return w.sum(w.softmax(l), w.relu)
	}, "3 relu top 2"},
	{"logits less 1e9 times a mask", []int{5}, func(w *moeWriter) *graph.Node {
		l := w.logits()
		off := w.float(w.b.Binary(graph.Lt, l, w.statistic(graph.MaxOf, l)))
		return w.sum(w.softmax(w.b.Binary(graph.Sub, l, w.b.BinaryScalar(graph.Mul, off, 1e9))), w.relu)
	}, "3 relu"},
	{"logits and the logarithm of a mask", []int{5}, func(w *moeWriter) *graph.Node {
		l := w.logits()
		on := w.float(w.b.Add(graph.Route{K: 1}, l))
		return w.sum(w.softmax(w.b.Binary(graph.Add, l, w.b.Unary(graph.Log, on))), w.relu)
	}, "3 relu top 1"},
	{"logits with a constant mask", []int{4}, func(w *moeWriter) *graph.Node {
		mask := graph.NewTensor(dt(4, 3))
		for i := range 12 {
			if i%3 != i/3%3 {
				mask.SetFloat(i, -1e9)
			}
		}
		return w.sum(w.softmax(w.b.Binary(graph.Add, w.logits(), w.b.Const(mask))), w.relu)
	}, "3 relu"},
	{"relu gates", []int{5}, func(w *moeWriter) *graph.Node {
		return w.sum(w.b.Unary(graph.Relu, w.logits()), w.relu)
	}, "3 relu"},
	{"gates with the experts first", []int{5}, func(w *moeWriter) *graph.Node {
		p := w.b.Add(graph.Softmax{Axis: 0}, w.b.MatMul(w.param("gate", 4, 3), w.x, true, true))
		i := -1
		return w.sumOf(func(e int) *graph.Node {
			i++
			c := w.b.Reshape(w.b.Slice(p, 0, i, 1, 1), 5, 1)
			return w.b.Broadcast(c, graph.ShapeOf(5, 3))
		})
	}, "3 relu dense"},
	{"two of three experts", []int{5}, func(w *moeWriter) *graph.Node {
		p := w.softmax(w.logits())
		y := w.b.Binary(graph.Mul, w.relu(0), w.column(p, 2))
		return w.b.Binary(graph.Add, y, w.b.Binary(graph.Mul, w.column(p, 1), w.relu(1)))
	}, "2 relu dense"},
	{"one gate for two experts", []int{5}, func(w *moeWriter) *graph.Node {
		p := w.softmax(w.logits())
		y := w.b.Binary(graph.Mul, w.relu(0), w.column(p, 2))
		y = w.b.Binary(graph.Add, y, w.b.Binary(graph.Mul, w.column(p, 2), w.relu(1)))
		return w.b.Binary(graph.Add, y, w.b.Binary(graph.Mul, w.column(p, 0), w.relu(2)))
	}, "3 relu dense"},
	{"a residual between, and signs", []int{5}, func(w *moeWriter) *graph.Node {
		b, p := w.b, w.softmax(w.logits())
		y := b.Binary(graph.Sub, b.Input("r", dt(5, 3)), b.Binary(graph.Mul, w.relu(0), w.column(p, 0)))
		y = b.Binary(graph.Sub, y, b.Unary(graph.Tanh, b.Input("s", dt(5, 3))))
		return b.Binary(graph.Sub, y, b.Binary(graph.Mul, w.relu(1), w.column(p, 1)))
	}, "2 relu dense"},
	{"a number added", []int{5}, func(w *moeWriter) *graph.Node {
		return w.b.Binary(graph.Add, w.sum(w.softmax(w.logits()), w.relu), w.b.Input("c", dt()))
	}, "3 relu dense"},
	{"half of the sum in a larger one", []int{2, 3}, func(w *moeWriter) *graph.Node {
		b, p := w.b, w.softmax(w.logits())
		y := b.Binary(graph.Add, b.Binary(graph.Mul, w.relu(0), w.column(p, 0)), b.Binary(graph.Mul, w.relu(1), w.column(p, 1)))
		y = b.Unary(graph.Neg, b.Reshape(b.BinaryScalar(graph.Mul, y, 0.3), 6, 3))
		third := b.Reshape(b.Binary(graph.Mul, w.relu(2), w.column(p, 2)), 6, 3)
		return b.Binary(graph.Sub, y, third)
	}, "3 relu dense"},
	{"uneven constants", []int{5}, func(w *moeWriter) *graph.Node {
		b, p := w.b, w.softmax(w.logits())
		y := b.Binary(graph.Mul, b.BinaryScalar(graph.Mul, w.relu(0), 3), w.column(p, 0))
		return b.Binary(graph.Add, y, b.BinaryScalar(graph.Div, b.Binary(graph.Mul, w.relu(1), w.column(p, 1)), 3))
	}, "2 relu dense"},
	{"divided one by one", []int{5}, func(w *moeWriter) *graph.Node {
		b := w.b
		p := b.Unary(graph.Sigmoid, w.logits())
		sum := b.Broadcast(b.Reduce(graph.Sum, p, true, 1), graph.ShapeOf(5, 3))
		return w.sumOf(func(e int) *graph.Node { return b.Binary(graph.Div, w.column(p, e), sum) })
	}, "3 relu dense"},
	{"a temperature for all", []int{5}, func(w *moeWriter) *graph.Node {
		c := w.b.Input("c", dt())
		p := w.softmax(w.logits())
		return w.sumOf(func(e int) *graph.Node { return w.b.Binary(graph.Mul, w.column(p, e), c) })
	}, "3 relu dense"},
	{"two mixtures", []int{5}, func(w *moeWriter) *graph.Node {
		y := w.sum(w.softmax(w.logits()), w.relu)
		return w.b.Binary(graph.Add, y, w.sum(w.b.Unary(graph.Sigmoid, w.logits()), w.relu))
	}, "3 relu dense, 3 relu dense"},
	{"weights transposed", []int{5}, func(w *moeWriter) *graph.Node {
		return w.sum(w.softmax(w.logits()), func(int) *graph.Node {
			h := w.b.Unary(graph.Tanh, w.b.MatMul(w.x, w.param("up", 5, 4), false, true))
			return w.b.MatMul(h, w.b.Transpose(w.param("down", 3, 5), 1, 0), false, false)
		})
	}, "3 tanh dense"},
	{"slices of stacked weights, transposed, and biases", []int{5}, func(w *moeWriter) *graph.Node {
		b := w.b
		up, down, bias := w.param("up", 3, 5, 4), w.param("down", 3, 5, 3), w.param("bias", 3, 3)
		return w.sum(w.softmax(w.logits()), func(e int) *graph.Node {
			h := b.Unary(graph.Silu, b.MatMul(w.x, b.Reshape(b.Slice(up, 0, e, 1, 1), 5, 4), false, true))
			y := b.MatMul(h, b.Reshape(b.Slice(down, 0, e, 1, 1), 5, 3), false, false)
			return b.Binary(graph.Add, b.Broadcast(b.Slice(bias, 0, e, 1, 1), y.Type.Shape), y)
		})
	}, "3 silu bias stacked dense"},
	{"slices out of order", []int{5}, func(w *moeWriter) *graph.Node {
		b := w.b
		up, down := w.param("up", 3, 4, 5), w.param("down", 3, 5, 3)
		return w.sum(w.softmax(w.logits()), func(e int) *graph.Node {
			h := b.Unary(graph.Silu, b.MatMul(w.x, b.Reshape(b.Slice(up, 0, 2-e, 1, 1), 4, 5), false, false))
			return b.MatMul(h, b.Reshape(b.Slice(down, 0, e, 1, 1), 5, 3), false, false)
		})
	}, "3 silu dense"},
	{"geglu with biases", []int{2, 3}, func(w *moeWriter) *graph.Node {
		b := w.b
		linear := func(x *graph.Node, in, out int) *graph.Node {
			y := b.MatMul(x, w.param("w", in, out), false, false)
			return b.Binary(graph.Add, y, b.Broadcast(w.param("b", out), y.Type.Shape))
		}
		return w.sum(w.softmax(w.logits()), func(int) *graph.Node {
			return linear(b.Binary(graph.Mul, linear(w.x, 4, 5), b.Unary(graph.GeluErf, linear(w.x, 4, 5))), 5, 3)
		})
	}, "3 gelu_erf gated bias dense"},
	{"batched products", []int{2, 3}, func(w *moeWriter) *graph.Node {
		b := w.b
		linear := func(x *graph.Node, in, out int) *graph.Node {
			y := b.MatMul(x, w.param("w", 3, in, out), false, false)
			return b.Binary(graph.Add, y, b.Broadcast(w.param("b", 3, 1, out), y.Type.Shape))
		}
		x := b.Broadcast(b.Reshape(w.x, 1, 6, 4), graph.ShapeOf(3, 6, 4))
		y := linear(b.Binary(graph.Mul, b.Unary(graph.Silu, linear(x, 4, 5)), linear(x, 4, 5)), 5, 3)
		p := b.Reshape(b.Transpose(b.Reshape(w.softmax(w.logits()), 6, 3), 1, 0), 3, 6, 1)
		return b.Reshape(b.Reduce(graph.Sum, b.Binary(graph.Mul, y, b.Broadcast(p, y.Type.Shape)), false, 0), 2, 3, 3)
	}, "3 silu gated bias stacked dense"},
	{"batched products, experts in the middle, averaged", []int{5}, func(w *moeWriter) *graph.Node {
		b := w.b
		h := b.Unary(graph.Relu, b.MatMul(w.x, w.param("up", 3, 4, 5), false, false))
		y := b.Transpose(b.MatMul(h, w.param("down", 3, 3, 5), false, true), 1, 0, 2)
		p := w.softmax(w.logits())
		p = b.Binary(graph.Mul, p, w.float(b.Add(graph.Route{K: 1}, p)))
		return b.Reduce(graph.Mean, b.Binary(graph.Mul, y, b.Broadcast(b.Reshape(p, 5, 3, 1), y.Type.Shape)), false, 1)
	}, "3 relu stacked top 1"},
	{"results joined along an axis of experts", []int{5}, func(w *moeWriter) *graph.Node {
		b := w.b
		one := func() *graph.Node { return b.Reshape(w.relu(0), 5, 1, 3) }
		y := b.Add(graph.Concat{Axis: 1}, one(), one(), one())
		p := b.Reshape(w.softmax(w.logits()), 5, 3, 1)
		return b.Reduce(graph.Sum, b.Binary(graph.Mul, b.Broadcast(p, y.Type.Shape), y), false, 1)
	}, "3 relu dense"},
	{"results of one element", []int{5}, func(w *moeWriter) *graph.Node {
		b, p := w.b, w.softmax(w.logits())
		var y *graph.Node
		for e := range 3 {
			h := b.Unary(graph.Relu, b.MatMul(w.x, w.param("up", 4, 5), false, false))
			t := b.Binary(graph.Mul, b.Slice(p, 1, e, 1, 1), b.MatMul(h, w.param("down", 5, 1), false, false))
			if y == nil {
				y = t
			} else {
				y = b.Binary(graph.Add, y, t)
			}
		}
		return y
	}, "3 relu dense"},
}

// sumOf is the sum of experts weighted by factors of their width.
func (w *moeWriter) sumOf(factor func(e int) *graph.Node) *graph.Node {
	var y *graph.Node
	for e := range w.experts {
		t := w.b.Binary(graph.Mul, factor(e), w.relu(e))
		if y == nil {
			y = t
		} else {
			y = w.b.Binary(graph.Add, y, t)
		}
	}
	return y
}

// TestMoE compiles every spelling and looks for one MoE of the same values, and nothing else that multiplies matrices
// but the gate.
func TestMoE(t *testing.T) {
	for _, tt := range moeSpellings {
		t.Run(tt.name, func(t *testing.T) {
			g := made(t, func(b *graph.Builder) { b.Output("y", tt.build(newMoEWriter(b, 3, tt.lead...))) })
			h, tr, err := Run(g, Config{Verify: true, Stop: "simplify-again"})
			if err != nil {
				t.Fatal(err)
			}
			if got := moeOf(h); got != tt.want {
				t.Errorf("made %q, want %q\nof %s\nmisses %+v", got, tt.want, opsOf(stageOf(t, tr, "raise").Graph),
					stageOf(t, tr, "fuse-moe").Misses)
			}
			if n := strings.Count(opsOf(h), "matmul"); n > strings.Count(tt.want, ",")+1 {
				t.Errorf("left %s", opsOf(h))
			}
			for seed := range uint64(3) {
				sameNumbers(t, g, h, graphtest.Values(rand.New(rand.NewPCG(seed, 9)), g))
			}
		})
	}
}
