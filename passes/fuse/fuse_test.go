package fuse_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/passes"
	"fusec/passes/fuse"
	"fusec/passes/passtest"
)

// misses lists the missed fusions of fuse-regions.
func misses(t *testing.T, g *graph.Graph) []string {
	t.Helper()
	_, tr := passtest.Run(t, g, passes.Config{Stop: "fuse-regions"})
	var s []string
	for _, m := range passtest.Stage(t, tr, "fuse-regions").Misses {
		s = append(s, passtest.WithoutLines(fmt.Sprintf("%s: %s: %s", m.Pattern, m.At, m.Reason)))
	}
	return s
}

// lessGreatest is x less the greatest of each row, which raise leaves as it is.
func lessGreatest(b *graph.Builder, x *graph.Node) *graph.Node {
	last := graph.IntsOf(x.Type.Shape.Rank() - 1)
	m := b.Reduce(graph.MaxOf, x, false, last.At(0))
	return b.Binary(graph.Sub, x, b.Expand(m, last, x.Type.Shape))
}

// TestFuse says what becomes one launch and what does not.
func TestFuse(t *testing.T) {
	tests := []struct {
		name   string
		build  func(b *graph.Builder)
		want   string
		misses []string
	}{
		{"linear with activation and residual", func(b *graph.Builder) {
			x := b.Input("x", passtest.F64(4, 6))
			b.Output("y", b.Binary(graph.Add, b.Unary(graph.GeluTanh, passtest.Linear(b, x, "w", 6)), x))
		}, "linear{broadcast[4,6] matmul add gelu_tanh add}", nil},
		{"product of two activations", func(b *graph.Builder) {
			b.Output("y", b.MatMul(b.Input("p", passtest.F64(4, 6)), b.Input("q", passtest.F64(6, 3)), false, false))
		}, "matmul{matmul}", nil},
		{"product with one number", func(b *graph.Builder) {
			y := b.MatMul(b.Input("x", passtest.F64(4, 6)), b.Broadcast(b.Scalar(graph.F64, 2), graph.ShapeOf(6, 3)), false, false)
			b.Output("y", b.Binary(graph.Add, y, b.Scalar(graph.F64, 3)))
		}, "matmul{broadcast[6,3] matmul add}", nil},
		{"elementwise chain", func(b *graph.Builder) {
			x, y := b.Input("x", passtest.F64(4, 6)), b.Input("y", passtest.F64(4, 6))
			b.Output("z", b.Unary(graph.Tanh, b.Binary(graph.Mul, x, b.Unary(graph.Exp, y))))
		}, "elementwise{exp mul tanh}", nil},
		{"scalars", func(b *graph.Builder) {
			x, y := b.Input("x", passtest.F64()), b.Input("y", passtest.F64())
			b.Output("z", b.Unary(graph.Tanh, b.Binary(graph.Mul, x, b.Unary(graph.Exp, y))))
		}, "elementwise{exp mul tanh}", nil},
		{"row that leads back", func(b *graph.Builder) {
			b.Output("y", b.Unary(graph.Exp, lessGreatest(b, b.Input("x", passtest.F64(4, 6)))))
		}, "reduce{max[1] reshape[4,1] broadcast[4,6] sub exp}", nil},
		{"two reductions of one operand", func(b *graph.Builder) {
			x := b.Input("x", passtest.F64(4, 6))
			b.Output("least", b.Reduce(graph.MinOf, x, false, 1))
			b.Output("greatest", b.Reduce(graph.MaxOf, x, true, 1))
		}, "reduce{min[1] max[1]}", nil},
		{"gradient of a norm, whose root is read beside it", func(b *graph.Builder) {
			x, dy := b.Input("x", passtest.F64(4, 6)), b.Input("dy", passtest.F64(4, 6))
			wide := func(n *graph.Node) *graph.Node { return b.Broadcast(n, x.Type.Shape) }
			mean := func(n *graph.Node) *graph.Node { return wide(b.Reduce(graph.Mean, n, true, 1)) }
			d := b.Binary(graph.Sub, x, mean(x))
			root := wide(b.Unary(graph.Rsqrt, passtest.Shift(b, b.Reduce(graph.Mean, b.Unary(graph.Square, d), true, 1), 1e-5)))
			y := b.Binary(graph.Mul, d, root)
			b.Output("dgain", b.Reduce(graph.Sum, b.Binary(graph.Mul, dy, y), false, 0))
			dx := b.Binary(graph.Sub, b.Binary(graph.Sub, dy, b.Binary(graph.Mul, y, mean(b.Binary(graph.Mul, dy, y)))), mean(dy))
			b.Output("dx", b.Binary(graph.Mul, root, dx))
		}, "reduce{mean[1] broadcast[4,6] sub square mean[1] add rsqrt broadcast[4,6] mul mul sum[0] mean[1] broadcast[4,6] mul sub " +
			"mean[1] broadcast[4,6] sub mul}", nil},
		{"softmax with a scale before and a mask after", func(b *graph.Builder) {
			x := b.Input("x", passtest.F64(4, 6))
			p := b.Add(graph.Softmax{Axis: 1}, b.Binary(graph.Mul, x, b.Input("s", passtest.F64())))
			b.Output("y", b.Binary(graph.Mul, p, b.Input("m", passtest.F64(4, 6))))
		}, "softmax{mul softmax[1] mul}", nil},
		{"softmax along an outer axis", func(b *graph.Builder) {
			b.Output("y", b.Unary(graph.Exp, b.Add(graph.Softmax{Axis: 0}, b.Input("x", passtest.F64(4, 6)))))
		}, "softmax[0] elementwise{exp}", nil},
		{"reduction of columns", func(b *graph.Builder) {
			x := b.Input("x", passtest.F64(4, 6))
			s := b.Reduce(graph.Sum, b.Unary(graph.Square, x), false, 0)
			b.Output("y", b.Binary(graph.Div, x, b.Expand(s, graph.IntsOf(0), x.Type.Shape)))
		}, "reduce{square sum[0]} elementwise{broadcast[4,6] div}", nil},
		{"reduction along one element", func(b *graph.Builder) {
			b.Output("y", b.Unary(graph.Tanh, b.Add(graph.Softmax{Axis: 1}, b.Input("x", passtest.F64(4, 1)))))
		}, "softmax[1] elementwise{tanh}", nil},
		{"other rows", func(b *graph.Builder) {
			x := b.Input("x", passtest.F64(4, 6))
			y := b.Add(graph.Softmax{Axis: 1}, x)
			b.Output("z", b.Reduce(graph.MaxOf, y, false, 0))
		}, "softmax{softmax[1]} reduce{max[0]}", nil},
		{"integers are not reduced in a row", func(b *graph.Builder) {
			x := b.Input("x", graph.TypeOf(graph.I32, 4, 6))
			b.Output("y", b.Reduce(graph.Sum, b.Unary(graph.Neg, x), false, 1))
		}, "elementwise{neg} sum[1]", nil},
		{"other shape", func(b *graph.Builder) {
			y := passtest.Linear(b, b.Input("x", passtest.F64(4, 6)), "w", 3)
			b.Output("z", b.Unary(graph.Tanh, b.Slice(b.Unary(graph.Exp, y), 0, 1, 2, 1)))
		}, "linear{broadcast[4,3] matmul add exp} elementwise{slice[2,3] tanh}", nil},
		{"prologue of a product", func(b *graph.Builder) {
			x := b.Unary(graph.Tanh, b.Input("x", passtest.F64(6, 6)))
			b.Output("y", passtest.Linear(b, x, "w", 6))
		}, "elementwise{tanh} linear{broadcast[6,6] matmul add}", nil},
		{"operand of product and epilogue", func(b *graph.Builder) {
			x := b.Unary(graph.Tanh, b.Input("x", passtest.F64(6, 6)))
			b.Output("y", b.Binary(graph.Add, passtest.Linear(b, x, "w", 6), x))
		}, "elementwise{tanh} linear{broadcast[6,6] matmul add add}", nil},
		{"lanes", func(b *graph.Builder) {
			x := b.Input("x", graph.TypeOf(graph.F32, 6, 6))
			y := b.Add(graph.Cast{To: graph.F64}, b.MatMul(x, x, false, false))
			b.Output("y", b.Unary(graph.Exp, y))
		}, "matmul{matmul} elementwise{cast f64 exp}", []string{"matmul: cast %2 of \"x\": it computes in f64 lanes, the launch in f32"}},
		{"another way round", func(b *graph.Builder) {
			y := b.MatMul(b.Input("x", passtest.F64(6, 6)), b.Param("w", passtest.F64(6, 6)), false, false)
			z := b.Add(graph.Concat{Axis: 0}, b.Slice(y, 0, 0, 3, 1), b.Slice(y, 0, 0, 3, 1))
			b.Output("y", b.Binary(graph.Add, y, z))
		}, "linear{matmul} concat elementwise{add}",
			[]string{"linear: add %8 of \"x\" and \"w\": its operand concat %7 of \"x\" and \"w\" depends on this launch by another way"}},
		{"another launch's work", func(b *graph.Builder) {
			x := b.Input("x", passtest.F64(6, 6))
			y := b.Binary(graph.Add, passtest.Linear(b, x, "w", 6), passtest.Linear(b, x, "v", 6))
			b.Output("y", y)
		}, "linear{broadcast[6,6] matmul add} linear{broadcast[6,6] matmul add add}", nil},
		{"weights of a norm from its own rows", func(b *graph.Builder) {
			x := b.Input("x", passtest.F64(6, 6))
			gamma := b.Reduce(graph.MaxOf, x, false, 1)
			b.Output("y", b.Add(graph.RMSNorm{Eps: 1}, x, gamma))
			b.Output("z", b.Unary(graph.Tanh, gamma))
		}, "reduce{max[1] tanh} norm{rms_norm}", nil},
		{"weights of a norm of a vector", func(b *graph.Builder) {
			x := b.Input("x", passtest.F64(6))
			b.Output("y", b.Add(graph.RMSNorm{Eps: 1}, x, b.Unary(graph.Tanh, x)))
		}, "norm{tanh rms_norm}", nil},
		{"dropout", func(b *graph.Builder) {
			y := passtest.Linear(b, b.Input("x", passtest.F64(4, 6)), "w", 3)
			b.Output("y", b.Unary(graph.Relu, b.Add(graph.Dropout{P: 0.5}, y, b.Input("seed", graph.TypeOf(graph.I64)))))
		}, "linear{broadcast[4,3] matmul add dropout relu}", nil},
		{"dropout before columns", func(b *graph.Builder) {
			x := b.Add(graph.Dropout{P: 0.5}, b.Input("x", passtest.F64(4, 6, 3)), b.Scalar(graph.I64, 7))
			b.Output("y", b.Reduce(graph.Sum, x, false, 1))
		}, "elementwise{dropout} reduce{sum[1]}", nil},
		{"dropout of row sums", func(b *graph.Builder) {
			s := b.Reduce(graph.Sum, b.Input("x", passtest.F64(4, 6)), false, 1)
			b.Output("y", b.Add(graph.Dropout{P: 0.5}, s, b.Scalar(graph.I64, 7)))
		}, "reduce{sum[1]} elementwise{dropout}", []string{"reduce: dropout %3 of \"x\": dropout of a reduced value"}},
		{"seed computed from the sum that is dropped", func(b *graph.Builder) {
			x := b.Input("x", passtest.F64())
			seed := b.BinaryScalar(graph.Add, b.Input("s", graph.TypeOf(graph.I64)), 1)
			b.Output("y", b.Unary(graph.Tanh, b.Add(graph.Dropout{P: 0.5}, x, seed)))
		}, "elementwise{add} elementwise{dropout tanh}", nil},
		{"convolution", func(b *graph.Builder) {
			op := graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1}
			y := b.Add(op, b.Input("x", passtest.F64(1, 2, 5, 5)), b.Param("w", passtest.F64(3, 2, 3, 3)))
			b.Output("y", b.Unary(graph.Relu, b.Binary(graph.Add, y, b.Broadcast(b.Param("b", passtest.F64(3, 1, 1)), y.Type.Shape))))
		}, "conv{broadcast[1,3,5,5] conv2d add relu}", nil},
		{"filters that lie apart", func(b *graph.Builder) {
			op := graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1}
			b.Output("y", b.Add(op, b.Input("x", passtest.F64(1, 2, 5, 5)), b.Transpose(b.Param("w", passtest.F64(3, 3, 2, 3)), 3, 2, 0, 1)))
		}, "copy conv{conv2d}", nil},
		{"work after a reshape joins the product", func(b *graph.Builder) {
			y := b.Reshape(b.MatMul(b.Input("x", passtest.F64(6, 4)), b.Param("w", passtest.F64(4, 8)), false, false), 2, 3, 8)
			y = b.Binary(graph.Add, y, b.Broadcast(b.Param("b", passtest.F64(8)), y.Type.Shape))
			y = b.Binary(graph.Mul, b.Unary(graph.GeluTanh, y), b.Input("s", passtest.F64()))
			b.Output("y", b.Binary(graph.Add, y, b.Reshape(b.Input("r", passtest.F64(6, 8)), 2, 3, 8)))
		}, "linear{broadcast[2,3,8] reshape[6,8] matmul add gelu_tanh mul add}", nil},
		{"work after a reshape with an operand that is made in the reshaped form", func(b *graph.Builder) {
			y := b.Reshape(b.MatMul(b.Input("x", passtest.F64(6, 4)), b.Param("w", passtest.F64(4, 8)), false, false), 2, 3, 8)
			h := b.Reshape(b.Input("h", passtest.F64(6, 8)), 2, 3, 8)
			y = b.Reshape(b.Binary(graph.Mul, y, b.Binary(graph.Mul, b.Unary(graph.Erf, h), passtest.Scale(b, h, 2))), 6, 8)
			b.Output("y", y)
			b.Output("db", b.Reduce(graph.Sum, y, true, 0))
		}, "linear{matmul erf mul mul mul sum[0]}", nil},
		{"work after a reshape with an operand that is made there of a value that is read twice", func(b *graph.Builder) {
			y := b.Reshape(b.MatMul(b.Input("x", passtest.F64(6, 4)), b.Param("w", passtest.F64(4, 8)), false, false), 2, 3, 8)
			h := b.Unary(graph.Erf, b.Reshape(b.Input("h", passtest.F64(6, 8)), 2, 3, 8))
			b.Output("y", b.Reshape(b.Binary(graph.Mul, y, b.Binary(graph.Mul, h, b.Unary(graph.Exp, h))), 6, 8))
		}, "linear{matmul erf exp mul mul}", nil},
		{"work after a reshape with an operand that does not follow", func(b *graph.Builder) {
			y := b.Reshape(b.MatMul(b.Input("x", passtest.F64(6, 4)), b.Param("w", passtest.F64(4, 8)), false, false), 2, 3, 8)
			b.Output("y", b.Binary(graph.Add, y, b.Transpose(b.Input("r", passtest.F64(3, 2, 8)), 1, 0, 2)))
			z := b.Reshape(b.MatMul(b.Input("u", passtest.F64(6, 4)), b.Param("v", passtest.F64(4, 8)), false, false), 2, 3, 8)
			b.Output("z", b.Binary(graph.Add, z, b.Broadcast(b.Param("b", passtest.F64(1, 3, 1)), z.Type.Shape)))
		}, "linear{matmul} linear{matmul} elementwise{reshape[2,3,8] transpose[1,0,2] add} elementwise{reshape[2,3,8] broadcast[2,3,8] " +
			"add}", nil},
		{"stored through a transpose for an operation that reads in order", func(b *graph.Builder) {
			y := b.Unary(graph.Exp, b.Input("x", passtest.F64(4, 6)))
			b.Output("y", b.Add(graph.Concat{Axis: 0}, b.Transpose(y, 1, 0), b.Input("z", passtest.F64(2, 4))))
		}, "elementwise{exp transpose[1,0]} concat", nil},
		{"heads", func(b *graph.Builder) {
			q := b.Transpose(b.Reshape(passtest.Linear(b, b.Input("x", passtest.F64(6, 4)), "w", 4), 2, 3, 2, 2), 0, 2, 1, 3)
			y := b.MatMul(q, b.Input("k", passtest.F64(2, 2, 3, 2)), false, true)
			b.Output("y", b.Reshape(b.Transpose(y, 0, 2, 1, 3), 6, 6))
		}, "linear{broadcast[6,4] matmul add} matmul{reshape[2,3,2,2] transpose[0,2,1,3] matmulᵀB transpose[0,2,1,3] reshape[6,6]}", nil},
		{"stored through all views", func(b *graph.Builder) {
			y := b.Unary(graph.Exp, b.Input("x", passtest.F64(2, 3, 4, 5)))
			z := b.Transpose(b.Reshape(b.Transpose(y, 0, 2, 1, 3), 8, 15), 1, 0)
			b.Output("y", b.Unary(graph.Tanh, b.Slice(z, 0, 0, 2, 1)))
			b.Output("z", b.Reduce(graph.Sum, z, false, 0))
		}, "elementwise{exp transpose[0,2,1,3] reshape[8,15] transpose[1,0]} reduce{sum[0]} elementwise{slice[2,8] tanh}", nil},
		{"a product stored through the views that keep its rows", func(b *graph.Builder) {
			y := b.MatMul(b.Input("x", passtest.F64(2, 3, 4, 5)), b.Input("w", passtest.F64(2, 3, 5, 5)), false, false)
			z := b.Transpose(b.Reshape(b.Transpose(y, 0, 2, 1, 3), 8, 15), 1, 0)
			b.Output("y", b.Unary(graph.Tanh, b.Slice(z, 0, 0, 2, 1)))
			b.Output("z", b.Reduce(graph.Sum, z, false, 0))
		}, "matmul{matmul transpose[0,2,1,3] reshape[8,15]} reduce{transpose[1,0] sum[0]} elementwise{transpose[1,0] slice[2,8] tanh}",
			nil},
		{"a transpose of joined values, stored so by what makes them", func(b *graph.Builder) {
			part := func(name string) *graph.Node { return b.Unary(graph.Exp, b.Input(name, passtest.F64(2, 3, 4))) }
			b.Output("y", b.Transpose(b.Add(graph.Concat{Axis: 0}, part("x"), part("y")), 1, 0, 2))
		}, "elementwise{exp transpose[1,0,2]} elementwise{exp transpose[1,0,2]} concat", nil},
		{"a transpose of joined values that are rounded for one reader", func(b *graph.Builder) {
			part := func(name string) *graph.Node {
				return b.Unary(graph.Exp, b.Input(name, graph.TypeOf(graph.F32, 2, 3, 4)))
			}
			c := b.Add(graph.Concat{Axis: 0}, part("x"), part("y"))
			b.Output("y", b.Transpose(c, 1, 0, 2))
			b.Output("z", b.Transpose(b.CastTo(graph.BF16, c), 1, 0, 2))
		}, "elementwise{exp transpose[1,0,2]} elementwise{exp transpose[1,0,2]} concat elementwise{cast bf16}", nil},
		{"joined values that two readers transpose otherwise", func(b *graph.Builder) {
			part := func(name string) *graph.Node { return b.Unary(graph.Exp, b.Input(name, passtest.F64(2, 3, 4))) }
			c := b.Add(graph.Concat{Axis: 0}, part("x"), part("y"))
			b.Output("y", b.Unary(graph.Tanh, b.Transpose(c, 1, 0, 2)))
			b.Output("z", b.Unary(graph.Tanh, b.Transpose(c, 2, 0, 1)))
		}, "elementwise{exp} elementwise{exp} concat elementwise{transpose[1,0,2] tanh} elementwise{transpose[2,0,1] tanh}", nil},
		{"a transpose of joined values that are read as they are, too", func(b *graph.Builder) {
			part := func(name string) *graph.Node { return b.Unary(graph.Exp, b.Input(name, passtest.F64(2, 3, 4))) }
			c := b.Add(graph.Concat{Axis: 0}, part("x"), part("y"))
			b.Output("y", b.Unary(graph.Tanh, b.Transpose(c, 1, 0, 2)))
			b.Output("z", c)
		}, "elementwise{exp} elementwise{exp} concat elementwise{transpose[1,0,2] tanh}", nil},
		{"views that cannot be stored through", func(b *graph.Builder) {
			y := b.Unary(graph.Exp, b.Input("x", passtest.F64(4, 6)))
			z := b.Reshape(b.Transpose(b.Reshape(y, 2, 2, 6), 1, 0, 2), 4, 6)
			b.Output("z", b.Add(graph.Concat{Axis: 0}, z, z))
		}, "elementwise{exp} concat", nil},
		{"products are written in rows", func(b *graph.Builder) {
			y := b.MatMul(b.Input("x", passtest.F64(4, 6)), b.Param("w", passtest.F64(6, 3)), false, false)
			b.Output("y", b.Transpose(y, 1, 0))
		}, "linear{matmul}", nil},
		{"masks", func(b *graph.Builder) {
			x := b.Input("x", graph.TypeOf(graph.F32, 4, 6))
			m := b.Binary(graph.And, b.BinaryScalar(graph.Gt, x, 0), b.Input("m", graph.TypeOf(graph.Bool, 4, 6)))
			b.Output("y", b.Add(graph.Select{}, m, x, b.Scalar(graph.F32, -1)))
		}, "elementwise{gt and select}", nil},
		{"what an output needs is stored too", func(b *graph.Builder) {
			h := b.Unary(graph.Exp, b.Input("x", passtest.F64(4, 6)))
			b.Output("h", h)
			b.Output("y", b.Unary(graph.Tanh, h))
		}, "elementwise{exp tanh}", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := graphtest.Built(t, tt.build)
			h, _ := passtest.Run(t, g, passes.Config{Stop: "fuse-regions"})
			if got := passtest.Launches(h); got != tt.want {
				t.Errorf("launches:\n\t%s\nwant:\n\t%s", got, tt.want)
			}
			if got := misses(t, g); tt.misses != nil && !slices.Equal(got, tt.misses) {
				t.Errorf("misses:\n\t%s\nwant:\n\t%s", strings.Join(got, "\n\t"), strings.Join(tt.misses, "\n\t"))
			}
		})
	}
}

