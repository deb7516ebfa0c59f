package fuse_test

import (
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/passes"
	"fusec/passes/passtest"
)

// trained is the launches of forward and backward of the cost that build returns, by the parameters.
func trained(t *testing.T, build func(b *graph.Builder) *graph.Node) string {
	t.Helper()
	var grads []passes.Gradient
	g := graphtest.Built(t, func(b *graph.Builder) {
		cost := build(b)
		b.Output("cost", cost)
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range g.Nodes {
			if _, ok := n.Op.(graph.Param); ok {
				grads = append(grads, passes.Gradient{Cost: cost, Of: n, Output: "d" + n.Name})
			}
		}
	})
	h, _, err := passes.Run(g, passes.Config{Gradients: grads, Stop: "fuse-regions", Verify: true})
	if err != nil {
		t.Fatal(err)
	}
	return passtest.Launches(h)
}

// kinds lists the kinds of launches, sorted. Those that are no fusions have no part in it.
func kinds(launches string) string {
	var all []string
	for _, l := range strings.Split(launches, "} ") {
		kind, _, _ := strings.Cut(l, "{")
		all = append(all, kind)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// squareCost is a cost.
func squareCost(b *graph.Builder, y *graph.Node) *graph.Node {
	return b.Reduce(graph.Mean, b.Unary(graph.Square, y), false, 0, 1)
}

// TestBackwardLaunches counts what forward and backward are launched as: for each layer its product, its weight's
// gradient and, but for the first, its input's; for each norm two; and the cost. Biases have no launch of their own, nor
// have the weights of norms.
func TestBackwardLaunches(t *testing.T) {
	const rows, in, out = 12, 6, 8
	norm := func(b *graph.Builder, x *graph.Node) *graph.Node {
		return b.Add(graph.LayerNorm{Eps: 1e-5}, x, b.Param("gamma", passtest.F64(out)), b.Param("beta", passtest.F64(out)))
	}
	first := func(b *graph.Builder) *graph.Node {
		return passtest.Linear(b, b.Input("x", passtest.F64(rows, in)), "1", out)
	}
	for _, tt := range []struct {
		name  string
		build func(b *graph.Builder) *graph.Node
		want  string
		holds []string // parts of the launches
	}{
		{"linear, gelu, linear", func(b *graph.Builder) *graph.Node {
			return squareCost(b, passtest.Linear(b, b.Unary(graph.GeluTanh, first(b)), "2", 3))
		}, "linear linear linear matmul matmul reduce", []string{"linear{matmulᵀB mul sum[0]}"}},
		{"linear, relu, linear: the mask comes from the output", func(b *graph.Builder) *graph.Node {
			return squareCost(b, passtest.Linear(b, b.Unary(graph.Relu, first(b)), "2", 3))
		}, "linear linear linear matmul matmul reduce", []string{"add relu}", "linear{matmulᵀB gt select sum[0]}"}},
		{"linear, norm: forward and backward of the norm in one", func(b *graph.Builder) *graph.Node {
			return squareCost(b, norm(b, first(b)))
		}, "linear matmul norm reduce", []string{"sum[0] sum[0] sum[0]}"}},
		{"linear, norm, linear: the statistics are computed again", func(b *graph.Builder) *graph.Node {
			return squareCost(b, passtest.Linear(b, norm(b, first(b)), "2", 3))
		}, "linear linear linear matmul matmul norm reduce reduce", []string{"norm{layer_norm}", "linear{matmulᵀB sum[0]}"}},
		{"cross-entropy: one launch, with the bias's gradient", func(b *graph.Builder) *graph.Node {
			logs := b.Binary(graph.Mul, b.Add(graph.LogSoftmax{Axis: 1}, first(b)), b.Input("target", passtest.F64(rows, out)))
			return b.Unary(graph.Neg, b.Reduce(graph.Mean, b.Reduce(graph.Sum, logs, false, 1), false, 0))
		}, "linear matmul reduce softmax", []string{"exp broadcast[12,8] mul sub sum[0]}"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all := trained(t, tt.build)
			if got := kinds(all); got != tt.want {
				t.Errorf("launches: %s\nof kinds %s\nwant %s", all, got, tt.want)
			}
			for _, part := range tt.holds {
				if !strings.Contains(all, part) {
					t.Errorf("launches: %s\nwant %s among them", all, part)
				}
			}
		})
	}
}

// TestColumnSumsOfRounded sums the columns of values of 16 bits, such as the gradients of biases under autocast, in launches that
// make or read them.
func TestColumnSumsOfRounded(t *testing.T) {
	bf16 := func(dims ...int) graph.Type { return graph.TypeOf(graph.BF16, dims...) }
	sum := func(b *graph.Builder, x *graph.Node, axes ...int) {
		b.Output("sum", b.Reduce(graph.Sum, x, true, axes...))
	}
	for _, tt := range []struct {
		name  string
		build func(b *graph.Builder)
		want  string
	}{
		{"of a product", func(b *graph.Builder) {
			y := b.CastTo(graph.BF16, b.MatMul(b.Input("x", bf16(6, 4)), b.Input("w", bf16(4, 8)), false, false))
			b.Output("z", b.MatMul(y, b.Input("v", bf16(8, 4)), false, false))
			sum(b, b.CastTo(graph.F32, y), 0)
		}, "matmul{matmul cast bf16 cast f32 sum[0]}"},
		{"of what a launch over rows makes, in another shape", func(b *graph.Builder) {
			x := b.Unary(graph.Exp, b.Input("x", graph.TypeOf(graph.F32, 2, 3, 8)))
			y := b.Binary(graph.Sub, x, b.Broadcast(b.Reduce(graph.Mean, x, true, 2), x.Type.Shape))
			rows := b.Reshape(b.CastTo(graph.BF16, y), 6, 8)
			b.Output("z", b.MatMul(rows, b.Input("v", bf16(8, 4)), false, false))
			sum(b, b.CastTo(graph.F32, rows), 0)
		}, "sub cast bf16 cast f32 sum[0,1]}"},
		{"of what a launch over rows reads", func(b *graph.Builder) {
			y := b.CastTo(graph.BF16, b.MatMul(b.Input("x", bf16(6, 4)), b.Input("w", bf16(4, 8)), false, false))
			x := b.Reshape(b.CastTo(graph.F32, y), 2, 3, 8)
			b.Output("z", b.Binary(graph.Sub, x, b.Broadcast(b.Reduce(graph.Mean, x, true, 2), x.Type.Shape)))
			sum(b, x, 0, 1)
		}, "mean[2] broadcast[2,3,8] sub sum[0,1]}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, _, err := passes.Run(graphtest.Built(t, tt.build), passes.Config{Verify: true})
			if err != nil {
				t.Fatal(err)
			}
			if all := passtest.Launches(h); !strings.Contains(all, tt.want) {
				t.Errorf("launches: %s\nwant %s among them", all, tt.want)
			}
		})
	}
}

// TestColumnSumMisses says why a launch does not hand out sums of its value.
func TestColumnSumMisses(t *testing.T) {
	for _, tt := range []struct {
		name  string
		build func(b *graph.Builder)
		want  []string
	}{
		{"with two axes kept", func(b *graph.Builder) {
			y := b.Unary(graph.Exp, b.MatMul(b.Input("x", passtest.F64(2, 3, 4)), b.Input("w", passtest.F64(4, 5)), false, false))
			b.Output("y", y)
			b.Output("z", b.Reduce(graph.Sum, y, false, 0))
		}, []string{"matmul: sum over axes [0] %4 of \"x\" and \"w\": the launch's rows are not those that it sums over"}},
		{"of what the launch makes", func(b *graph.Builder) {
			y := b.MatMul(b.Input("x", passtest.F64(3, 4)), b.Input("w", passtest.F64(4, 5)), false, false)
			b.Output("y", y)
			b.Output("z", b.Reduce(graph.Sum, y, false, 0))
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := misses(t, graphtest.Built(t, tt.build))
			if !slices.Equal(got, tt.want) {
				t.Errorf("misses: %q, want %q", got, tt.want)
			}
		})
	}
}

// TestColumnSumsRead has column sums that the rows of the same value need as their weights: these have to be finished first.
func TestColumnSumsRead(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Input("x", passtest.F64(1, 3, 4))
		b.Output("y", b.Add(graph.RMSNorm{Eps: 1e-5}, x, b.Reduce(graph.Sum, x, false, 0, 1)))
	})
	h, _, err := passes.Run(g, passes.Config{Stop: "fuse-regions", Verify: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := kinds(passtest.Launches(h)); got != "norm reduce" {
		t.Error(got)
	}
}
