package fuse_test

import (
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/passes"
	"fusec/passes/passtest"
)

// launchesOf lists the launches of a graph: those that depend on frozen parameters and constants alone behind "once", and
// the others.
func launchesOf(g *graph.Graph, params bool) (once, run string) {
	frozen := graph.Frozen(g, params)
	var of [2][]*graph.Node
	for _, n := range g.Nodes {
		if frozen.Get(n) {
			of[0] = append(of[0], n)
		} else {
			of[1] = append(of[1], n)
		}
	}
	return passtest.LaunchesOf(of[0]), passtest.LaunchesOf(of[1])
}

// TestOnce says what stays out of the launches of a run because frozen parameters and constants determine it, and what
// does not because a run would then read more.
func TestOnce(t *testing.T) {
	for _, c := range []struct {
		name                string
		build               func(b *graph.Builder)
		once, run, unfrozen string
	}{
		{"weights beside an input", func(b *graph.Builder) {
			x := b.Input("x", passtest.F64(4, 6))
			b.Output("y", b.Binary(graph.Mul, x, b.Unary(graph.Exp, b.Param("w", passtest.F64(4, 6)))))
		}, "elementwise{exp}", "elementwise{mul}", "elementwise{exp mul}"},
		{"more elements than it is made of", func(b *graph.Builder) {
			x := b.Input("x", passtest.F64(4, 6))
			w := b.Binary(graph.Add, b.Broadcast(b.Param("v", passtest.F64(4, 1)), x.Type.Shape),
				b.Broadcast(b.Param("w", passtest.F64(6)), x.Type.Shape))
			b.Output("y", b.Binary(graph.Mul, x, b.Unary(graph.Exp, w)))
		}, "", "elementwise{broadcast[4,6] broadcast[4,6] add exp mul}", "elementwise{broadcast[4,6] broadcast[4,6] add exp mul}"},
		{"an operand in an epilogue", func(b *graph.Builder) {
			y := b.MatMul(b.Input("x", passtest.F64(4, 5)), b.Param("w", passtest.F64(5, 6)), false, false)
			b.Output("y", b.Binary(graph.Add, y, b.Unary(graph.Tanh, b.Param("r", passtest.F64(4, 6)))))
		}, "elementwise{tanh}", "linear{matmul add}", "linear{matmul tanh add}"},
		{"a softmax of weights", func(b *graph.Builder) {
			w := b.Add(graph.Softmax{Axis: 1}, b.BinaryScalar(graph.Mul, b.Param("w", passtest.F64(4, 6)), 3))
			b.Output("y", b.Binary(graph.Add, w, b.Input("x", passtest.F64(4, 6))))
		}, "softmax{mul softmax[1]}", "elementwise{add}", "softmax{mul softmax[1] add}"},
		{"what is handed out is made in each run", func(b *graph.Builder) {
			w := b.Unary(graph.Exp, b.Param("w", passtest.F64(4, 6)))
			b.Output("w'", w)
			b.Output("y", b.Binary(graph.Mul, b.Input("x", passtest.F64(4, 6)), w))
		}, "", "elementwise{exp mul}", "elementwise{exp mul}"},
		{"an updated parameter", func(b *graph.Builder) {
			w := b.Param("w", passtest.F64(4, 6))
			b.Output("y", b.Binary(graph.Mul, b.Input("x", passtest.F64(4, 6)), b.Unary(graph.Exp, w)))
			b.Update(w, b.BinaryScalar(graph.Mul, w, 0.5))
		}, "", "elementwise{exp mul} elementwise{mul}", "elementwise{exp mul} elementwise{mul}"},
		{"column sums", func(b *graph.Builder) {
			w := b.Unary(graph.Exp, b.MatMul(b.Param("v", passtest.F64(4, 5)), b.Param("w", passtest.F64(5, 6)), false, false))
			s := b.Broadcast(b.Reduce(graph.Sum, w, false, 0), graph.ShapeOf(4, 6))
			b.Output("y", b.Binary(graph.Add, b.Binary(graph.Add, b.Input("x", passtest.F64(4, 6)), w), s))
		}, "linear{matmul exp sum[0]}", "elementwise{broadcast[4,6] add add}",
			"linear{matmul exp sum[0]} elementwise{broadcast[4,6] add add}"},
	} {
		g := graphtest.Built(t, c.build)
		h, _ := passtest.Run(t, g, passes.Config{Frozen: true})
		if once, run := launchesOf(h, true); once != c.once || run != c.run {
			t.Errorf("%s: once %q, in each run %q; want %q and %q", c.name, once, run, c.once, c.run)
		}
		h, _ = passtest.Run(t, g, passes.Config{})
		if once, run := launchesOf(h, false); once != "" || run != c.unfrozen {
			t.Errorf("%s: once %q, in each run %q of parameters that are not frozen; want %q", c.name, once, run, c.unfrozen)
		}
	}
}

// TestMergeOnce rounds frozen parameters apart from those that the graph updates.
func TestMergeOnce(t *testing.T) {
	half := func(b *graph.Builder, n *graph.Node) *graph.Node { return b.CastTo(graph.BF16, n) }
	g := graphtest.Built(t, func(b *graph.Builder) {
		f32 := graph.TypeOf(graph.F32, 4, 4)
		y := half(b, b.Input("x", f32))
		for _, name := range []string{"a", "b", "c", "d"} {
			w := b.Param(name, f32)
			y = half(b, b.MatMul(y, half(b, w), false, false))
			if name > "b" {
				b.Update(w, b.BinaryScalar(graph.Mul, w, 0.5))
			}
		}
		b.Output("y", y)
	})
	h, _, err := passes.Run(g, passes.Config{Frozen: true, Verify: true})
	if err != nil {
		t.Fatal(err)
	}
	once, _ := launchesOf(h, true)
	if once != "elementwise{cast bf16 cast bf16}" {
		t.Errorf("once %q", once)
	}
}
