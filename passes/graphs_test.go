package passes_test

import (
	"math"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/passes"
	"fusec/passes/passtest"
)

// TestGraphs runs all passes on graphs as users write them and tells what must be left.
func TestGraphs(t *testing.T) {
	tests := []struct {
		name  string
		build func(b *graph.Builder)
		want  string
	}{
		{"mlp", func(b *graph.Builder) {
			x, w, bias := b.Input("x", passtest.F64(4, 8)), b.Param("w", passtest.F64(8, 3)), b.Param("b", passtest.F64(1, 3))
			b.Output("cost", passtest.Mean(b, passtest.Relu(b, passtest.Bias(b, b.MatMul(x, w, false, false), bias)), 0, 1))
		}, "matmul broadcast[4,3] add relu mean[0,1]"},
		{"tanh-sigmoid", func(b *graph.Builder) {
			x, w, bias := b.Input("x", passtest.F64(4, 8)), b.Param("w", passtest.F64(8, 3)), b.Param("b", passtest.F64(3))
			b.Output("y", b.Unary(graph.Sigmoid, b.Unary(graph.Tanh, passtest.Bias(b, b.MatMul(x, w, false, false), bias))))
		}, "matmul broadcast[4,3] add tanh sigmoid"},
		{"gelu", func(b *graph.Builder) {
			x := b.Input("x", passtest.F64(4, 8))
			c := func(v float64, y *graph.Node) *graph.Node { return b.Binary(graph.Mul, b.Scalar(graph.F64, v), y) }
			u := b.Unary(graph.Tanh, c(0.7978846, b.Binary(graph.Add, x, c(0.044715, b.Unary(graph.Cube, x)))))
			b.Output("y", b.Binary(graph.Mul, c(0.5, x), b.BinaryScalar(graph.Add, u, 1)))
		}, "gelu_tanh"},
		{"layernorm2d", func(b *graph.Builder) {
			x := b.Input("x", passtest.F64(4, 6))
			b.Output("y", passtest.LayerNorm(b, x, b.Param("gamma", passtest.F64(1, 6)), b.Param("beta", passtest.F64(1, 6))))
		}, "reshape[6] reshape[6] layer_norm"},
		{"sdpa2d", func(b *graph.Builder) {
			q, k, v := b.Input("q", passtest.F64(5, 4)), b.Input("k", passtest.F64(5, 4)), b.Input("v", passtest.F64(5, 4))
			s := b.BinaryScalar(graph.Div, b.MatMul(q, b.Transpose(k, 1, 0), false, false), 2)
			b.Output("y", b.MatMul(b.Add(graph.Softmax{Axis: 1}, s), v, false, false))
		}, "attention"},
		{"sdpa3d", func(b *graph.Builder) {
			q, k, v, mask := b.Input("q", passtest.F64(2, 5, 4)), b.Input("k", passtest.F64(2, 5, 4)), b.Input("v", passtest.F64(2, 5, 4)),
				b.Input("mask", passtest.F64(1, 5, 5))
			s := b.BinaryScalar(graph.Mul, b.MatMul(q, k, false, true), 0.5)
			s = b.Binary(graph.Add, s, b.Broadcast(b.Add(graph.Reshape{Shape: graph.ShapeOf(1, 5, 5)}, mask), s.Type.Shape))
			b.Output("y", b.MatMul(b.Add(graph.Softmax{Axis: 2}, s), v, false, false))
		}, "attention"},
		{"mha4d", func(b *graph.Builder) {
			x := b.Input("x", passtest.F64(6, 4))
			head := func(name string) *graph.Node {
				return b.Transpose(b.Reshape(b.MatMul(x, b.Param(name, passtest.F64(4, 4)), false, false), 2, 3, 2, 2), 0, 2, 1, 3)
			}
			q, k, v := head("wq"), head("wk"), head("wv")
			p := b.Add(graph.Softmax{Axis: 3}, b.BinaryScalar(graph.Div, b.MatMul(q, k, false, true), math.Sqrt2))
			y := b.Reshape(b.Transpose(b.MatMul(p, v, false, false), 0, 2, 1, 3), 6, 4)
			b.Output("y", b.MatMul(y, b.Param("wo", passtest.F64(4, 4)), false, false))
		}, "matmul reshape[2,3,2,2] transpose[0,2,1,3] matmul reshape[2,3,2,2] transpose[0,2,1,3] matmul reshape[2,3,2,2] " +
			"transpose[0,2,1,3] attention transpose[0,2,1,3] reshape[6,4] matmul"},
		{"manual-softmax", func(b *graph.Builder) {
			x := b.Input("x", passtest.F64(3, 5))
			e := b.Unary(graph.Exp, b.Binary(graph.Sub, x, passtest.Spread(b, b.Reduce(graph.MaxOf, x, false, 1), x)))
			b.Output("y", b.Binary(graph.Div, e, passtest.Spread(b, b.Reduce(graph.Sum, e, false, 1), x)))
		}, "softmax[1]"},
		{"moe", func(b *graph.Builder) {
			x := b.Input("x", passtest.F64(4, 6))
			gate := b.Add(graph.Softmax{Axis: 1}, b.MatMul(x, b.Param("wg", passtest.F64(6, 2)), false, false))
			expert := func(i int, w1, w2 string) *graph.Node {
				h := b.MatMul(passtest.Relu(b, b.MatMul(x, b.Param(w1, passtest.F64(6, 8)), false, false)), b.Param(w2, passtest.F64(8, 6)),
					false, false)
				all := b.Slice(gate, 0, 0, 4, 1)
				s := b.Reshape(b.Slice(all, 1, i, 1, 1), 4)
				return b.Binary(graph.Mul, h, passtest.Spread(b, s, h))
			}
			b.Output("y", b.Binary(graph.Add, expert(0, "w1_0", "w2_0"), expert(1, "w1_1", "w2_1")))
		}, "matmul softmax[1] moe"},
		{"conv-relu", func(b *graph.Builder) {
			x, f := b.Input("x", passtest.F64(2, 3, 5, 5)), b.Param("f", passtest.F64(4, 3, 3, 3))
			y := passtest.Relu(b, passtest.Conv(b, x, f, 1, 1, 1))
			b.Output("y",
				b.Add(graph.Pool{Fn: graph.MaxPool, Kernel: graph.IntsOf(2, 2), Stride: graph.IntsOf(2, 2), Pad: graph.IntsOf(0, 0, 0, 0)}, y))
		}, "conv2d relu pool"},
		{"embedding", func(b *graph.Builder) {
			b.Output("y", b.Add(graph.Gather{Axis: 0}, b.Param("table", passtest.F64(10, 4)), b.Input("ix", graph.TypeOf(graph.I64, 3))))
		}, "gather"},
		{"xent", func(b *graph.Builder) {
			p := b.Add(graph.LogSoftmax{Axis: 1}, b.Input("logits", passtest.F64(4, 3)))
			s := b.Reduce(graph.Sum, b.Binary(graph.Mul, b.Input("y", passtest.F64(4, 3)), p), false, 1)
			b.Output("cost", b.Unary(graph.Neg, passtest.Mean(b, s, 0)))
		}, "log_softmax[1] mul sum[0,1] mul neg"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h, _ := passtest.Run(t, graphtest.Built(t, tt.build), passes.Config{Stop: "simplify-again"})
			if got := passtest.Ops(h); got != tt.want {
				t.Errorf("left:\n\t%s\nwant:\n\t%s", got, tt.want)
			}
		})
	}
}
