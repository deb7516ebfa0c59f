package fusec_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/ref"
)

// TestLogOfSoftmax takes the logarithm of a softmax of rows with and without a finite number, with the passes that make
// one operation of it and without.
func TestLogOfSoftmax(t *testing.T) {
	inf := math.Inf(-1)
	b := graph.NewBuilder("log")
	x := b.Input("x", graph.TypeOf(graph.F64, 3, 3))
	for axis, name := range []string{"columns", "rows"} {
		b.Output(name, b.Unary(graph.Log, b.Add(graph.Softmax{Axis: axis}, x)))
	}
	g := built(t, b)
	half := math.Log(0.5)
	v, err := graph.TensorOf([]float64{inf, inf, inf, inf, 1, 1, inf, 1, 1}, 3, 3)
	if err != nil {
		t.Fatal(err)
	}
	in := map[string]*graph.Tensor{"x": v}
	want := []float64{inf, inf, inf, inf, half, half, inf, half, half}
	for _, off := range []string{"", "raise", "fuse-regions"} {
		var opts []fusec.CompileOption
		if off != "" {
			opts = append(opts, fusec.WithoutPass(off))
		}
		p, err := fusec.Compile(g, opts...)
		if err != nil {
			t.Fatal(err)
		}
		out, err := p.Run(in)
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		for name, y := range out {
			sameFloats(t, name+" without "+off, y.Floats(), want, 1e-15)
		}
	}
}

