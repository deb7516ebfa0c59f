package gorgonia

import (
	"math"
	"testing"

	"fusec/graph"

	gorg "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// models are small networks in the forms in which users of Gorgonia write them. Each gives a value to be averaged into
// the cost, and the names of its weights.
var models = []struct {
	name  string
	build func(b *builder) (*gorg.Node, []string)
	wrong []string
}{
	{name: "mlp", build: func(b *builder) (*gorg.Node, []string) {
		h := must(gorg.BroadcastAdd(must(gorg.Mul(b.in("x", 4, 8), b.in("w", 8, 3))), b.in("b", 1, 3), nil, []byte{0}))
		h = must(gorg.Rectify(h))
		return must(gorg.Tanh(must(gorg.Mul(h, b.in("v", 3, 2))))), []string{"w", "b", "v"}
	}},
	{name: "gelu", build: func(b *builder) (*gorg.Node, []string) {
		return gelu(b.in("x", 4, 8)), []string{"x"}
	}},
	{name: "layer norm", build: func(b *builder) (*gorg.Node, []string) {
		return layerNorm(b.in("x", 4, 6), b.in("gamma", 1, 6), b.in("beta", 1, 6)), []string{"x", "gamma", "beta"}
	}},
	{name: "attention 2d", build: func(b *builder) (*gorg.Node, []string) {
		s := must(gorg.Mul(b.in("q", 5, 4), must(gorg.Transpose(b.in("k", 5, 4)))))
		p := must(gorg.SoftMax(must(gorg.Div(s, gorg.NewConstant(2.0))), 1))
		return must(gorg.Mul(p, b.in("v", 5, 4))), []string{"q", "k", "v"}
	}},
	{name: "attention 3d", build: func(b *builder) (*gorg.Node, []string) {
		s := must(gorg.BatchedMatMul(b.in("q", 2, 5, 4), b.in("k", 2, 5, 4), false, true))
		s = must(gorg.HadamardProd(s, gorg.NewConstant(0.5)))
		s = must(gorg.BroadcastAdd(s, b.in("mask", 1, 5, 5), nil, []byte{0}))
		return must(gorg.BatchedMatMul(must(gorg.SoftMax(s, 2)), b.in("v", 2, 5, 4))), []string{"q", "k", "v"}
	}},
	{name: "attention 4d", build: func(b *builder) (*gorg.Node, []string) {
		x := b.in("x", 6, 8) // 2 sequences of 3, 2 heads of 4
		heads := func(name string) *gorg.Node {
			y := must(gorg.Reshape(must(gorg.Mul(x, b.in(name, 8, 8))), tensor.Shape{2, 3, 2, 4}))
			return must(gorg.Transpose(y, 0, 2, 1, 3))
		}
		q, k, v := heads("wq"), heads("wk"), heads("wv")
		s := must(gorg.Div(must(gorg.BatchedMatMul(q, k, false, true)), gorg.NewConstant(2.0)))
		y := must(gorg.BatchedMatMul(must(gorg.SoftMax(s, 3)), v))
		y = must(gorg.Reshape(must(gorg.Transpose(y, 0, 2, 1, 3)), tensor.Shape{6, 8}))
		y = must(gorg.Mul(y, b.in("wo", 8, 8)))
		return layerNorm(must(gorg.Add(x, y)), b.in("gamma", 1, 8), b.in("beta", 1, 8)), []string{"wq", "wk", "wv", "wo", "gamma"}
	}},
	{name: "moe", build: func(b *builder) (*gorg.Node, []string) {
		x := b.in("x", 4, 6)
		gate := must(gorg.SoftMax(must(gorg.Mul(x, b.in("wg", 6, 2))), 1))
		var sum *gorg.Node
		for e, name := range []string{"0", "1"} {
			h := must(gorg.Mul(must(gorg.Rectify(must(gorg.Mul(x, b.in("w1_"+name, 6, 8))))), b.in("w2_"+name, 8, 6)))
			g := must(gorg.Reshape(must(gorg.Slice(gate, nil, gorg.S(e))), tensor.Shape{4, 1}))
			h = must(gorg.BroadcastHadamardProd(h, g, nil, []byte{1}))
			if sum == nil {
				sum = h
			} else {
				sum = must(gorg.Add(sum, h))
			}
		}
		return sum, []string{"wg", "w1_0", "w2_1"}
	}},
	{name: "conv net", build: func(b *builder) (*gorg.Node, []string) {
		h := must(gorg.Conv2d(b.in("x", 2, 1, 8, 8), b.in("f", 3, 1, 3, 3), tensor.Shape{3, 3}, []int{1, 1}, []int{1, 1}, []int{1, 1}))
		h = must(gorg.MaxPool2D(must(gorg.Rectify(h)), tensor.Shape{2, 2}, []int{0, 0}, []int{2, 2}))
		h = must(gorg.Reshape(h, tensor.Shape{2, 48}))
		return must(gorg.Mul(h, b.in("w", 48, 5))), []string{"f", "w"}
	}},
	{name: "batch norm and dropout", wrong: []string{"dropoutOp", "dropoutDiffOp"}, build: func(b *builder) (*gorg.Node, []string) {
		h := must(gorg.Mul(b.in("x", 6, 4), b.in("w", 4, 3)))
		h, _, _, _, err := gorg.BatchNorm(h, b.in("γ", 1, 3), b.in("β", 1, 3), 0.9, 1e-5)
		return must(gorg.Dropout(must(gorg.Rectify(must(h, err))), 0.3)), []string{"w", "γ"}
	}},
	{name: "embedding", wrong: []string{"byIndicesOpDiffOp"}, build: func(b *builder) (*gorg.Node, []string) {
		e := must(gorg.ByIndices(b.in("table", 10, 4), b.ints("ix", 3, 7, 3), 0))
		return must(gorg.Mul(e, b.in("w", 4, 2))), []string{"table", "w"}
	}},
	{name: "cross entropy", build: func(b *builder) (*gorg.Node, []string) {
		p := must(gorg.LogSoftMax(b.in("logits", 4, 3), 1))
		return must(gorg.Neg(must(gorg.Sum(must(gorg.HadamardProd(b.in("y", 4, 3), p)), 1)))), []string{"logits"}
	}},
	{name: "cross entropy of softmax", build: func(b *builder) (*gorg.Node, []string) {
		p := must(gorg.Log(must(gorg.SoftMax(b.in("logits", 4, 3), 1))))
		return must(gorg.Neg(must(gorg.HadamardProd(b.in("y", 4, 3), p)))), []string{"logits"}
	}},
}

func gelu(x *gorg.Node) *gorg.Node {
	in := must(gorg.Add(x, must(gorg.HadamardProd(gorg.NewConstant(0.044715), must(gorg.Cube(x))))))
	th := must(gorg.Tanh(must(gorg.HadamardProd(gorg.NewConstant(math.Sqrt(2/math.Pi)), in))))
	return must(gorg.HadamardProd(must(gorg.HadamardProd(gorg.NewConstant(0.5), x)), must(gorg.Add(th, gorg.NewConstant(1.0)))))
}

func layerNorm(x, gamma, beta *gorg.Node) *gorg.Node {
	n := x.Shape()[0]
	column := func(v *gorg.Node) *gorg.Node { return must(gorg.Reshape(v, tensor.Shape{n, 1})) }
	d := must(gorg.BroadcastSub(x, column(must(gorg.Mean(x, 1))), nil, []byte{1}))
	v := must(gorg.Mean(must(gorg.Square(d)), 1))
	s := must(gorg.Sqrt(must(gorg.Add(v, gorg.NewConstant(1e-5)))))
	y := must(gorg.BroadcastHadamardDiv(d, column(s), nil, []byte{1}))
	y = must(gorg.BroadcastHadamardProd(y, gamma, nil, []byte{0}))
	return must(gorg.BroadcastAdd(y, beta, nil, []byte{0}))
}

func TestModels(t *testing.T) {
	for _, m := range models {
		t.Run(m.name, func(t *testing.T) {
			b := newBuilder()
			y, weights := m.build(b)
			sameAsDo(t, mustImport(t, b.ExprGraph, Options{}), b.ExprGraph, m.wrong...)
			cost := must(gorg.Mean(y))
			var pred gorg.Value
			gorg.Read(y, &pred)
			var wrt gorg.Nodes
			for _, w := range weights {
				wrt = append(wrt, b.ByName(w)[0])
			}
			if _, err := gorg.Grad(cost, wrt...); err != nil {
				t.Fatal(err)
			}
			im := mustImport(t, b.ExprGraph, Options{})
			sameAsDo(t, im, b.ExprGraph, m.wrong...)
			rightGrads(t, im)
			if n := hostCount(im); n > 0 {
				t.Errorf("%d operations run on the host: %v", n, im.Graph.Notes)
			}
			wanted := map[*gorg.Node]bool{}
			for _, g := range im.Grads {
				if g.Cost != im.Node(cost) || g.Seed != nil {
					t.Errorf("derivative for %v: cost %v, seed %v", g.Of, g.Cost, g.Seed)
				}
				if g.Wanted {
					wanted[g.Node] = true
				}
			}
			for _, w := range wrt {
				if !wanted[w] {
					t.Errorf("no derivative for %s", nameOf(w))
				}
			}
			if len(im.Reads) != 1 || im.Reads[0].Into != &pred || im.Reads[0].Value != im.Node(y) {
				t.Errorf("reads are %v", im.Reads)
			}
			if len(im.Roots) != 1 || im.Roots[0].Node != cost {
				t.Errorf("roots are %v, not the cost", im.Roots)
			}
			if want := 2 + len(wrt); len(im.Graph.Outputs) != want {
				t.Errorf("%d outputs, want the cost, what is read and %d gradients: %v", len(im.Graph.Outputs), len(wrt), im.Graph.Outputs)
			}
			sameAnew(t, im)
		})
	}
}

// sameAnew compares Gorgonia's derivatives with those that the graph's own rules give when the marks are all that is
// known.
func sameAnew(t *testing.T, im *Imported) {
	t.Helper()
	var wrt, old []*graph.Node
	for _, m := range im.Marks() {
		if m.Wanted {
			wrt, old = append(wrt, m.Of), append(old, m.Value)
		}
	}
	again, err := graph.Gradients(im.Graph, im.Grads[0].Cost, wrt)
	if err != nil {
		t.Fatal(err)
	}
	v := im.eval(t, im.inputs(t))
	for i, n := range again {
		a, b := v[n][0].Tensor(), v[old[i]][0].Tensor()
		for k := range a.Type.Shape.Elems() {
			if !near(a.Float(k), b.Float(k), 1e-9) {
				t.Errorf("derivative for %v: element %d is %v again and %v as Gorgonia wrote it", wrt[i], k, a.Float(k), b.Float(k))
				break
			}
		}
	}
}
