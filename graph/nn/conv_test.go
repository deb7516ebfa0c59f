package nn_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"fusec"
	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/graph/nn"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// An image is the sizes of images [n, c, h, w].
type image struct{ n, c, h, w int }

// at is an element of images in row-major order, or outside for padding.
func (s image) at(x []float64, n, c, y, z int, outside float64) float64 {
	if y < 0 || y >= s.h || z < 0 || z >= s.w {
		return outside
	}
	return x[((n*s.c+c)*s.h+y)*s.w+z]
}

// steps is the stride and the dilation of a window along an axis, and its number of positions.
func steps(win nn.Window, axis, size, kernel int) (stride, dilation, positions int) {
	stride, dilation = max(win.Stride[axis], 1), max(win.Dilation[axis], 1)
	return stride, dilation, (size+win.Pad[axis]+win.Pad[axis+2]-dilation*(kernel-1)-1)/stride + 1
}

// convolution is a convolution of images in[0] of size s with out filters in[1] of kh×kw and the bias in[2], if any.
func convolution(s image, out, kh, kw int, win nn.Window, groups int) func([][]float64) []float64 {
	return func(in [][]float64) (r []float64) {
		sy, dy, oh := steps(win, 0, s.h, kh)
		sx, dx, ow := steps(win, 1, s.w, kw)
		per := s.c / groups
		for i := range s.n * out * oh * ow {
			n, o, y, x := i/(out*oh*ow), i/(oh*ow)%out, i/ow%oh, i%ow
			sum := 0.0
			if len(in) > 2 {
				sum = in[2][o]
			}
			for k := range per * kh * kw {
				c, ky, kx := k/(kh*kw), k/kw%kh, k%kw
				sum += in[1][o*per*kh*kw+k] *
					s.at(in[0], n, o/(out/groups)*per+c, y*sy-win.Pad[0]+ky*dy, x*sx-win.Pad[1]+kx*dx, 0)
			}
			r = append(r, sum)
		}
		return r
	}
}

// scatteredImage is a transposed convolution of images in[0] of size s to c channels of h×w, with filters in[1] of kh×kw
// and the bias in[2], if any.
func scatteredImage(s image, c, h, w, kh, kw int, win nn.Window, groups int) func([][]float64) []float64 {
	return func(in [][]float64) []float64 {
		sy, dy, _ := steps(win, 0, h, kh)
		sx, dx, _ := steps(win, 1, w, kw)
		per := c / groups
		r := make([]float64, s.n*c*h*w)
		for i := range r {
			if len(in) > 2 {
				r[i] = in[2][i/(h*w)%c]
			}
		}
		for i, v := range in[0] {
			n, o, y, x := i/(s.c*s.h*s.w), i/(s.h*s.w)%s.c, i/s.w%s.h, i%s.w
			for k := range per * kh * kw {
				to := o/(s.c/groups)*per + k/(kh*kw)
				row, column := y*sy-win.Pad[0]+k/kw%kh*dy, x*sx-win.Pad[1]+k%kw*dx
				if row >= 0 && row < h && column >= 0 && column < w {
					r[((n*c+to)*h+row)*w+column] += v * in[1][o*per*kh*kw+k]
				}
			}
		}
		return r
	}
}

// pooled is the maximum or the mean of windows of images in[0] of size s.
func pooled(s image, win nn.Window, mean bool) func([][]float64) []float64 {
	return func(in [][]float64) (r []float64) {
		kh, kw := win.Kernel[0], win.Kernel[1]
		sy, _, oh := steps(win, 0, s.h, kh)
		sx, _, ow := steps(win, 1, s.w, kw)
		for i := range s.n * s.c * oh * ow {
			n, c, y, x := i/(s.c*oh*ow), i/(oh*ow)%s.c, i/ow%oh, i%ow
			most, sum := math.Inf(-1), 0.0
			for k := range kh * kw {
				v := func(outside float64) float64 {
					return s.at(in[0], n, c, y*sy-win.Pad[0]+k/kw, x*sx-win.Pad[1]+k%kw, outside)
				}
				most, sum = max(most, v(math.Inf(-1))), sum+v(0)/float64(kh*kw)
			}
			if mean {
				most = sum
			}
			r = append(r, most)
		}
		return r
	}
}

