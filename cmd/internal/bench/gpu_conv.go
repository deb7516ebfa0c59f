package bench

import (
	"fmt"
	"math"

	"fusec"
	"fusec/graph"
	"fusec/graph/optim"
)

// convPrecisions are those that convolutions are measured in.
var convPrecisions = []fusec.Precision{fusec.BF16, fusec.TF32, fusec.F32}

// convWorks are layers, their gradients, and networks of layers with a bias and a rectifier, on images in NHWC. Networks are not
// measured in F32: their rivals take minutes to compile.
func convWorks(small bool) []*gpuWork {
	layers := []convLayer{{64, 224, 3, 64, 7, 2, 1}, {64, 56, 64, 64, 3, 1, 1}, {64, 56, 64, 128, 3, 2, 1},
		{64, 28, 128, 128, 3, 1, 1},
		{64, 14, 256, 256, 3, 1, 1}, {64, 7, 512, 512, 3, 1, 1}, {64, 56, 256, 64, 1, 1, 1}, {64, 56, 256, 512, 1, 2, 1},
		{64, 112, 64, 64, 3, 2, 64}, {64, 56, 128, 128, 3, 1, 128}}
	gradients := []convLayer{layers[1], layers[2], layers[4], layers[9]}
	networks := []convNetwork{{"resnet18", 64, 224, resNet18(64)}, {"resnet50", 64, 224, resNet50(64)},
		{"mobilenet", 64, 224, mobileNet}, {"resnet50", 1, 224, resNet50(64)}}
	trained := convTraining{networks[1], 1000}
	if small {
		layers = []convLayer{{2, 9, 3, 8, 3, 2, 1}, {1, 6, 8, 8, 3, 1, 8}}
		gradients = []convLayer{{2, 8, 8, 8, 3, 2, 1}, layers[1]}
		networks = []convNetwork{{"resnet18", 1, 16, resNet18(4)}}
		trained = convTraining{convNetwork{"resnet18", 2, 40, resNet18(4)}, 8}
	}
	var list []*gpuWork
	for _, p := range convPrecisions {
		for _, l := range layers {
			list = append(list, l.forward(p))
		}
		for _, l := range gradients {
			list = append(list, l.imageGradient(p), l.filterGradient(p))
		}
		list = append(list, layers[0].filterGradient(p)) // images have no gradient
		if p == fusec.F32 {
			continue
		}
		for _, n := range networks {
			list = append(list, n.work(p))
		}
	}
	return append(list, trained.work(fusec.BF16))
}

// elementOf is the type that values have in memory.
func elementOf(p fusec.Precision) graph.DType {
	if p == fusec.BF16 {
		return graph.BF16
	}
	return graph.F32
}

// A convLayer is a convolution of square images and filters.
type convLayer struct{ batch, size, channels, columns, kernel, stride, groups int }

func (l convLayer) op() graph.Conv2D {
	pad := l.kernel / 2
	return graph.Conv2D{Stride: graph.IntsOf(l.stride, l.stride), Dilation: graph.IntsOf(1, 1),
		Pad: graph.IntsOf(pad, pad, pad, pad), Groups: l.groups, Layout: graph.NHWC}
}

func (l convLayer) out() int { return (l.size+2*(l.kernel/2)-l.kernel)/l.stride + 1 }

func (l convLayer) flops() float64 {
	return 2 * float64(l.batch*l.out()*l.out()) * float64(l.columns) * float64(l.kernel*l.kernel*l.channels/l.groups)
}

func (l convLayer) images(d graph.DType) graph.Type {
	return graph.TypeOf(d, l.batch, l.size, l.size, l.channels)
}

func (l convLayer) filters(d graph.DType) graph.Type {
	return graph.TypeOf(d, l.kernel, l.kernel, l.channels/l.groups, l.columns)
}

func (l convLayer) results(d graph.DType) graph.Type {
	return graph.TypeOf(d, l.batch, l.out(), l.out(), l.columns)
}

// deviation is that of filters that keep the size of numbers.
func (l convLayer) deviation() float64 {
	return math.Sqrt(2 / float64(l.kernel*l.kernel*l.channels/l.groups))
}

