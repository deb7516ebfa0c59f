package fpga

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/lowering"
)

// convolved is a convolution of x with filters that are a parameter.
func convolved(b *graph.Builder, x *graph.Node, name string, out, kernel, stride, pad, groups int) *graph.Node {
	c := x.Type.Shape.At(1)
	op := graph.Conv2D{Stride: graph.IntsOf(stride, stride), Dilation: graph.IntsOf(1, 1),
		Pad: graph.IntsOf(pad, pad, pad, pad), Groups: groups}
	return b.Add(op, x, b.Param(name+".w", f32(out, c/groups, kernel, kernel)))
}

// squarePool is a pool whose windows and images are squares.
func squarePool(fn graph.PoolFn, kernel, stride, pad int) graph.Pool {
	return graph.Pool{Fn: fn, Kernel: graph.IntsOf(kernel, kernel), Stride: graph.IntsOf(stride, stride),
		Pad: graph.IntsOf(pad, pad, pad, pad), CountPad: true}
}

// lenet is LeNet, for two images.
func lenet(b *graph.Builder) {
	x := b.Unary(graph.Relu, convolved(b, b.Input("x", f32(2, 1, 28, 28)), "c1", 6, 5, 1, 2, 1))
	x = b.Add(squarePool(graph.MaxPool, 2, 2, 0), x)
	x = b.Unary(graph.Relu, convolved(b, x, "c2", 16, 5, 1, 0, 1))
	x = b.Reshape(b.Add(squarePool(graph.MaxPool, 2, 2, 0), x), 2, 400)
	x = b.Unary(graph.Relu, linear(b, x, "d1", 120))
	x = b.Unary(graph.Relu, linear(b, x, "d2", 84))
	b.Output("y", linear(b, x, "d3", 10))
}

// residualNet is a residual network in evaluation, with batch norms, for images of 8×8.
func residualNet(b *graph.Builder, images, width int) {
	normed := func(x *graph.Node, name string, out, kernel, stride int) *graph.Node {
		y := convolved(b, x, name, out, kernel, stride, kernel/2, 1)
		of := func(what string) *graph.Node { return b.Param(name+what, f32(out)) }
		return b.Add(graph.BatchNorm{Eps: 1e-5}, y, of(".gamma"), of(".beta"), of(".mean"), of(".variance"))
	}
	x := b.Unary(graph.Relu, normed(b.Input("x", f32(images, 1, 8, 8)), "stem", width, 3, 1))
	for i, stride := range []int{1, 2} {
		name, out := fmt.Sprint("block", i), width<<i
		y := b.Unary(graph.Relu, normed(x, name+".a", out, 3, stride))
		y = normed(y, name+".b", out, 3, 1)
		if stride > 1 {
			x = normed(x, name+".short", out, 1, stride)
		}
		x = b.Unary(graph.Relu, b.Binary(graph.Add, y, x))
	}
	b.Output("y", linear(b, b.Reduce(graph.Mean, x, false, 2, 3), "logits", 10))
}

// bindVariances binds random numbers that are positive to parameters that are variances.
func bindVariances(t testing.TB, e lowering.Executable, p *lowering.Program) {
	t.Helper()
	for i, b := range p.Buffers {
		if b.Role != lowering.Param || !strings.HasSuffix(b.Name, ".variance") {
			continue
		}
		r, v := rand.New(rand.NewPCG(5, 1)), graph.NewTensor(b.Type)
		for j := range v.Type.Shape.Elems() {
			v.SetFloat(j, 0.5+r.Float64())
		}
		if err := e.Bind(i, v); err != nil {
			t.Fatal(err)
		}
	}
}

