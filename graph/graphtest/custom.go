package graphtest

import (
	"math"

	"fusec/graph"
)

// Custom functions for tests. Softsign is x/(1+|x|), of Glorot and Bengio (AISTATS 2010), with a body for strips. Blend is
// s·x + (1−s)·y for s = sigmoid(z), by its value at each element.
const (
	Softsign graph.CustomFn = "test_softsign"
	Blend    graph.CustomFn = "test_blend"
)

func init() {
	softsign := func(x float64) float64 { return x / (1 + math.Abs(x)) }
	for _, f := range []graph.CustomInfo{
		{Name: Softsign, Doc: "x/(1+|x|)", Operands: 1, FLOPs: 3,
			Eval: func(x []float64) float64 {
				if math.IsInf(x[0], 0) {
					return math.Copysign(1, x[0])
				}
				return softsign(x[0])
			},
			F32: func(dst []float32, x [][]float32) {
				for i, v := range x[0] {
					dst[i] = float32(softsign(float64(v)))
					if math.IsInf(float64(v), 0) {
						dst[i] = float32(math.Copysign(1, float64(v)))
					}
				}
			},
			Bodies: map[string]string{"cuda": "const T a = op::abs(x0);\nreturn a > T(1e30) ? op::sign(x0) : x0 / (T(1) + a);"},
			Grad: func(b *graph.Builder, x []*graph.Node, _, dy *graph.Node) []*graph.Node {
				below := b.Unary(graph.Square, b.BinaryScalar(graph.Add, b.Unary(graph.Abs, x[0]), 1))
				return []*graph.Node{b.Binary(graph.Div, dy, below)}
			}},
		{Name: Blend, Doc: "s·x + (1−s)·y for s = sigmoid(z)", Operands: 3, FLOPs: 8,
			Eval: func(x []float64) float64 {
				s := graph.Sigmoid.Eval(x[2], 0)
				return s*x[0] + (1-s)*x[1]
			},
			Bodies: map[string]string{"cuda": "const T s = op::sigmoid(x2);\nreturn s * x0 + (T(1) - s) * x1;"},
			Grad: func(b *graph.Builder, x []*graph.Node, _, dy *graph.Node) []*graph.Node {
				s := b.Unary(graph.Sigmoid, x[2])
				rest := b.Binary(graph.Sub, b.Scalar(dy.Type.DType, 1), s)
				slope := b.Binary(graph.Mul, b.Binary(graph.Mul, s, rest), b.Binary(graph.Sub, x[0], x[1]))
				return []*graph.Node{b.Binary(graph.Mul, dy, s), b.Binary(graph.Mul, dy, rest), b.Binary(graph.Mul, dy, slope)}
			}},
	} {
		if err := graph.RegisterCustom(f); err != nil {
			panic(err)
		}
	}
}

func makeCustom(g *generator) {
	x := g.any()
	if g.coin() {
		g.op(graph.Custom{Fn: Softsign}, x)
		return
	}
	g.op(graph.Custom{Fn: Blend}, x, g.like(x), g.like(x))
}