func (l convLayer) work(p fusec.Precision, what string) *gpuWork {
	name := fmt.Sprintf("conv %v b%d %dx%d %d-%d k%ds%d", p, l.batch, l.size, l.size, l.channels, l.columns, l.kernel, l.stride)
	if l.groups > 1 {
		name += " depthwise"
	}
	return &gpuWork{name: name + what, work: l.flops(), unit: teraFLOPs, precision: p,
		scale: map[string]float64{"w": l.deviation()}}
}

// add writes the layer with its bias and rectifier; more, if not nil, is added before that.
func (l convLayer) add(b *graph.Builder, d graph.DType, x, w, bias, more *graph.Node) *graph.Node {
	y := b.Add(l.op(), x, w)
	y = b.Binary(graph.Add, y, b.Broadcast(b.CastTo(graph.F32, bias), y.Type.Shape))
	if more != nil {
		y = b.Binary(graph.Add, y, b.CastTo(graph.F32, more))
	}
	return b.CastTo(d, b.Unary(graph.Relu, y))
}

func (l convLayer) forward(p fusec.Precision) *gpuWork {
	w, d := l.work(p, ""), elementOf(p)
	w.build = func(b *graph.Builder) {
		b.Output("y", l.add(b, d, b.Input("x", l.images(d)), b.Param("w", l.filters(d)),
			b.Param("b", graph.TypeOf(d, l.columns)), nil))
	}
	w.check = func(v *gpuValues) error { return l.checkForward(v, p) }
	return w
}

func (l convLayer) imageGradient(p fusec.Precision) *gpuWork {
	w, d, c := l.work(p, " image gradient"), elementOf(p), l.op()
	w.build = func(b *graph.Builder) {
		op := graph.Conv2DTranspose{Stride: c.Stride, Dilation: c.Dilation, Pad: c.Pad, Groups: c.Groups, H: l.size, W: l.size,
			Layout: c.Layout}
		b.Output("dx", b.CastTo(d, b.Add(op, b.Input("dy", l.results(d)), b.Input("w", l.filters(d)))))
	}
	w.check = func(v *gpuValues) error { return l.checkImageGradient(v, p) }
	return w
}

func (l convLayer) filterGradient(p fusec.Precision) *gpuWork {
	w, d, c := l.work(p, " filter gradient"), elementOf(p), l.op()
	w.build = func(b *graph.Builder) {
		op := graph.Conv2DFilterGrad{Stride: c.Stride, Dilation: c.Dilation, Pad: c.Pad, Groups: c.Groups, KH: l.kernel,
			KW: l.kernel, Layout: c.Layout}
		b.Output("dw", b.Add(op, b.Input("x", l.images(d)), b.Input("dy", l.results(d))))
	}
	w.check = func(v *gpuValues) error { return l.checkFilterGradient(v, p) }
	return w
}

// pairs calls f with the places of the elements of image, filters and result that meet in a product, for the result's element
// (n, oy, ox, o), or, if that is −1, all results of column o.
func (l convLayer) pairs(n, oy, ox, o int, f func(x, w, y int)) {
	each, per, pad, out := l.channels/l.groups, l.columns/l.groups, l.kernel/2, l.out()
	for ky := range l.kernel {
		row := oy*l.stride + ky - pad
		for kx := range l.kernel {
			col := ox*l.stride + kx - pad
			if row < 0 || row >= l.size || col < 0 || col >= l.size {
				continue
			}
			for c := range each {
				f(((n*l.size+row)*l.size+col)*l.channels+o/per*each+c, ((ky*l.kernel+kx)*each+c)*l.columns+o,
					((n*out+oy)*out+ox)*l.columns+o)
			}
		}
	}
}