// TestRectifierAtZero differentiates a layer whose weights are 0: the derivatives of Rectify and LeakyRelu at 0 are 1, as
// Gorgonia documents them, on every target, and the rectifier stays part of the product.
func TestRectifierAtZero(t *testing.T) {
	build := func(leaky bool) (*gorgonia.ExprGraph, gorgonia.Nodes) {
		b := newNet(tensor.Float32)
		x, w, bias := b.in("x", 7, 9), b.near("w", 0, 0, 9, 5), b.near("bias", 0, 0, 1, 5)
		h := must(gorgonia.BroadcastAdd(must(gorgonia.Mul(x, w)), bias, nil, []byte{0}))
		if leaky {
			h = must(gorgonia.LeakyRelu(h, 0.1))
		} else {
			h = must(gorgonia.Rectify(h))
		}
		w2 := b.in("w2", 5, 3)
		params := gorgonia.Nodes{w, bias, w2}
		if _, err := gorgonia.Grad(must(gorgonia.Mean(must(gorgonia.Mul(h, w2)))), params...); err != nil {
			t.Fatal(err)
		}
		return b.g, params
	}
	grad := func(n *gorgonia.Node) []float64 {
		v, err := n.Grad()
		if err != nil {
			t.Fatal(err)
		}
		return floats(t, v)
	}
	for _, leaky := range []bool{false, true} {
		g, want := build(leaky)
		tape := gorgonia.NewTapeMachine(g, gorgonia.BindDualValues(want...))
		if err := tape.RunAll(); err != nil {
			t.Fatal(err)
		}
		if err := tape.Close(); err != nil {
			t.Fatal(err)
		}
		for _, target := range []string{"cpu", "cuda"} {
			g, got := build(leaky)
			m := fusec.NewMachine(g, gorgonia.BindDualValues(got...), fusec.WithTarget(target), emulated(t))
			if err := m.RunAll(); err != nil {
				t.Fatal(err)
			}
			for i, n := range got {
				sameFloats(t, fmt.Sprintf("leaky %v on %s: gradient of %v", leaky, target, n), grad(n), grad(want[i]), 1e-6)
			}
			for _, f := range m.Fusions() {
				if f.Kind == "elementwise" {
					t.Errorf("leaky %v on %s: a launch of its own for %v", leaky, target, f.Nodes)
				}
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestSliceOfNothing: a slice without elements has to start inside its axis, or at the end of it, as any slice, whether it is
// constant, what becomes of it, and whatever the passes make of it.
func TestSliceOfNothing(t *testing.T) {
	const text = `fusec graph 1 {
 x = input : f32[3,2]
 i = input : i64
 c = const[value=%d] : i64
 %%11 = slice[axis=0 size=0 step=1] x %s @ "model.go:7"
 %%12 = unary[fn=exp] %%11
 %%13 = reduce[fn=sum axes=[0]] %%12
 output y = %s
}
`
	x := tensorOf(t, []float32{1, 2, 3, 4, 5, 6}, 3, 2)
	for _, output := range []string{"%11", "%12", "%13"} {
		for _, start := range []string{"i", "c"} {
			for at, fits := range map[int64]bool{-1: false, 0: true, 3: true, 4: false, 1 << 40: false} {
				g, err := graph.Parse("slice", []byte(fmt.Sprintf(text, at, start, output)), nil)
				if err != nil {
					t.Fatal(err)
				}
				for _, opts := range [][]fusec.CompileOption{nil, {fusec.WithoutPass("simplify")}} {
					p, err := fusec.Compile(g, opts...)
					if err == nil {
						i := &graph.Tensor{Type: graph.TypeOf(graph.I64), Data: []int64{at}}
						_, err = p.Run(map[string]*graph.Tensor{"x": x, "i": i})
						p.Close()
					}
					if fits && err != nil {
						t.Errorf("%s at %s = %d: %v", output, start, at, err)
					}
					if !fits && (err == nil || !strings.Contains(err.Error(), "do not fit") || !strings.Contains(err.Error(), "model.go:7")) {
						t.Errorf("%s at %s = %d: error %v", output, start, at, err)
					}
				}
			}
		}
	}
}

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

// TestVolumes runs convolutions and pools over one and three axes, and their gradients, on the targets that compute
// gradients.
func TestVolumes(t *testing.T) {
	of := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
	b := graph.NewBuilder("volumes")
	x := b.Input("x", of(2, 4, 5, 4, 6))
	w, v, s, u := b.Param("w", of(6, 2, 3, 2, 3)), b.Param("v", of(6, 3, 2, 2, 1)), b.Param("s", of(5, 3, 3)),
		b.Param("u", of(3, 3, 2, 1, 1))
	y := b.Convolve(x, w, graph.Window{Stride: []int{2, 1, 1}, Dilation: []int{1, 2, 1}, Lo: []int{1, 1, 0}, Hi: []int{1, 0, 1}}, 2)
	y = b.MaxPool(b.Unary(graph.Relu, y), graph.Window{Kernel: []int{2, 2, 2}, Stride: []int{1, 2, 2}, Dilation: []int{1, 1, 2},
		Ceil: true})
	z := b.ConvolveTransposed(y, v, graph.Window{Stride: []int{2, 2, 1}, Lo: []int{0, 1, 0}}, 1, []int{1, 0, 0})
	z = b.Convolve(b.Unary(graph.Sin, z), u, graph.Window{Stride: []int{2, 1, 1}}, 1)
	z = b.AvgPool(z, graph.Window{Kernel: []int{3, 2, 1}, Lo: []int{1, 0, 0}}, false)
	line := b.Reshape(z, 2, 3, z.Type.Shape.Elems()/6)
	line = b.Convolve(line, s, graph.Window{Stride: []int{2}, Hi: []int{3}}, 1)
	line = b.LpPool(line, graph.Window{Kernel: []int{3}, Stride: []int{2}, Ceil: true}, 2)
	cost := b.Reduce(graph.Mean, b.Unary(graph.Tanh, line), false, 0, 1, 2)
	b.Output("y", line)
	b.Output("cost", cost)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	whole, opts := withGradients(t, g, cost, []*graph.Node{x, w, v, s, u})
	in := graphtest.Values(rand.New(rand.NewPCG(1, 2)), whole)
	want, _, err := ref.EvalBound(whole, in)
	if err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]fusec.Option{
		"cpu": fusec.WithTarget("cpu"), "emulator": emulated(t), "ref": fusec.WithTarget("ref"),
	} {
		t.Run(name, func(t *testing.T) {
			p, err := fusec.Compile(g, append(slices.Clip(opts), target)...)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			got, err := p.Run(in)
			if err != nil {
				t.Fatal(err)
			}
			for out, w := range want {
				if err := ref.Check(got[out], w); err != nil {
					t.Errorf("output %q: %v", out, err)
				}
			}
		})
	}
}