// checkImages runs a graph on the model and requires all of it to be on the overlay, and each launch to be close to what
// the processor makes of the same operands.
func checkImages(t *testing.T, build func(b *graph.Builder), opts ...Option) {
	t.Helper()
	e, p := compiledOf(t, built(t, build), true, opts...)
	bindVariances(t, e, p)
	for _, l := range p.Launches[p.Prepared:] {
		if l.Device != "" {
			t.Errorf("%s runs on the processor: %s", l.Kind(), l.Reason)
		}
	}
	if err := e.Run(); err != nil {
		t.Fatal(err)
	}
	for i, c := range own(t, e) {
		if !(c.rms <= 0.012 && c.max <= 0.05) {
			t.Errorf("launch %d, %s: off by %.4f at most, %.4f rms", i, p.Launches[i].Kind(), c.max, c.rms)
		}
	}
}

// TestImages runs convolutions and pools of every kind on the model.
func TestImages(t *testing.T) {
	type build = func(b *graph.Builder)
	conv := func(n, c, h, w, out, kernel, stride, pad, groups int) build {
		return func(b *graph.Builder) {
			b.Output("y", convolved(b, b.Input("x", f32(n, c, h, w)), "l", out, kernel, stride, pad, groups))
		}
	}
	pool := func(op graph.Pool, n, c, h, w int) build {
		return func(b *graph.Builder) { b.Output("y", b.Add(op, b.Input("x", f32(n, c, h, w)))) }
	}
	for _, c := range []struct {
		name  string
		build build
	}{
		{"3×3", conv(1, 16, 9, 11, 8, 3, 1, 1, 1)},
		{"1×1", conv(2, 12, 5, 7, 20, 1, 1, 0, 1)},
		{"1×1 at every second pixel", conv(2, 8, 6, 7, 9, 1, 2, 0, 1)},
		{"5×5 of one channel", conv(3, 1, 12, 12, 6, 5, 1, 2, 1)},
		{"7×7 of three channels", conv(1, 3, 17, 19, 5, 7, 2, 3, 1)},
		{"the whole image", conv(3, 5, 4, 6, 7, 4, 1, 0, 1)},
		{"one pixel", conv(1, 1, 1, 1, 1, 3, 1, 1, 1)},
		{"long", conv(1, 144, 6, 6, 9, 3, 1, 1, 1)},
		{"depthwise", conv(2, 20, 7, 9, 20, 3, 1, 1, 20)},
		{"depthwise, two for each channel", conv(1, 12, 7, 9, 24, 3, 2, 1, 12)},
		{"groups", conv(1, 12, 6, 5, 18, 3, 1, 1, 3)},
		{"large groups", conv(1, 32, 6, 5, 32, 3, 1, 1, 2)},
		{"maximum", pool(squarePool(graph.MaxPool, 2, 2, 0), 2, 6, 8, 8)},
		{"maximum over the edge", pool(squarePool(graph.MaxPool, 3, 2, 1), 1, 20, 9, 11)},
		{"mean", pool(squarePool(graph.AvgPool, 2, 2, 0), 2, 6, 8, 8)},
		{"mean over the edge", pool(squarePool(graph.AvgPool, 3, 1, 1), 1, 20, 7, 5)},
		{"global mean", func(b *graph.Builder) {
			x := b.Unary(graph.Relu, convolved(b, b.Input("x", f32(3, 8, 6, 6)), "l", 20, 3, 1, 1, 1))
			b.Output("y", b.Reduce(graph.Mean, x, false, 2, 3))
		}},
		{"bias, residual and gelu", func(b *graph.Builder) {
			x := b.Input("x", f32(2, 16, 6, 6))
			y := convolved(b, x, "l", 16, 3, 1, 1, 1)
			y = b.Binary(graph.Add, y, b.Broadcast(b.Reshape(b.Param("b", f32(16)), 16, 1, 1), y.Type.Shape))
			b.Output("y", b.Unary(graph.GeluTanh, b.Binary(graph.Add, y, x)))
		}},
		{"before and behind", func(b *graph.Builder) {
			x := b.BinaryScalar(graph.Add, b.BinaryScalar(graph.Mul, b.Input("x", f32(2, 3, 9, 9)), 2), -0.5)
			b.Output("y", b.Unary(graph.Tanh, convolved(b, b.Unary(graph.Sigmoid, x), "l", 11, 3, 1, 1, 1)))
		}},
		{"channels last", func(b *graph.Builder) {
			op := graph.Conv2D{Stride: graph.IntsOf(1, 2), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 0, 1, 1), Groups: 2,
				Layout: graph.NHWC}
			x := b.Add(op, b.Input("x", f32(2, 7, 9, 6)), b.Param("w", f32(3, 3, 3, 10)))
			x = b.Unary(graph.Relu, b.Binary(graph.Add, x, b.Broadcast(b.Param("b", f32(10)), x.Type.Shape)))
			most := squarePool(graph.MaxPool, 2, 2, 0)
			most.Layout = graph.NHWC
			x = b.Add(most, x)
			mean := b.Reduce(graph.Mean, x, false, 1, 2)
			b.Output("mean", mean)
			s := x.Type.Shape
			b.Output("y", linear(b, b.Reshape(x, 2, s.Elems()/2), "d", 9))
		}},
		{"between layouts", func(b *graph.Builder) {
			op := graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1,
				Layout: graph.NHWC}
			x := b.Transpose(b.Input("x", f32(2, 6, 7, 9)), 0, 2, 3, 1)
			x = b.Unary(graph.Relu, b.Add(op, x, b.Transpose(b.Param("w", f32(10, 6, 3, 3)), 2, 3, 1, 0)))
			b.Output("y", b.Transpose(x, 0, 3, 1, 2))
		}},
		{"LeNet", lenet},
		{"residual network", func(b *graph.Builder) { residualNet(b, 3, 8) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, name := range []string{"sim8", "sim16"} {
				checkImages(t, c.build, For(overlay(t, name)))
			}
		})
	}
}