// checkForward compares some positions of a layer's result.
func (l convLayer) checkForward(v *gpuValues, p fusec.Precision) error {
	x, w, bias := v.in["x"], v.in["w"], v.in["b"]
	out := l.out()
	return each(samples(l.batch*out*out), func(i int) error {
		for o := range l.columns {
			s := termSum{}
			s.add(bias.Float(o))
			l.pairs(i/(out*out), i/out%out, i%out, o, func(a, b, _ int) { s.add(x.Float(a) * w.Float(b)) })
			s.sum = max(s.sum, 0)
			if err := s.compare("y", v, i*l.columns+o, operandError(p)); err != nil {
				return err
			}
		}
		return nil
	})
}

// checkImageGradient compares some pixels.
func (l convLayer) checkImageGradient(v *gpuValues, p fusec.Precision) error {
	dy, w := v.in["dy"], v.in["w"]
	pad, out := l.kernel/2, l.out()
	return each(samples(l.batch*l.size*l.size), func(i int) error {
		n, row, col := i/(l.size*l.size), i/l.size%l.size, i%l.size
		sums := make(sums, l.channels)
		for oy := max(0, (row+pad-l.kernel+1)/l.stride); oy <= (row+pad)/l.stride && oy < out; oy++ {
			for ox := max(0, (col+pad-l.kernel+1)/l.stride); ox <= (col+pad)/l.stride && ox < out; ox++ {
				for o := range l.columns {
					l.pairs(n, oy, ox, o, func(a, b, c int) {
						if a/l.channels == i {
							sums[a%l.channels].add(dy.Float(c) * w.Float(b))
						}
					})
				}
			}
		}
		return sums.compare("dx", v, i, operandError(p))
	})
}

// checkFilterGradient compares some columns of one channel and tap.
func (l convLayer) checkFilterGradient(v *gpuValues, p fusec.Precision) error {
	x, dy := v.in["x"], v.in["dy"]
	channels, pad, out := l.channels/l.groups, l.kernel/2, l.out()
	return each(samples(l.kernel*l.kernel*channels), func(i int) error {
		ky, kx, c := i/channels/l.kernel, i/channels%l.kernel, i%channels
		for o := range min(l.columns, 3) {
			s := termSum{}
			for m := range l.batch * out * out {
				row, col := m/out%out*l.stride+ky-pad, m%out*l.stride+kx-pad
				if row >= 0 && row < l.size && col >= 0 && col < l.size {
					at := ((m/(out*out)*l.size+row)*l.size+col)*l.channels + o/(l.columns/l.groups)*channels + c
					s.add(x.Float(at) * dy.Float(m*l.columns+o))
				}
			}
			if err := s.compare("dw", v, i*l.columns+o, operandError(p)); err != nil {
				return err
			}
		}
		return nil
	})
}

// A convNetwork is a network of convolutions; layers writes it, given what adds one.
type convNetwork struct {
	name        string
	batch, size int
	layers      func(n *convNet, x *graph.Node) *graph.Node
}

// A convNet writes the layers of a network.
type convNet struct {
	b      *graph.Builder
	dtype  graph.DType
	flops  float64
	scales map[string]float64
	number int
	norms  bool // batch norms in training, in place of biases
}

// conv appends a layer of n columns; more, if not nil, is added to its result before the rectifier.
func (c *convNet) conv(x *graph.Node, columns, kernel, stride, groups int, more *graph.Node) *graph.Node {
	s := x.Type.Shape
	l := convLayer{s.At(0), s.At(1), s.At(3), columns, kernel, stride, groups}
	name := fmt.Sprint(c.number)
	c.number++
	c.flops += l.flops()
	c.scales[name+".w"], c.scales[name+".b"] = l.deviation(), 0.1
	if more != nil {
		c.scales[name+".w"] /= 4 // sums of residuals grow else
	}
	if c.norms {
		return c.normed(l, name, x, more)
	}
	w, bias := c.b.Param(name+".w", l.filters(c.dtype)), c.b.Param(name+".b", graph.TypeOf(c.dtype, columns))
	return l.add(c.b, c.dtype, x, w, bias, more)
}

