package weights_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/trace"
	"fusec/passes"
	"fusec/passes/passtest"
)

// in is what a run computes after the pass: the operations that do not follow from frozen values alone, without views.
func in(t *testing.T, g *graph.Graph, frozen bool) string {
	t.Helper()
	h, tr := passtest.Run(t, g, passes.Config{Frozen: frozen, Stop: "fold-weights"})
	if got, want := tr.Unfused(), trace.Unfused(tr.Stages[0].Graph); got != want {
		t.Errorf("the work of single operations is %v, want that of the graph as given, %v", got, want)
	}
	for _, m := range passtest.Stage(t, tr, "fold-weights").Matches {
		if m.Numeric != trace.Reassociated.In(graph.F64) && m.Numeric != trace.Reassociated.In(graph.F32) {
			t.Errorf("the contract of %s is %v", m.Pattern, m.Numeric)
		}
	}
	return operations(h, frozen)
}

// conv is a convolution of x, with the filters of one spatial axis.
func conv(b *graph.Builder, x *graph.Node, name string, out, groups int) *graph.Node {
	op := graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1), Groups: groups}
	return b.Add(op, x, b.Param(name, passtest.F64(out, x.Type.Shape.At(1)/groups, 3, 3)))
}

// norm is a batch norm in evaluation. The variance is a square.
func norm(b *graph.Builder, x *graph.Node, name string) *graph.Node {
	v := func(s string) *graph.Node { return b.Param(name+s, passtest.F64(x.Type.Shape.At(1))) }
	return b.Add(graph.BatchNorm{Eps: 0.25, Momentum: 0.5}, x, v("g"), v("b"), v("m"), b.Unary(graph.Square, v("v")))
}

// per is a parameter for each channel.
func per(b *graph.Builder, x *graph.Node, name string, axis int) *graph.Node {
	dims := make([]int, x.Type.Shape.Rank()-axis)
	for i := range dims {
		dims[i] = 1
	}
	dims[0] = x.Type.Shape.At(axis)
	return b.Broadcast(b.Reshape(b.Param(name, passtest.F64(dims[0])), dims...), x.Type.Shape)
}

