package narrow_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/passes"
	"fusec/passes/passtest"
)

// TestCastsJoin lets contractions hand out in 16 bits what nothing but a cast is made of, in any precision.
func TestCastsJoin(t *testing.T) {
	bf := func(dims ...int) graph.Type { return graph.TypeOf(graph.BF16, dims...) }
	attend := func(b *graph.Builder) *graph.Node {
		q, k, v := b.Input("q", bf(2, 5, 4)), b.Input("k", bf(2, 5, 4)), b.Input("v", bf(2, 5, 4))
		return b.Add(graph.Attention{Scale: 0.5}, q, k, v)
	}
	scaled := func(b *graph.Builder, scale float64) *graph.Node {
		q := b.Input("p", bf(2, 5, 4))
		return b.Add(graph.Attention{Scale: scale}, q, q, q)
	}
	for _, c := range []struct {
		name  string
		build func(b *graph.Builder)
		want  []graph.DType // of the launches' first results
	}{
		{"cast", func(b *graph.Builder) { b.Output("y", b.CastTo(graph.BF16, attend(b))) }, []graph.DType{graph.BF16}},
		{"through a view", func(b *graph.Builder) {
			b.Output("y", b.CastTo(graph.F16, b.Transpose(attend(b), 1, 0, 2)))
		}, []graph.DType{graph.F16}},
		{"beside its log-sum-exp", func(b *graph.Builder) {
			y := attend(b)
			b.Output("y", b.CastTo(graph.BF16, y))
			b.Output("lse", b.Add(graph.Result{Index: 1}, y))
		}, []graph.DType{graph.BF16}},
		{"handed out too", func(b *graph.Builder) {
			y := attend(b)
			b.Output("y", b.CastTo(graph.BF16, y))
			b.Output("wide", y)
		}, []graph.DType{graph.F32, graph.BF16}},
		{"read by another", func(b *graph.Builder) {
			y := attend(b)
			b.Output("y", b.CastTo(graph.BF16, y))
			b.Output("sum", b.Reduce(graph.Sum, y, false, 0))
		}, []graph.DType{graph.F32, graph.F32, graph.BF16}},
		{"rounded, and read by others in f32", func(b *graph.Builder) {
			y := b.CastTo(graph.BF16, attend(b))
			wide := b.CastTo(graph.F32, y)
			b.Output("y", y)
			b.Output("sum", b.Reduce(graph.Sum, wide, false, 0))
			b.Output("square", b.Binary(graph.Mul, wide, wide))
		}, []graph.DType{graph.F32, graph.F32, graph.BF16}},
		{"joined", func(b *graph.Builder) {
			b.Output("y", b.CastTo(graph.BF16, b.Add(graph.Concat{}, attend(b), scaled(b, 2))))
		}, []graph.DType{graph.BF16, graph.BF16}},
		{"joined with a value that stays", func(b *graph.Builder) {
			b.Output("y", b.CastTo(graph.BF16, b.Add(graph.Concat{}, attend(b), b.Input("x", graph.TypeOf(graph.F32, 2, 5, 4)))))
		}, []graph.DType{graph.F32, graph.BF16}},
		{"joined with one that is joined with a value that stays", func(b *graph.Builder) {
			y, z, x := attend(b), scaled(b, 2), b.Input("x", graph.TypeOf(graph.F32, 2, 5, 4))
			b.Output("yz", b.CastTo(graph.BF16, b.Add(graph.Concat{}, y, z)))
			b.Output("zx", b.CastTo(graph.BF16, b.Add(graph.Concat{}, b.Transpose(z, 1, 0, 2), b.Transpose(x, 1, 0, 2))))
		}, []graph.DType{graph.F32, graph.F32, graph.BF16}}, // both casts in one launch
		{"of 16 bits in memory", func(b *graph.Builder) { // as it lies
			wide := func(name string) *graph.Node { return b.CastTo(graph.F32, b.Input(name, bf(64, 64))) }
			w := b.Add(graph.Concat{}, wide("u"), b.Transpose(wide("v"), 1, 0))
			b.Output("y", b.Binary(graph.Add, b.CastTo(graph.F32, b.CastTo(graph.BF16, w)), b.Input("x", graph.TypeOf(graph.F32, 128, 64))))
		}, []graph.DType{graph.F32}},
		{"computed with first", func(b *graph.Builder) {
			b.Output("y", b.CastTo(graph.BF16, b.Unary(graph.Exp, attend(b))))
		}, []graph.DType{graph.F32, graph.BF16}},
	} {
		g := graphtest.Built(t, c.build)
		h, _, err := passes.Run(g, passes.Config{Verify: true})
		if err != nil {
			t.Fatal(err)
		}
		var got []graph.DType
		for _, n := range h.Nodes {
			if _, ok := n.Op.(graph.Fusion); ok {
				got = append(got, n.Type.DType)
			}
		}
		slices.Sort(got)
		slices.Sort(c.want)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: launches make %v, want %v: %s", c.name, got, c.want, passtest.Ops(h))
		}
		if err := passtest.Same(g, h, graphtest.Values(rand.New(rand.NewPCG(1, 2)), g)); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