// statistics are the mean and the biased variance of each channel of images x of size s.
func statistics(x []float64, s image) (mean, variance []float64) {
	mean, variance = make([]float64, s.c), make([]float64, s.c)
	count := float64(s.n * s.h * s.w)
	for i, v := range x {
		mean[i/(s.h*s.w)%s.c] += v / count
	}
	for i, v := range x {
		c := i / (s.h * s.w) % s.c
		variance[c] += (v - mean[c]) * (v - mean[c]) / count
	}
	return mean, variance
}

// standardised is in[0], of size s, normalised by the statistics, times in[1], plus in[2].
func standardised(in [][]float64, s image, mean, variance []float64, eps float64) []float64 {
	y := slices.Clone(in[0])
	for i, v := range y {
		c := i / (s.h * s.w) % s.c
		y[i] = (v-mean[c])/math.Sqrt(variance[c]+eps)*in[1][c] + in[2][c]
	}
	return y
}

// batchNorm makes a layer whose weights are inputs of the net.
func batchNorm(b *net, name string, channels int) *nn.BatchNorm {
	n, err := nn.NewBatchNorm(b.g, b.d, name, channels)
	if err != nil {
		panic(err)
	}
	n.Gamma, n.Beta = b.in(name+" gamma", channels), b.in(name+" beta", channels)
	return n
}

func convExamples() []example {
	type (
		node  = *gorgonia.Node
		nodes = gorgonia.Nodes
		s     = []int
	)
	convolve := func(win nn.Window, groups int) operation {
		return func(x ...node) (node, error) {
			if len(x) < 3 {
				x = append(x, nil)
			}
			return nn.Convolve(x[0], x[1], x[2], win, groups)
		}
	}
	odd := nn.Window{Stride: [2]int{2, 1}, Dilation: [2]int{1, 2}, Pad: [4]int{1, 0, 0, 3}}
	window := nn.Window{Kernel: [2]int{3, 2}, Stride: [2]int{2, 1}, Pad: [4]int{1, 0, 0, 1}}
	normed := func(s image) func([][]float64) []float64 {
		return func(in [][]float64) []float64 {
			mean, variance := statistics(in[0], s)
			return standardised(in, s, mean, variance, 1e-5)
		}
	}
	return []example{
		of("ReLU", func(x ...node) (node, error) { return nn.ReLU(x[0]) },
			elementwise(func(x float64) float64 { return max(x, 0) }), s{3, 5}),
		of("Convolve", convolve(nn.Square(3, 1, 1), 1),
			convolution(image{2, 3, 4, 5}, 2, 3, 3, nn.Square(3, 1, 1), 1), s{2, 3, 4, 5}, s{2, 3, 3, 3}, s{2}),
		of("Convolve at one point", convolve(nn.Window{}, 1),
			convolution(image{2, 3, 1, 4}, 4, 1, 1, nn.Window{}, 1), s{2, 3, 1, 4}, s{4, 3, 1, 1}),
		of("Convolve oddly", convolve(odd, 1),
			convolution(image{1, 2, 5, 4}, 3, 2, 3, odd, 1), s{1, 2, 5, 4}, s{3, 2, 2, 3}, s{3}),
		of("Convolve in groups", convolve(odd, 2),
			convolution(image{2, 4, 5, 3}, 6, 2, 2, odd, 2), s{2, 4, 5, 3}, s{6, 2, 2, 2}, s{6}),
		of("Convolve by channels", convolve(nn.Square(3, 2, 1), 3),
			convolution(image{2, 3, 5, 5}, 3, 3, 3, nn.Square(3, 2, 1), 3), s{2, 3, 5, 5}, s{3, 1, 3, 3}),
		of("ConvolveTransposed", func(x ...node) (node, error) {
			return nn.ConvolveTransposed(x[0], x[1], x[2], nn.Square(2, 2, 0), 1, [2]int{})
		}, scatteredImage(image{2, 3, 2, 3}, 2, 4, 6, 2, 2, nn.Square(2, 2, 0), 1), s{2, 3, 2, 3}, s{3, 2, 2, 2}, s{2}),
		of("ConvolveTransposed oddly", func(x ...node) (node, error) {
			return nn.ConvolveTransposed(x[0], x[1], nil, odd, 2, [2]int{1, 0})
		}, scatteredImage(image{1, 4, 2, 3}, 6, 4, 4, 2, 3, odd, 2), s{1, 4, 2, 3}, s{4, 3, 2, 3}),
		of("MaxPool2d", func(x ...node) (node, error) { return nn.MaxPool2d(x[0], window) },
			pooled(image{2, 3, 5, 4}, window, false), s{2, 3, 5, 4}),
		of("AvgPool2d", func(x ...node) (node, error) { return nn.AvgPool2d(x[0], window) },
			pooled(image{2, 3, 5, 4}, window, true), s{2, 3, 5, 4}),
		of("GlobalAvgPool2d", func(x ...node) (node, error) { return nn.GlobalAvgPool2d(x[0]) },
			pooled(image{2, 3, 4, 5}, nn.Window{Kernel: [2]int{4, 5}}, true), s{2, 3, 4, 5}),
		{"BatchNorm", func(b *net) (node, nodes) {
			x, n := b.in("x", 3, 2, 2, 3), batchNorm(b, "norm", 2)
			return must(n.Forward(x)), append(nodes{x}, n.Params()...)
		}, normed(image{3, 2, 2, 3})},
		{"BatchNorm of rows", func(b *net) (node, nodes) {
			x, n := b.in("x", 5, 3), batchNorm(b, "norm", 3)
			return must(n.Forward(x)), append(nodes{x}, n.Params()...)
		}, normed(image{5, 3, 1, 1})},
		{"a residual block", func(b *net) (node, nodes) {
			x, w, n := b.in("x", 2, 2, 3, 3), b.in("w", 2, 2, 3, 3), batchNorm(b, "norm", 2)
			r := nn.Residual{
				Main:  nn.Sequential{&nn.Conv2d{W: w, Window: nn.Square(3, 1, 1), Groups: 1}, n},
				After: nn.Func(nn.SiLU),
			}
			return must(r.Forward(x)), append(nodes{x}, r.Params()...)
		}, func(in [][]float64) []float64 {
			h := convolution(image{2, 2, 3, 3}, 2, 3, 3, nn.Square(3, 1, 1), 1)(in[:2])
			y := normed(image{2, 2, 3, 3})([][]float64{h, in[2], in[3]})
			for i := range y {
				y[i] = silu(y[i] + in[0][i])
			}
			return y
		}},
	}
}