func TestFold(t *testing.T) {
	image := func(b *graph.Builder) *graph.Node { return b.Input("x", passtest.F64(2, 4, 5, 3)) }
	for _, c := range []struct {
		name             string
		build            func(b *graph.Builder)
		frozen, unfrozen string
	}{
		{"a batch norm", func(b *graph.Builder) {
			b.Output("y", b.Unary(graph.Relu, norm(b, conv(b, image(b), "w", 6, 2), "n")))
		}, "conv2d add relu", "conv2d square batch_norm relu"},
		{"a batch norm behind a bias", func(b *graph.Builder) {
			y := conv(b, image(b), "w", 6, 1)
			b.Output("y", norm(b, b.Binary(graph.Add, y, per(b, y, "bias", 1)), "n"))
		}, "conv2d add", "conv2d add square batch_norm"},
		{"a batch norm of something else, and its statistics", func(b *graph.Builder) {
			x := image(b)
			n := norm(b, b.Unary(graph.Exp, x), "n")
			b.Output("y", b.Binary(graph.Add, n, x))
			b.Output("mean", b.Add(graph.Result{Index: 1}, n))
		}, "exp mul add add", "exp square batch_norm add"},
		{"a contraction that is also read itself", func(b *graph.Builder) {
			y := conv(b, image(b), "w", 6, 1)
			b.Output("y", b.Binary(graph.Add, norm(b, y, "n"), y))
		}, "conv2d mul add add", "conv2d square batch_norm add"},
		{"scale and shift written by hand", func(b *graph.Builder) {
			y := conv(b, image(b), "w", 3, 1)
			y = b.Binary(graph.Sub, y, per(b, y, "mean", 1))
			y = b.Binary(graph.Div, y, b.Unary(graph.Exp, per(b, y, "deviation", 1)))
			y = b.Binary(graph.Mul, per(b, y, "gamma", 1), y)
			y = b.BinaryScalar(graph.Mul, y, 3)
			b.Output("y", b.Binary(graph.Add, per(b, y, "beta", 1), y))
		}, "conv2d add", "conv2d sub exp div mul mul add"},
		{"images with channels last", func(b *graph.Builder) {
			op := graph.Conv2D{Stride: graph.IntsOf(1, 2), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 0, 1), Groups: 2,
				Layout: graph.NHWC}
			y := b.Add(op, b.Input("x", passtest.F64(2, 5, 3, 4)), b.Param("w", passtest.F64(3, 3, 2, 6)))
			b.Output("y", b.Binary(graph.Mul, y, per(b, y, "s", 3)))
		}, "conv2d", "conv2d mul"},
		{"a transposed convolution", func(b *graph.Builder) {
			op := graph.Conv2DTranspose{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(0, 0, 0, 0), Groups: 1,
				H: 5, W: 4}
			y := b.Add(op, b.Input("x", passtest.F64(2, 4, 3, 2)), b.Param("w", passtest.F64(4, 6, 3, 3)))
			b.Output("y", norm(b, y, "n"))
			op.Layout = graph.NHWC
			y = b.Add(op, b.Input("z", passtest.F64(2, 3, 2, 4)), b.Param("v", passtest.F64(3, 3, 6, 4)))
			b.Output("z'", b.Binary(graph.Mul, y, per(b, y, "s", 3)))
		}, "conv2d_transpose add conv2d_transpose", "conv2d_transpose square batch_norm conv2d_transpose mul"},
		{"a transposed convolution in groups", func(b *graph.Builder) {
			op := graph.Conv2DTranspose{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(0, 0, 0, 0), Groups: 2,
				H: 5, W: 4}
			y := b.Add(op, b.Input("x", passtest.F64(2, 4, 3, 2)), b.Param("w", passtest.F64(4, 3, 3, 3)))
			b.Output("y", norm(b, y, "n"))
		}, "conv2d_transpose mul add", "conv2d_transpose square batch_norm"},
		{"columns of a product", func(b *graph.Builder) {
			y := b.MatMul(b.Input("x", passtest.F64(2, 4, 5)), b.Param("w", passtest.F64(3, 5)), false, true)
			b.Output("y", b.Binary(graph.Mul, y, per(b, y, "s", 2)))
		}, "matmulᵀB", "matmulᵀB mul"},
		{"rows of a product", func(b *graph.Builder) {
			y := b.MatMul(b.Param("w", passtest.F64(5, 3)), b.Input("x", passtest.F64(5, 4)), true, false)
			b.Output("y", b.Binary(graph.Mul, y, per(b, y, "s", 0)))
		}, "matmulᵀA", "matmulᵀA mul"},
		{"rows where the weights are on the right", func(b *graph.Builder) {
			y := b.MatMul(b.Input("x", passtest.F64(4, 5)), b.Param("w", passtest.F64(5, 3)), false, false)
			b.Output("y", b.Binary(graph.Mul, y, per(b, y, "s", 0)))
		}, "matmul mul", "matmul mul"},
		{"one number", func(b *graph.Builder) {
			y := b.MatMul(b.Input("x", passtest.F64(4, 5)), b.Param("w", passtest.F64(5, 3)), false, false)
			b.Output("y", b.BinaryScalar(graph.Mul, y, 3))
		}, "matmul mul", "matmul mul"},
		{"a divisor", func(b *graph.Builder) {
			y := b.MatMul(b.Input("x", passtest.F64(4, 5)), b.Param("w", passtest.F64(5, 3)), false, false)
			b.Output("y", b.Binary(graph.Sub, b.Unary(graph.Exp, per(b, y, "s", 1)), y))
		}, "matmul sub", "matmul exp sub"},
		{"what an input scales", func(b *graph.Builder) {
			y := b.MatMul(b.Input("x", passtest.F64(4, 5)), b.Param("w", passtest.F64(5, 3)), false, false)
			b.Output("y", b.Binary(graph.Mul, y, b.Broadcast(b.Input("s", passtest.F64(3)), y.Type.Shape)))
		}, "matmul mul", "matmul mul"},
	} {
		g := graphtest.Built(t, c.build)
		if got := in(t, g, true); got != c.frozen {
			t.Errorf("%s: a run computes %q, want %q", c.name, got, c.frozen)
		}
		if got := in(t, g, false); got != c.unfrozen {
			t.Errorf("%s: without frozen parameters %q, want %q", c.name, got, c.unfrozen)
		}
	}
}

// operations lists what needs a launch in each run.
func operations(g *graph.Graph, frozen bool) string {
	once := graph.Frozen(g, frozen)
	var ops []string
	for _, n := range g.Nodes {
		if !once.Get(n) && trace.NeedsLaunch(n.Op) {
			ops = append(ops, passtest.Op(n))
		}
	}
	return strings.Join(ops, " ")
}