// normed appends a layer with a batch norm in training, whose running statistics are states. Parameters and the norm are in f32;
// what convolutions, norms, sums and rectifiers make of images is rounded to the net's type, as PyTorch's autocast stores it.
func (c *convNet) normed(l convLayer, name string, x, more *graph.Node) *graph.Node {
	y := c.b.CastTo(c.dtype, c.b.Add(l.op(), x, c.b.CastTo(c.dtype, c.b.Param(name+".w", l.filters(graph.F32)))))
	s := y.Type.Shape
	pixels := func(x *graph.Node) *graph.Node { return c.b.Reshape(x, s.Elems()/l.columns, l.columns) }
	channels := graph.TypeOf(graph.F32, l.columns)
	mean, variance := c.b.State(name+".mean", channels), c.b.State(name+".variance", channels)
	norm := c.b.Add(graph.BatchNorm{Eps: normEps, Momentum: 0.9, Train: true}, c.b.CastTo(graph.F32, pixels(y)),
		c.b.Param(name+".gamma", channels), c.b.Param(name+".b", channels), mean, variance)
	c.b.Update(mean, c.b.Add(graph.Result{Index: 1}, norm))
	c.b.Update(variance, c.b.Add(graph.Result{Index: 2}, norm))
	round := func(x *graph.Node) *graph.Node { return c.b.CastTo(graph.F32, c.b.CastTo(c.dtype, x)) }
	y = round(norm)
	if more != nil {
		y = round(c.b.Binary(graph.Add, y, c.b.CastTo(graph.F32, pixels(more))))
	}
	return c.b.Reshape(c.b.CastTo(c.dtype, c.b.Unary(graph.Relu, y)), s.Slice()...)
}

// stem is the first layer of a residual network, and a pool.
func (c *convNet) stem(x *graph.Node, columns int) *graph.Node {
	y := c.conv(x, columns, 7, 2, 1, nil)
	pool := graph.Pool{Fn: graph.MaxPool, Kernel: graph.IntsOf(3, 3), Stride: graph.IntsOf(2, 2), Pad: graph.IntsOf(1, 1, 1, 1),
		Layout: graph.NHWC}
	return c.b.CastTo(c.dtype, c.b.Add(pool, c.b.CastTo(graph.F32, y)))
}

// resNet18 is the network of He et al. (arXiv 1512.03385) of blocks of two layers of that width at first, with folded batch norms
// and without its classifier. Layers of one element lead past blocks that change the size, here with a rectifier.
func resNet18(width int) func(c *convNet, x *graph.Node) *graph.Node {
	return func(c *convNet, x *graph.Node) *graph.Node {
		x = c.stem(x, width)
		for i := range 4 {
			n := width << i
			for j := range 2 {
				stride, past := 1, x
				if i > 0 && j == 0 {
					stride, past = 2, c.conv(x, n, 1, 2, 1, nil)
				}
				x = c.conv(c.conv(x, n, 3, stride, 1, nil), n, 3, 1, 1, past)
			}
		}
		return x
	}
}

// resNet50 is the same of blocks of three layers, of which the middle one has the stride.
func resNet50(width int) func(c *convNet, x *graph.Node) *graph.Node {
	return func(c *convNet, x *graph.Node) *graph.Node {
		x = c.stem(x, width)
		for i, blocks := range []int{3, 4, 6, 3} {
			n := width << i
			for j := range blocks {
				stride, past := 1, x
				if j == 0 {
					stride = min(1+i, 2)
					past = c.conv(x, 4*n, 1, stride, 1, nil)
				}
				x = c.conv(c.conv(c.conv(x, n, 1, 1, 1, nil), n, 3, stride, 1, nil), 4*n, 1, 1, 1, past)
			}
		}
		return x
	}
}

// mobileNet is the network of Howard et al. (arXiv 1704.04861), with folded batch norms and without its classifier.
func mobileNet(c *convNet, x *graph.Node) *graph.Node {
	x = c.conv(x, 32, 3, 2, 1, nil)
	for _, l := range [][2]int{{64, 1}, {128, 2}, {128, 1}, {256, 2}, {256, 1}, {512, 2}, {512, 1}, {512, 1}, {512, 1},
		{512, 1}, {512, 1},
		{1024, 2}, {1024, 1}} {
		in := x.Type.Shape.At(3)
		x = c.conv(c.conv(x, in, 3, l[1], in, nil), l[0], 1, 1, 1, nil)
	}
	return x
}

