package fusec_test

import (
	"fmt"
	"math"
	"testing"

	"fusec"
	"fusec/graph"
	"fusec/kernels/ref"
)

// TestIntegersExact runs integers that float64 does not hold through every kind of operation that takes integers, with
// every pass and without those that fold, on the CPU and as CUDA code.
func TestIntegersExact(t *testing.T) {
	const big = 1<<53 + 1
	i64 := func(dims ...int) graph.Type { return graph.TypeOf(graph.I64, dims...) }
	values := func(dims ...int) *graph.Tensor {
		x := graph.NewTensor(i64(dims...))
		for i := range x.Data.([]int64) {
			x.SetInt(i, []int64{big, -big - 2, math.MaxInt64, math.MinInt64 + 1, 3, big + 2}[i%6])
		}
		return x
	}
	b := graph.NewBuilder("integers")
	x := b.Input("x", i64(2, 3))
	same := b.Const(func() *graph.Tensor {
		c := graph.NewTensor(i64(2, 3))
		for i := range 6 {
			c.SetInt(i, big)
		}
		return c
	}())
	mixed, one := b.Const(values(2, 3)), b.Const(func() *graph.Tensor { c := graph.NewTensor(i64()); c.SetInt(0, big); return c }())
	out := func(n *graph.Node) { b.Output(fmt.Sprintf("y%d", n.ID), n) }
	for _, c := range []*graph.Node{same, mixed, one} {
		for _, f := range graph.BinaryFnsOf(graph.I64) {
			out(b.Binary(f, x, c))
			out(b.Binary(f, mixed, c)) // folded
		}
	}
	for _, f := range graph.UnaryFnsOf(graph.I64) {
		out(b.Unary(f, x))
		out(b.Unary(f, mixed))
	}
	for _, c := range []*graph.Node{x, mixed, same} {
		out(b.Reduce(graph.Sum, c, false, 1))
		out(b.Reduce(graph.MaxOf, c, false, 0))
		out(b.Reduce(graph.MinOf, c, true, 0, 1))
		out(b.Transpose(c, 1, 0))
		out(b.Slice(c, 1, 1, 2, 1))
		out(b.Add(graph.Concat{Axis: 1}, x, c, same))
		out(b.Add(graph.Select{}, b.Binary(graph.Gt, x, one), c, one))
		out(b.Add(graph.Cast{To: graph.I32}, c))
		out(b.Add(graph.Gather{Axis: 0}, c, b.Const(graph.Filled(i64(2), 1))))
		out(b.Broadcast(b.Reshape(c, 1, 2, 3), graph.ShapeOf(2, 2, 3)))
	}
	whole := built(t, b)
	b = graph.NewBuilder("few")
	x = b.Input("x", i64(2, 3))
	one = b.Const(one.Op.(graph.Const).Value)
	y := b.Binary(graph.Max, b.Binary(graph.Add, x, one), b.Const(values(2, 3)))
	b.Output("y", b.Add(graph.Select{}, b.Binary(graph.Eq, x, one), y, one))
	few := built(t, b) // each launch on CUDA is a program to compile
	in := map[string]*graph.Tensor{"x": values(2, 3)}
	check := func(what string, g *graph.Graph, opts ...fusec.CompileOption) {
		t.Helper()
		want, _, err := ref.Eval(g, in)
		if err != nil {
			t.Fatal(err)
		}
		p, err := fusec.Compile(g, opts...)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		defer p.Close()
		got, err := p.Run(in)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		for name, w := range want {
			if !got[name].Equal(w) {
				t.Errorf("%s: %s is %v, want %v", what, name, got[name].Data, w.Data)
			}
		}
	}
	check("cpu", whole)
	check("cpu, nothing simplified", whole, fusec.WithoutPass("simplify"), fusec.WithoutPass("simplify-again"))
	check("cpu, nothing fused", whole, fusec.WithoutPass("fuse-regions"))
	check("cuda", few, fusec.WithTarget("cuda"), emulated(t))
}