// TestRunningStatistics: runs in training move the statistics, on both machines alike; evaluation uses them and leaves
// them as they are.
func TestRunningStatistics(t *testing.T) {
	size := image{3, 2, 2, 3}
	for machine, make := range machines {
		b := newNet(tensor.Float64)
		x, n := b.in("x", size.n, size.c, size.h, size.w), batchNorm(b, "norm", size.c)
		n.Eps, n.Momentum = 1e-3, 0.75
		y := must(n.Forward(x))
		vm := make(b.g)
		in := [][]float64{values(t, x.Value()), values(t, n.Gamma.Value()), values(t, n.Beta.Value())}
		batch, variance := statistics(in[0], size)
		mean, unbiased := []float64{0, 0}, []float64{1, 1}
		for range 3 {
			for c := range mean {
				mean[c] = 0.75*mean[c] + 0.25*batch[c]
				unbiased[c] = 0.75*unbiased[c] + 0.25*variance[c]*18/17
			}
			run(t, vm)
			vm.Reset()
			agree(t, machine+": the mean", sync(t, vm, n.Mean()), mean, 1e-12)
			agree(t, machine+": the variance", sync(t, vm, n.Variance()), unbiased, 1e-12)
		}
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
		vm = make(b.g, gorgonia.EvalMode())
		run(t, vm)
		agree(t, machine+" in evaluation", values(t, y.Value()), standardised(in, size, mean, unbiased, 1e-3), 1e-12)
		agree(t, machine+": the mean after it", sync(t, vm, n.Mean()), mean, 1e-12)
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
	}
}

