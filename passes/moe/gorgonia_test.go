package moe_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec/cmd/models/zoo"
	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/graph/graphtest"
	"fusec/passes"
	"fusec/passes/moe"
	"fusec/passes/passtest"
)

// moeOf describes the mixtures of experts in g.
func moeOf(g *graph.Graph) string {
	var all []string
	for _, n := range g.Nodes {
		op, ok := n.Op.(graph.MoE)
		if !ok {
			continue
		}
		s := fmt.Sprintf("%d %s", op.Experts, moe.Activation(graph.Unary{Fn: op.Activation, Alpha: op.Alpha}))
		if op.Gated {
			s += " gated"
		}
		if op.Bias {
			s += " bias"
		}
		if op.Stacked {
			s += " stacked"
		}
		if op.Dense {
			s += " dense"
		}
		if op.TopK > 0 {
			s += fmt.Sprintf(" top %d", op.TopK)
		}
		if op.Exact {
			s += " exactly"
		}
		all = append(all, s)
	}
	return strings.Join(all, ", ")
}

// gorgoniaMoE writes mixtures of experts with the functions of Gorgonia.
type gorgoniaMoE struct {
	g       *gorgonia.ExprGraph
	tokens  int
	experts int
	x       *gorgonia.Node // [tokens, 6]
}

func node(n *gorgonia.Node, err error) *gorgonia.Node { return gorgonia.Must(n, err) }

func (w *gorgoniaMoE) in(name string, shape ...int) *gorgonia.Node {
	return gorgonia.NewTensor(w.g, tensor.Float32, len(shape), gorgonia.WithShape(shape...), gorgonia.WithName(name))
}

func (w *gorgoniaMoE) linear(name string, x *gorgonia.Node, in, out int, bias bool) *gorgonia.Node {
	y := node(gorgonia.Mul(x, w.in(name+".weight", in, out)))
	if !bias {
		return y
	}
	return node(gorgonia.BroadcastAdd(y, w.in(name+".bias", 1, out), nil, []byte{0}))
}

func (w *gorgoniaMoE) logits() *gorgonia.Node { return w.linear("gate", w.x, 6, w.experts, true) }

func (w *gorgoniaMoE) softmax() *gorgonia.Node { return node(gorgonia.SoftMax(w.logits(), 1)) }

// column is column e of the gates, [tokens, 1].
func (w *gorgoniaMoE) column(gates *gorgonia.Node, e int) *gorgonia.Node {
	return node(gorgonia.Reshape(node(gorgonia.Slice(gates, nil, gorgonia.S(e))), tensor.Shape{w.tokens, 1}))
}

// row is a statistic of the rows of x, to go with x.
func (w *gorgoniaMoE) row(n *gorgonia.Node, err error) *gorgonia.Node {
	return node(gorgonia.Reshape(node(n, err), tensor.Shape{w.tokens, 1}))
}

// relu is an expert with biases.
func (w *gorgoniaMoE) relu(e int) *gorgonia.Node {
	name := fmt.Sprint("expert", e)
	return w.linear(name+".down", node(gorgonia.Rectify(w.linear(name+".up", w.x, 6, 8, true))), 8, 6, true)
}

// sum is the chain of all experts' results, weighted by the columns of gates.
func (w *gorgoniaMoE) sum(gates *gorgonia.Node, expert func(e int) *gorgonia.Node) *gorgonia.Node {
	var y *gorgonia.Node
	for e := range w.experts {
		t := node(gorgonia.BroadcastHadamardProd(expert(e), w.column(gates, e), nil, []byte{1}))
		if y == nil {
			y = t
		} else {
			y = node(gorgonia.Add(y, t))
		}
	}
	return y
}

// top2 is the mask of the two largest elements of each row of p, by two maxima.
func (w *gorgoniaMoE) top2(p *gorgonia.Node) *gorgonia.Node {
	first := w.row(gorgonia.Max(p, 1))
	rest := node(gorgonia.HadamardProd(p, node(gorgonia.BroadcastLt(p, first, true, nil, []byte{1}))))
	second := w.row(gorgonia.Max(rest, 1))
	return node(gorgonia.BroadcastGte(p, second, true, nil, []byte{1}))
}

func (w *gorgoniaMoE) renormalised(p *gorgonia.Node) *gorgonia.Node {
	return node(gorgonia.BroadcastHadamardDiv(p, w.row(gorgonia.Sum(p, 1)), nil, []byte{1}))
}