// write builds the network for images of that type.
func (n convNetwork) write(b *graph.Builder, d graph.DType, batch int) *convNet {
	c := &convNet{b: b, dtype: d, scales: map[string]float64{}}
	y := n.layers(c, b.Input("x", graph.TypeOf(d, batch, n.size, n.size, 3)))
	b.Output("y", y)
	return c
}

func (n convNetwork) work(p fusec.Precision) *gpuWork {
	d := elementOf(p)
	c := n.write(graph.NewBuilder(n.name), d, n.batch)
	return &gpuWork{name: fmt.Sprintf("conv %v %s b%d", p, n.name, n.batch), work: c.flops, unit: teraFLOPs, precision: p,
		scale: c.scales, build: func(b *graph.Builder) { n.write(b, d, n.batch) },
		check: func(v *gpuValues) error { return n.check(v, p) }}
}

// check compares the result of the first image with what the processor makes of it in f32. The rounding of each layer adds up.
func (n convNetwork) check(v *gpuValues, p fusec.Precision) error {
	b := graph.NewBuilder(n.name)
	n.write(b, graph.F32, 1)
	g, err := b.Graph()
	if err != nil {
		return err
	}
	part := map[fusec.Precision]float64{fusec.BF16: 0.05, fusec.TF32: 0.01, fusec.F32: 1e-4}[p]
	return checkOnCPU(v, g, 4, part, largest)
}

// A convTraining is a training step of a network with batch norms in training, global pooling and a linear classifier: the mean
// square of what is left to a target, its gradients, and a step with momentum.
type convTraining struct {
	convNetwork
	classes int
}

func (n convTraining) write(b *graph.Builder, d graph.DType) *convNet {
	c := &convNet{b: b, dtype: d, scales: map[string]float64{}, norms: true}
	x := n.layers(c, b.CastTo(d, b.Input("x", graph.TypeOf(graph.F32, n.batch, n.size, n.size, 3))))
	x = b.Reduce(graph.Mean, b.CastTo(graph.F32, x), false, 1, 2)
	width := x.Type.Shape.At(1)
	c.flops += 2 * float64(n.batch*width*n.classes)
	c.scales["w"], c.scales["b"] = 1/math.Sqrt(float64(width)), 0.1
	y := Linear(b, x, b.Param("w", graph.TypeOf(graph.F32, width, n.classes)), b.Param("b", graph.TypeOf(graph.F32, n.classes)))
	far := b.Binary(graph.Sub, y, b.Input("target", y.Type))
	b.Output("loss", b.Reduce(graph.Mean, b.Unary(graph.Square, far), false, 0, 1))
	return c
}

// check compares the first loss with that of the network in f32 on the CPU.
func (n convTraining) check(v *gpuValues) error {
	b := graph.NewBuilder(n.name)
	n.write(b, graph.F32)
	g, err := b.Graph()
	if err != nil {
		return err
	}
	return checkLossOf(v, g)
}

func (n convTraining) work(p fusec.Precision) *gpuWork {
	c := n.write(graph.NewBuilder(n.name), elementOf(p))
	w := &gpuWork{name: fmt.Sprintf("conv %v autocast %s b%d training step", p, n.name, n.batch), work: 3 * c.flops,
		unit: teraFLOPs, precision: p, scale: c.scales, fill: map[string]func(*graph.Tensor){},
		build: func(b *graph.Builder) { n.write(b, elementOf(p)) }, check: n.check,
		optimizer: &optim.Optimizer{Rule: optim.Momentum{Mu: 0.9}, Rate: optim.Constant(1e-3)}}
	ones := func(t *graph.Tensor) {
		for i := range t.Type.Shape.Elems() {
			t.SetFloat(i, 1)
		}
	}
	for i := range c.number {
		w.fill[fmt.Sprint(i, ".gamma")], w.fill[fmt.Sprint(i, ".variance")] = ones, ones
	}
	return w
}