// sync is the value of a tensor that a machine may have on a device.
func sync(t testing.TB, vm gorgonia.VM, x *graph.Tensor) []float64 {
	t.Helper()
	if m, ok := vm.(*fusec.Machine); ok {
		if err := m.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	return x.Floats()
}

// TestEvaluationGradients: in evaluation gradients flow through the normalisation by running statistics.
func TestEvaluationGradients(t *testing.T) {
	first := map[string][]float64{}
	for _, machine := range machines {
		b := newNet(tensor.Float64)
		x, n := b.in("x", 3, 2, 2, 2), batchNorm(b, "norm", 2)
		copy(n.Mean().Data.([]float64), []float64{0.5, -1})
		copy(n.Variance().Data.([]float64), []float64{4, 0.25})
		cost := b.cost(must(n.Forward(x)))
		wrt := append(n.Params(), x)
		if _, err := gorgonia.Grad(cost, wrt...); err != nil {
			t.Fatal(err)
		}
		vm := machine(b.g, gorgonia.BindDualValues(wrt...), gorgonia.EvalMode())
		run(t, vm)
		for _, w := range wrt {
			g, err := w.Grad()
			if err != nil {
				t.Fatal(err)
			}
			agreeFirst(t, first, w.Name(), values(t, g))
			agree(t, "by differences, of "+w.Name(), values(t, g), differences(t, b.g, cost, w), 1e-6)
		}
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestBatchNormTwice: a layer that is used twice in a graph moves its statistics twice in a run.
func TestBatchNormTwice(t *testing.T) {
	for machine, make := range machines {
		b := newNet(tensor.Float64)
		x, z, n := b.in("x", 4, 2), b.in("z", 5, 2), batchNorm(b, "norm", 2)
		must(nn.SiLU(must(n.Forward(x))))
		must(nn.SiLU(must(n.Forward(z))))
		vm := make(b.g)
		run(t, vm)
		one, _ := statistics(values(t, x.Value()), image{4, 2, 1, 1})
		two, _ := statistics(values(t, z.Value()), image{5, 2, 1, 1})
		for c, got := range sync(t, vm, n.Mean()) {
			if want := 0.09*one[c] + 0.1*two[c]; math.Abs(got-want) > 1e-12 && math.Abs(got-0.1*one[c]-0.09*two[c]) > 1e-12 {
				t.Errorf("%s: the mean is %v, want %v, or the same in the other order", machine, got, want)
			}
		}
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestShare: a layer of another graph uses the statistics that one learns.
func TestShare(t *testing.T) {
	b, other := newNet(tensor.Float32), newNet(tensor.Float32)
	n, m := batchNorm(b, "norm", 3), batchNorm(other, "norm", 3)
	must(n.Forward(b.in("x", 8, 3)))
	z := other.in("x", 1, 3)
	y := must(m.Forward(z))
	if err := m.Share(n); err != nil {
		t.Fatal(err)
	}
	learn := fusec.NewMachine(b.g)
	defer learn.Close()
	use := fusec.NewMachine(other.g, gorgonia.EvalMode())
	defer use.Close()
	for range 2 {
		run(t, learn)
		learn.Reset()
		run(t, use)
		in := [][]float64{values(t, z.Value()), values(t, m.Gamma.Value()), values(t, m.Beta.Value())}
		agree(t, "the shared statistics", values(t, y.Value()),
			standardised(in, image{1, 3, 1, 1}, n.Mean().Floats(), n.Variance().Floats(), 1e-5), 1e-6)
		use.Reset()
	}
	if n.Mean().Float(0) == 0 {
		t.Error("the statistics have not moved")
	}
	wide := batchNorm(other, "wide", 4)
	if err := wide.Share(n); err == nil || !strings.Contains(err.Error(), "f32[4]; it was to share f32[3]") {
		t.Errorf("error %v", err)
	}
	if err := wide.Share(nil); err == nil || !strings.Contains(err.Error(), "no layer") {
		t.Errorf("error %v", err)
	}
}

// TestStatisticsAreState: Machine.State has running statistics, SetState puts them back into the layer, and a saved graph
// has them.
func TestStatisticsAreState(t *testing.T) {
	b := newNet(tensor.Float32)
	n := batchNorm(b, "norm", 2)
	must(n.Forward(b.in("x", 5, 2)))
	m := fusec.NewMachine(b.g)
	defer m.Close()
	run(t, m)
	state, err := m.State()
	if err != nil {
		t.Fatal(err)
	}
	first := slices.Clone(n.Mean().Floats())
	agree(t, "the state", state["norm.mean"].Floats(), first, 0)
	m.Reset()
	run(t, m)
	if slices.Equal(n.Mean().Floats(), first) {
		t.Error("a run has not moved the mean")
	}
	if err := m.SetState(state); err != nil {
		t.Fatal(err)
	}
	agree(t, "the mean", n.Mean().Floats(), first, 0)
	im, err := fgorgonia.Import(b.g, fgorgonia.Options{})
	if err != nil {
		t.Fatal(err)
	}
	weights, err := im.Weights()
	if err != nil {
		t.Fatal(err)
	}
	agree(t, "the saved mean", weights["norm.mean"].Floats(), first, 0)
}

// TestConvErrors requires errors to name what does not fit.
func TestConvErrors(t *testing.T) {
	b := newNet(tensor.Float32)
	x, w, v := b.in("x", 1, 4, 5, 5), b.in("w", 6, 2, 3, 3), b.in("v", 5)
	norm := batchNorm(b, "norm", 3)
	fast := batchNorm(b, "fast", 4)
	fast.Momentum = 1.5
	for _, c := range []struct {
		make func() error
		want string
	}{
		{func() error { return second(nn.Convolve(x, w, nil, nn.Window{}, 1)) }, "channels do not fit"},
		{func() error { return second(nn.Convolve(x, w, v, nn.Window{}, 2)) }, `"bias = v" of type f32[5]: want [6]`},
		{func() error { return second(nn.Convolve(x, w, nil, nn.Square(5, 1, 1), 2)) }, "the window is 5×5, but w is"},
		{func() error { return second(nn.Convolve(x, nil, nil, nn.Square(5, 1, 1), 2)) }, "but w is"},
		{func() error { return second(nn.Convolve(x, nil, nil, nn.Window{}, 2)) }, "w is nil"},
		{func() error { return second(nn.Convolve(x, w, nil, nn.Window{Stride: [2]int{-1, 1}}, 2)) }, "stride -1"},
		{func() error { return second(nn.ConvolveTransposed(x, v, nil, nn.Window{}, 1, [2]int{})) },
			"want x [n, o, h, w] and w [o, c, kh, kw]"},
		{func() error { return second(nn.ConvolveTransposed(x, w, nil, nn.Window{}, 1, [2]int{})) }, "ConvTranspose2d"},
		{func() error { return second(nn.ConvolveTransposed(x, w, nil, nn.Square(3, 2, 0), 1, [2]int{2, 0})) }, "an extra size of [2 0]"},
		{func() error { return second(nn.ConvolveTransposed(x, w, nil, nn.Square(2, 2, 0), 1, [2]int{})) },
			"the window is 2×2, but w is"},
		{func() error { return second(nn.MaxPool2d(x, nn.Window{})) }, "window of size 0"},
		{func() error { return second(nn.MaxPool2d(v, nn.Square(2, 2, 0))) }, "x = v"},
		{func() error { return second(nn.AvgPool2d(x, nn.Window{Kernel: [2]int{2, 2}, Dilation: [2]int{2, 1}})) }, "pools have none"},
		{func() error { return second(nn.GlobalAvgPool2d(v)) }, "want [n, c, h, w]"},
		{func() error { return second(norm.Forward(x)) }, "BatchNorm"},
		{func() error { return second(fast.Forward(x)) }, "a momentum of 1.5"},
		{func() error { return second((&nn.BatchNorm{}).Forward(x)) }, "no statistics"},
		{func() error { return second(nn.NewBatchNorm(b.g, tensor.Float32, "n", 0)) }, "BatchNorm n: 0 channels"},
		{func() error { return second(nn.NewBatchNorm(nil, tensor.Float32, "n", 1)) }, "the graph is nil"},
		{func() error {
			return second(nn.NewConv2d(b.g, tensor.Float32, "c", 4, 6, 3, nn.Conv2dOptions{Groups: 3}))
		},
			"Conv2d c: 4 channels to 6 in 3 groups"},
		{func() error { return second(nn.NewConv2d(b.g, tensor.Float32, "c", 4, 6, 0, nn.Conv2dOptions{})) }, "filters of 0×0"},
		{func() error { return second(nn.NewConv2d(b.g, tensor.Int, "c", 4, 6, 1, nn.Conv2dOptions{})) }, "not int"},
		{func() error { return second(nn.NewDense(b.g, tensor.Float32, "d", 0, 1)) }, "Dense d: 0 features"},
		{func() error { return second(nn.NewBasicBlock(b.g, tensor.Float32, "b", 4, 8, 0)) }, "block b.conv1: a stride of 0"},
		{func() error { return second(nn.NewBottleneck(b.g, tensor.Float32, "b", 4, 0, 8, 1)) }, "b.conv1: 4 channels to 0"},
		{func() error { return second((&nn.Residual{}).Forward(x)) }, "Main is nil"},
		{func() error { return second(nn.Sequential{nil}.Forward(x)) }, "layer 0 is nil"},
	} {
		if err := c.make(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v does not say %q", err, c.want)
		}
	}
}

// TestBlocks: the residual blocks have the shapes, the weights and the norms that they should, and train.
func TestBlocks(t *testing.T) {
	b := newNet(tensor.Float32)
	one, err := nn.NewBasicBlock(b.g, b.d, "one", 4, 4, 1)
	if err != nil {
		t.Fatal(err)
	}
	two, err := nn.NewBottleneck(b.g, b.d, "two", 4, 2, 8, 2)
	if err != nil {
		t.Fatal(err)
	}
	net := nn.Sequential{one, two, nn.Func(nn.GlobalAvgPool2d)}
	x := b.in("x", 4, 4, 7, 7)
	y := must(net.Forward(x))
	if !y.Shape().Eq(tensor.Shape{4, 8}) {
		t.Errorf("the result has shape %v", y.Shape())
	}
	var names []string
	for _, w := range net.Params() {
		names = append(names, fmt.Sprint(w.Name(), w.Shape()))
	}
	want := []string{
		"one.conv1.weight(4, 4, 3, 3)", "one.conv1.norm.gamma(4)", "one.conv1.norm.beta(4)",
		"one.conv2.weight(4, 4, 3, 3)", "one.conv2.norm.gamma(4)", "one.conv2.norm.beta(4)",
		"two.conv1.weight(2, 4, 1, 1)", "two.conv1.norm.gamma(2)", "two.conv1.norm.beta(2)",
		"two.conv2.weight(2, 2, 3, 3)", "two.conv2.norm.gamma(2)", "two.conv2.norm.beta(2)",
		"two.conv3.weight(8, 2, 1, 1)", "two.conv3.norm.gamma(8)", "two.conv3.norm.beta(8)",
		"two.skip.weight(8, 4, 1, 1)", "two.skip.norm.gamma(8)", "two.skip.norm.beta(8)",
	}
	if strings.ReplaceAll(strings.Join(names, "\n"), " ", "") != strings.ReplaceAll(strings.Join(want, "\n"), " ", "") {
		t.Errorf("the weights are %q", names)
	}
	if n := len(nn.Norms(net)); n != 6 {
		t.Errorf("%d norms", n)
	}
	cost := must(nn.CrossEntropy(y, b.ints("labels", 0, 3, 5, 7)))
	if _, err := gorgonia.Grad(cost, net.Params()...); err != nil {
		t.Fatal(err)
	}
	m := fusec.NewMachine(b.g, gorgonia.BindDualValues(net.Params()...))
	defer m.Close()
	solver := gorgonia.NewAdamSolver(gorgonia.WithLearnRate(0.02))
	var first, last float64
	for i := range 40 {
		run(t, m)
		if last = values(t, cost.Value())[0]; i == 0 {
			first = last
		}
		if err := solver.Step(gorgonia.NodesToValueGrads(net.Params())); err != nil {
			t.Fatal(err)
		}
		m.Reset()
	}
	if !(last < first/2) {
		t.Errorf("the loss fell from %v to %v only", first, last)
	}
}