// TestMoEOfGorgonia lists what users of Gorgonia write. Each becomes one MoE of the same values.
func TestMoEOfGorgonia(t *testing.T) {
	activated := func(act func(*gorgonia.Node) (*gorgonia.Node, error)) func(w *gorgoniaMoE) {
		return func(w *gorgoniaMoE) {
			w.sum(w.softmax(), func(e int) *gorgonia.Node {
				name := fmt.Sprint("expert", e)
				return w.linear(name+".down", node(act(w.linear(name+".up", w.x, 6, 8, false))), 8, 6, false)
			})
		}
	}
	times := func(c float32, x *gorgonia.Node) *gorgonia.Node {
		return node(gorgonia.HadamardProd(x, gorgonia.NewConstant(c)))
	}
	gelu := func(x *gorgonia.Node) (*gorgonia.Node, error) {
		inner := times(0.7978845608, node(gorgonia.Add(x, times(0.044715, node(gorgonia.Cube(x))))))
		one := gorgonia.NewConstant(float32(1))
		return gorgonia.HadamardProd(times(0.5, x), node(gorgonia.Add(node(gorgonia.Tanh(inner)), one)))
	}
	silu := func(x *gorgonia.Node) (*gorgonia.Node, error) {
		return gorgonia.HadamardProd(x, node(gorgonia.Sigmoid(x)))
	}
	for _, tt := range []struct {
		name  string
		build func(w *gorgoniaMoE)
		want  string
	}{
		{"softmax", func(w *gorgoniaMoE) { w.sum(w.softmax(), w.relu) }, "4 relu bias dense"},
		{"mask from the host", func(w *gorgoniaMoE) {
			w.sum(node(gorgonia.HadamardProd(w.softmax(), w.in("mask", w.tokens, 4))), w.relu)
		}, "4 relu bias"},
		{"mask from the host, renormalised", func(w *gorgoniaMoE) {
			w.sum(w.renormalised(node(gorgonia.HadamardProd(w.in("mask", w.tokens, 4), w.softmax()))), w.relu)
		}, "4 relu bias"},
		{"mask from the host on the columns", func(w *gorgoniaMoE) {
			gates, mask := w.softmax(), w.in("mask", w.tokens, 4)
			var y *gorgonia.Node
			for e := range 4 {
				c := node(gorgonia.HadamardProd(w.column(gates, e), w.column(mask, e)))
				if term := node(gorgonia.BroadcastHadamardProd(c, w.relu(e), []byte{1}, nil)); y == nil {
					y = term
				} else {
					y = node(gorgonia.Add(term, y))
				}
			}
		}, "4 relu bias"},
		{"mask of −1e9 from the host on the logits", func(w *gorgoniaMoE) {
			w.sum(node(gorgonia.SoftMax(node(gorgonia.Add(w.logits(), w.in("mask", w.tokens, 4))), 1)), w.relu)
		}, "4 relu bias"},
		{"mask times −1e9 on the logits", func(w *gorgoniaMoE) {
			off := node(gorgonia.Sub(gorgonia.NewConstant(float32(1)), w.in("mask", w.tokens, 4)))
			w.sum(node(gorgonia.SoftMax(node(gorgonia.Add(w.logits(), times(-1e9, off))), 1)), w.relu)
		}, "4 relu bias"},
		{"top 1 by the maximum", func(w *gorgoniaMoE) {
			p := w.softmax()
			mask := node(gorgonia.BroadcastGte(p, w.row(gorgonia.Max(p, 1)), true, nil, []byte{1}))
			w.sum(node(gorgonia.HadamardProd(p, mask)), w.relu)
		}, "4 relu bias top 1"},
		{"top 2 by two maxima", func(w *gorgoniaMoE) {
			p := w.softmax()
			w.sum(node(gorgonia.HadamardProd(p, w.top2(p))), w.relu)
		}, "4 relu bias top 2"},
		{"top 2 by two maxima, renormalised", func(w *gorgoniaMoE) {
			p := w.softmax()
			w.sum(w.renormalised(node(gorgonia.HadamardProd(p, w.top2(p)))), w.relu)
		}, "4 relu bias top 2"},
		{"sigmoid", func(w *gorgoniaMoE) { w.sum(node(gorgonia.Sigmoid(w.logits())), w.relu) }, "4 relu bias dense"},
		{"gates by the host", func(w *gorgoniaMoE) { w.sum(w.in("gates", w.tokens, 4), w.relu) }, "4 relu bias dense"},
		{"sigmoid of one linear layer each", func(w *gorgoniaMoE) {
			var y *gorgonia.Node
			for e := range 4 {
				c := node(gorgonia.Sigmoid(w.linear(fmt.Sprint("gate", e), w.x, 6, 1, false)))
				if term := node(gorgonia.BroadcastHadamardProd(w.relu(e), c, nil, []byte{1})); y == nil {
					y = term
				} else {
					y = node(gorgonia.Add(y, term))
				}
			}
		}, "4 relu bias dense"},
		{"residual and a constant", func(w *gorgoniaMoE) {
			node(gorgonia.Add(w.x, times(0.5, w.sum(w.softmax(), w.relu))))
		}, "4 relu bias dense"},
		{"tree", func(w *gorgoniaMoE) {
			gates := w.softmax()
			term := func(e int) *gorgonia.Node {
				return node(gorgonia.BroadcastHadamardProd(w.relu(e), w.column(gates, e), nil, []byte{1}))
			}
			node(gorgonia.Add(node(gorgonia.Add(term(3), term(1))), node(gorgonia.Add(term(0), term(2)))))
		}, "4 relu bias dense"},
		{"gelu", activated(gelu), "4 gelu_tanh dense"},
		{"silu", activated(silu), "4 silu dense"},
		{"tanh", activated(gorgonia.Tanh), "4 tanh dense"},
		{"leaky relu", activated(func(x *gorgonia.Node) (*gorgonia.Node, error) {
			return gorgonia.LeakyRelu(x, 0.1)
		}), "4 leaky_relu(0.1) dense"},
		{"swiglu", func(w *gorgoniaMoE) {
			w.sum(w.softmax(), func(e int) *gorgonia.Node {
				name := fmt.Sprint("expert", e)
				h := node(silu(w.linear(name+".gate", w.x, 6, 8, false)))
				h = node(gorgonia.HadamardProd(w.linear(name+".up", w.x, 6, 8, false), h))
				return w.linear(name+".down", h, 8, 6, false)
			})
		}, "4 silu gated dense"},
		{"slices of stacked weights", func(w *gorgoniaMoE) {
			up, down := w.in("up", 4, 6, 8), w.in("down", 4, 8, 6)
			w.sum(w.softmax(), func(e int) *gorgonia.Node {
				h := node(gorgonia.Rectify(node(gorgonia.Mul(w.x, node(gorgonia.Slice(up, gorgonia.S(e)))))))
				return node(gorgonia.Mul(h, node(gorgonia.Slice(down, gorgonia.S(e)))))
			})
		}, "4 relu stacked dense"},
		{"batched products", func(w *gorgoniaMoE) {
			x := node(gorgonia.Concat(0, w.x, w.x, w.x, w.x))
			x = node(gorgonia.Reshape(x, tensor.Shape{4, w.tokens, 6}))
			h := node(gorgonia.Rectify(node(gorgonia.BatchedMatMul(x, w.in("up", 4, 6, 8)))))
			y := node(gorgonia.BatchedMatMul(h, w.in("down", 4, 8, 6)))
			gates := node(gorgonia.Reshape(node(gorgonia.Transpose(w.softmax(), 1, 0)), tensor.Shape{4, w.tokens, 1}))
			node(gorgonia.Sum(node(gorgonia.BroadcastHadamardProd(y, gates, nil, []byte{2})), 0))
		}, "4 relu stacked dense"},
		{"results joined and summed", func(w *gorgoniaMoE) {
			y := node(gorgonia.Concat(0, w.relu(0), w.relu(1), w.relu(2), w.relu(3)))
			y = node(gorgonia.Reshape(y, tensor.Shape{4, w.tokens, 6}))
			gates := node(gorgonia.Reshape(node(gorgonia.Transpose(w.softmax(), 1, 0)), tensor.Shape{4, w.tokens, 1}))
			node(gorgonia.Sum(node(gorgonia.BroadcastHadamardProd(y, gates, nil, []byte{2})), 0))
		}, "4 relu bias dense"},
		{"model, dense", func(w *gorgoniaMoE) { w.g = zoo.MoEBlock(5, 6, 8, 4).Graph }, "4 relu bias dense"},
		{"model, top 2", func(w *gorgoniaMoE) { w.g = zoo.MoETop2(5, 6, 8, 4).Graph }, "4 relu bias top 2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := &gorgoniaMoE{g: gorgonia.NewGraph(), tokens: 5, experts: 4}
			w.x = w.in("x", 5, 6)
			tt.build(w)
			im, err := fgorgonia.Import(w.g, fgorgonia.Options{})
			if err != nil {
				t.Fatal(err)
			}
			h, tr, err := passes.Run(im.Graph, passes.Config{Verify: true})
			if err != nil {
				t.Fatal(err)
			}
			if got := moeOf(passtest.Stage(t, tr, "simplify-again").Graph); got != tt.want {
				t.Errorf("made %q, want %q\nof %s\nleft %s\nmisses %+v", got, tt.want, passtest.Ops(passtest.Stage(t, tr, "raise").Graph),
					passtest.Ops(passtest.Stage(t, tr, "simplify-again").Graph), passtest.Stage(t, tr, "fuse-moe").Misses)
			}
			for seed := range uint64(3) {
				in := graphtest.Values(rand.New(rand.NewPCG(seed, 5)), im.Graph)
				closeGates(in)
				if err := passtest.Same(im.Graph, h, in); err != nil {
					t.Error(err)
				}
			}
			notes := fmt.Sprint(passtest.Stage(t, tr, "fuse-moe").Notes)
			if strings.Contains(notes, "drops no work") != strings.Contains(tt.want, "dense") {
				t.Errorf("the notes are %s", notes)
			}
		})
	}
}

// closeGates turns values of masks to zeros and ones.
func closeGates(in map[string]*graph.Tensor) {
	if m := in["mask"]; m != nil {
		for i := range m.Type.Shape.Elems() {
			if m.SetFloat(i, 1); i%3 != 0 {
				m.SetFloat(i, 0)
			}
		}
	}
}