// TestFoldRandom gives chains of steps in any order behind contractions of any form, through all passes.
func TestFoldRandom(t *testing.T) {
	folded := 0
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 17))
		dim := func() int { return []int{1, 2, 3, 5}[r.IntN(4)] }
		g := graphtest.Built(t, func(b *graph.Builder) {
			var y *graph.Node
			axis := 1
			switch r.IntN(3) {
			case 0:
				groups := dim()
				y = conv(b, b.Input("x", passtest.F64(dim(), groups*dim(), dim(), dim())), "w", groups*dim(), groups)
			case 1:
				y = b.MatMul(b.Input("x", passtest.F64(dim(), 3)), b.Param("w", passtest.F64(3, dim())), false, false)
			default:
				y = b.MatMul(b.Param("w", passtest.F64(dim(), 3, dim())), b.Input("x", passtest.F64(3, dim())), true, false)
				axis = r.IntN(3)
			}
			for i := range 1 + r.IntN(5) {
				v := per(b, y, fmt.Sprint("v", i), axis)
				switch r.IntN(6) {
				case 0:
					y = b.Binary(graph.Add, v, y)
				case 1:
					y = b.Binary(graph.Sub, y, v)
				case 2:
					y = b.Binary(graph.Mul, y, v)
				case 3:
					y = b.Binary(graph.Div, y, b.BinaryScalar(graph.Add, b.Unary(graph.Square, v), 1))
				case 4:
					y = b.BinaryScalar(graph.Mul, y, 0.7)
				default:
					y = norm(b, y, fmt.Sprint("n", i))
				}
				if r.IntN(8) == 0 {
					b.Output(fmt.Sprint("y", i), b.Unary(graph.Tanh, y))
				}
			}
			b.Output("y", y)
		})
		_, tr := passtest.Run(t, g, passes.Config{Frozen: true})
		folded += len(passtest.Stage(t, tr, "fold-weights").Matches)
	}
	if folded < 50 {
		t.Errorf("%d chains were folded", folded)
	}
}

// TestIntegers has sums of integers with three steps behind them, which become two, and with two, which stay.
func TestIntegers(t *testing.T) {
	f32 := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
	for name, c := range map[string]struct {
		sums  func(b *graph.Builder) *graph.Node
		axis  int
		steps int
		want  string
	}{
		"a convolution": {func(b *graph.Builder) *graph.Node {
			one := graph.IntsOf(1, 1)
			op := graph.Conv2D{Stride: one, Dilation: one, Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1}
			return b.Add(op, b.Input("x", graph.TypeOf(graph.U8, 1, 4, 5, 3)), b.Param("w", graph.TypeOf(graph.I8, 6, 4, 3, 3)))
		}, 1, 4, "conv2d mul add round"},
		"a product": {func(b *graph.Builder) *graph.Node {
			w := b.Add(graph.PackWeights{Quads: true}, b.Param("w", graph.TypeOf(graph.I8, 8, 6)))
			return b.Add(graph.PanelMatMul{Columns: 6, Integers: true}, b.Input("x", graph.TypeOf(graph.U8, 3, 8)), w)
		}, 1, 4, "matmul_panels mul add round"},
		"two steps": {func(b *graph.Builder) *graph.Node {
			w := b.Add(graph.PackWeights{Quads: true}, b.Param("w", graph.TypeOf(graph.I8, 8, 6)))
			return b.Add(graph.PanelMatMul{Columns: 6, Integers: true}, b.Input("x", graph.TypeOf(graph.U8, 3, 8)), w)
		}, 1, 2, "matmul_panels sub mul round"},
	} {
		t.Run(name, func(t *testing.T) {
			g := graphtest.Built(t, func(b *graph.Builder) {
				y := c.sums(b)
				each := func(name string) *graph.Node {
					dims := make([]int, y.Type.Shape.Rank()-c.axis)
					for i := range dims {
						dims[i] = 1
					}
					dims[0] = y.Type.Shape.At(c.axis)
					return b.Broadcast(b.Reshape(b.Param(name, f32(dims[0])), dims...), y.Type.Shape)
				}
				y = b.Binary(graph.Mul, b.Binary(graph.Sub, y, each("zero")), each("scale"))
				if c.steps > 2 {
					y = b.BinaryScalar(graph.Div, b.Binary(graph.Add, y, each("bias")), 0.25)
				}
				b.Output("y", b.Unary(graph.Round, y))
			})
			if got := in(t, g, true); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if got := in(t, g, false); strings.HasPrefix(got, "matmul_panels mul") || strings.HasPrefix(got, "conv2d mul") {
				t.Errorf("%s with weights that change", got)
			}
		})
	}
	g := graphtest.Built(t, func(b *graph.Builder) { // sums and steps alone, which no rounding hides
		w := b.Add(graph.PackWeights{Quads: true}, b.Param("w", graph.TypeOf(graph.I8, 8, 6)))
		y := b.Add(graph.PanelMatMul{Columns: 6, Integers: true}, b.Input("x", graph.TypeOf(graph.U8, 3, 8)), w)
		for _, name := range []string{"u", "v"} {
			y = b.Binary(graph.Sub, y, b.Broadcast(b.Param(name, f32(6)), y.Type.Shape))
		}
		b.Output("y", b.Binary(graph.Add, y, b.Broadcast(b.Param("z", f32(6)), y.Type.Shape)))
	})
	h, _ := passtest.Run(t, g, passes.Config{Frozen: true, Stop: "fold-weights"})
	if got := operations(h, true); got != "matmul_panels add" {
		t.Error(got)
	}
	passtest.SameNumbers(t, g, h, graphtest.Values(rand.New(rand.NewPCG(1, 2)), g))
}
