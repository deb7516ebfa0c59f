package fuse_test

import (
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/passes"
	"fusec/passes/passtest"
)

// twoExperts is a mixture of two experts.
func twoExperts(b *graph.Builder) *graph.Node {
	op := graph.MoE{Experts: 2, Activation: graph.Relu, Stacked: true}
	return b.Add(op, b.Input("x", passtest.F64(5, 4)), b.Input("gates", passtest.F64(5, 2)), b.Param("w", passtest.F64(2, 4, 6)),
		b.Param("v", passtest.F64(2, 6, 3)))
}

// TestFuseWhole says what stands in the launch of an attention or a mixture of experts.
func TestFuseWhole(t *testing.T) {
	const (
		split  = "reshape[2,5,3,4] transpose[0,2,1,3] "
		split3 = split + split + split
		merge  = " transpose[0,2,1,3] reshape[10,12]"
	)
	tests := []struct {
		name  string
		build func(b *graph.Builder)
		want  string
	}{
		{"heads split and merged", func(b *graph.Builder) {
			x := b.Input("x", passtest.F64(2, 5, 12))
			h := b.Transpose(b.Reshape(x, 2, 5, 3, 4), 0, 2, 1, 3)
			b.Output("y", b.Reshape(b.Transpose(passtest.Attend(b, h, h, h), 0, 2, 1, 3), 2, 5, 12))
		}, "attention{reshape[2,5,3,4] transpose[0,2,1,3] attention transpose[0,2,1,3] reshape[2,5,12]}"},
		{"elementwise work before and after", func(b *graph.Builder) {
			q, k, v := passtest.QKV(b, graph.F64, 5, 5)
			b.Output("y", b.Unary(graph.Tanh, passtest.Attend(b, b.Unary(graph.Exp, q), k, v)))
		}, "elementwise{exp} attention{attention} elementwise{tanh}"},
		{"mask, lengths and seed are operands", func(b *graph.Builder) {
			q, k, v := passtest.QKV(b, graph.F64, 5, 5)
			n, seed := b.Scalar(graph.I64, 3), b.Scalar(graph.I64, 7)
			m := b.Scalar(graph.F64, 1)
			b.Output("y", b.Add(graph.Attention{Scale: 1, HasMask: true, HasLengths: true, Dropout: 0.5}, q, k, v, m, n, seed))
		}, "attention{attention}"},
		{"both results", func(b *graph.Builder) {
			q, k, v := passtest.QKV(b, graph.F64, 5, 5, 3)
			y := b.Add(graph.Attention{Scale: 1}, q, k, v)
			b.Output("y", y)
			b.Output("lse", b.Unary(graph.Exp, b.Add(graph.Result{Index: 1}, y)))
		}, "attention{attention result} elementwise{exp}"},
		{"the second result alone", func(b *graph.Builder) {
			q, k, v := passtest.QKV(b, graph.F64, 5, 5, 3)
			b.Output("lse", b.Add(graph.Result{Index: 1}, b.Add(graph.Attention{Scale: 1}, q, k, v)))
		}, "attention{attention result}"},
		{"attention of attention", func(b *graph.Builder) {
			q, k, v := passtest.QKV(b, graph.F64, 5, 5)
			y := passtest.Attend(b, q, k, v)
			b.Output("y", passtest.Attend(b, y, y, y))
		}, "attention{attention} attention{attention}"},
		{"its gradient, which reads the result that is stored with merged heads", func(b *graph.Builder) {
			heads := func(name string) *graph.Node {
				return b.Transpose(b.Reshape(b.Input(name, passtest.F64(2, 5, 12)), 2, 5, 3, 4), 0, 2, 1, 3)
			}
			merged := func(x *graph.Node) *graph.Node { return b.Reshape(b.Transpose(x, 0, 2, 1, 3), 10, 12) }
			q, k, v := heads("q"), heads("k"), heads("v")
			y := b.Add(graph.Attention{Scale: 1}, q, k, v)
			lse := b.Add(graph.Result{Index: 1}, y)
			b.Output("z", b.MatMul(merged(y), b.Input("w", passtest.F64(12, 6)), false, false))
			dq := b.Add(graph.AttentionGrad{}, q, k, v, y, lse, heads("d"))
			b.Output("dq", merged(dq))
			b.Output("dk", merged(b.Add(graph.Result{Index: 1}, dq)))
		}, "attention{" + split3 + "attention result" + merge + "} matmul{matmul} " +
			"attention{" + split3 + split + "attention_grad result" + merge + merge + "}"},
		{"results of a gradient that nobody reads", func(b *graph.Builder) {
			q, k, v := passtest.QKV(b, graph.F64, 5, 5, 3)
			y := b.Add(graph.Attention{Scale: 1}, q, k, v)
			dq := b.Add(graph.AttentionGrad{}, q, k, v, y, b.Add(graph.Result{Index: 1}, y), y)
			b.Output("dv", b.Add(graph.Result{Index: 2}, dq))
		}, "attention{attention result} attention{attention_grad result}"},
		{"mixture, views of its operands and its result", func(b *graph.Builder) {
			x, gates := b.Input("x", passtest.F64(6, 4)), b.Input("gates", passtest.F64(2, 2, 3))
			w := b.Transpose(b.Param("w", passtest.F64(5, 4)), 1, 0)
			v := b.Slice(b.Param("v", passtest.F64(3, 5, 3)), 0, 1, 1, 1)
			y := b.Add(graph.MoE{Experts: 2, Activation: graph.Relu}, b.Reshape(x, 2, 3, 4), b.Transpose(gates, 0, 2, 1),
				w, w, b.Reshape(v, 5, 3), b.Param("u", passtest.F64(5, 3)))
			b.Output("y", b.Reshape(b.Transpose(y, 1, 0, 2), 6, 3))
		}, "moe{reshape[2,3,4] transpose[0,2,1] transpose[1,0] slice[1,5,3] reshape[5,3] moe transpose[1,0,2] reshape[6,3]}"},
		{"loads alone", func(b *graph.Builder) {
			b.Output("loads", b.Add(graph.Result{Index: 1}, twoExperts(b)))
		}, "moe{moe result}"},
		{"residual after a mixture", func(b *graph.Builder) {
			b.Output("y", b.Binary(graph.Add, twoExperts(b), b.Input("r", passtest.F64(5, 3))))
		}, "moe{moe} elementwise{add}"},
		{"gradient, of which some results are read", func(b *graph.Builder) {
			y := twoExperts(b)
			g := b.Add(graph.MoEGrad(y.Op.(graph.MoE)), append(y.Args, b.Input("dy", passtest.F64(5, 3)))...)
			b.Output("dgates", b.Add(graph.Result{Index: 1}, g))
			b.Output("dw", b.Unary(graph.Neg, b.Add(graph.Result{Index: 3}, g)))
		}, "moe{moe_grad result result} elementwise{neg}"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h, _ := passtest.Run(t, graphtest.Built(t, tt.build), passes.Config{})
			if got := passtest.Launches(h); got != tt.want {
				t.Errorf("launches:\n\t%s\nwant:\n\t%s", got, tt.want)
			}
			for _, n := range h.Nodes {
				f, ok := n.Op.(graph.Fusion)
				if !ok || f.Kind != graph.KindAttention && f.Kind != graph.KindMoE {
					continue
				}
				if f.Body.Outputs[0].Node.Op != f.Anchored().Op && !graph.IsView(f.Body.Outputs[0].Node.Op) {
					t.Errorf("the first result of the launch is %s", f.Body.Outputs[0].Node.Where())
				}
				for _, in := range f.Anchored().Args {
					if _, ok := in.Op.(graph.Const); ok {
						t.Errorf("the operand %s is inside the launch", in.Where())
					}
				}
			}
		})
	}
}