// TestFuseLimit cuts a long chain.
func TestFuseLimit(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		y := b.MatMul(b.Input("x", passtest.F64(4, 4)), b.Input("w", passtest.F64(4, 4)), false, false)
		for range fuse.MaxRegion {
			y = b.Unary(graph.Tanh, b.Unary(graph.Sin, y))
		}
		b.Output("y", y)
	})
	h, _ := passtest.Run(t, g, passes.Config{Stop: "fuse-regions"})
	var sizes []int
	for _, n := range h.Nodes {
		if f, ok := n.Op.(graph.Fusion); ok {
			sizes = append(sizes, len(f.Body.Nodes))
		}
	}
	if want := []int{fuse.MaxRegion + 2, fuse.MaxRegion + 1, 2}; !slices.Equal(sizes, want) {
		t.Errorf("bodies of %v nodes, want %v", sizes, want)
	}
	if got, want := misses(t, g), "matmul: tanh %98: the launch already holds 96 operations"; !slices.Equal(got, []string{want}) {
		t.Errorf("misses %q, want %q", got, want)
	}
}

// TestFuseOrigins gives a fusion the origins of all that it covers, and its outputs the users' names.
func TestFuseOrigins(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Input("x", passtest.F64(4, 6))
		h := b.Named(b.Unary(graph.Exp, x), "hidden")
		b.Output("h", h)
		b.Output("y", b.Transpose(b.Named(b.Unary(graph.Tanh, h), "act"), 1, 0))
	})
	h, tr := passtest.Run(t, g, passes.Config{})
	var names []string
	for _, n := range h.Nodes {
		switch n.Op.(type) {
		case graph.Fusion, graph.Result:
			names = append(names, n.Name)
			if len(n.Origin) < 2 {
				t.Errorf("%s stands for %v", n.Where(), n.Origin)
			}
		}
	}
	if want := []string{"hidden", "act"}; !slices.Equal(names, want) {
		t.Errorf("names %q, want %q", names, want)
	}
	if got := passtest.Matched(passtest.Stage(t, tr, "fuse-regions")); got != "fuse-regions" {
		t.Errorf("matched %q", got)
	}
}