// randomImages is a random convolution or pool, with an elementwise operation behind it.
func randomImages(r *rand.Rand) func(b *graph.Builder) {
	up := func(n int) int { return 1 + r.IntN(n) }
	pair := func(n int) graph.Ints { return graph.IntsOf(up(n), up(n)) }
	kernel, stride, dilation := pair(4), pair(3), pair(3)
	groups := []int{1, 1, 2, 3, 8}[r.IntN(5)]
	in, out := groups*up(12), groups*up(12)
	pad := graph.IntsOf(r.IntN(4), r.IntN(4), r.IntN(4), r.IntN(4))
	side := func(axis int) int { return dilation.At(axis)*(kernel.At(axis)-1) + up(8) }
	h, w, n := side(0), side(1), up(3)
	relu, pooled := r.IntN(2) == 0, r.IntN(4) == 0
	return func(b *graph.Builder) {
		x := b.Input("x", f32(n, in, h, w))
		op := graph.Conv2D{Stride: stride, Dilation: dilation, Pad: pad, Groups: groups}
		x = b.Add(op, x, b.Param("w", f32(out, in/groups, kernel.At(0), kernel.At(1))))
		if relu {
			x = b.Unary(graph.Relu, x)
		}
		if s := x.Type.Shape; pooled && s.At(2) > 1 && s.At(3) > 1 {
			x = b.Add(graph.Pool{Fn: graph.MaxPool, Kernel: graph.IntsOf(2, 2), Stride: stride, Pad: graph.IntsOf(1, 0, 1, 1)}, x)
		}
		b.Output("y", x)
	}
}

// TestRandomImages runs random convolutions and pools on the model, for arrays of several shapes and words.
func TestRandomImages(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 17))
		c := overlay(t, []string{"sim8", "sim16"}[r.IntN(2)])
		if r.IntN(3) == 0 {
			c.Rows, c.Cols, c.WordBytes, c.KeyBlock, c.HeadDim, c.QPanels = 4, 16, 2<<r.IntN(3), 0, 0, 0
			c.XWords, c.WWords, c.YWords = 512, 256, 512
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) { checkImages(t, randomImages(r), For(c)) })
	}
}
