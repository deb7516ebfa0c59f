package nn

import (
	"fmt"
	"math"

	"fusec/graph"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// Window is how the window of a convolution or of a pool moves over an image. Pairs are vertical and horizontal.
type Window struct {
	Kernel   [2]int // its size; a convolution takes that of its filters, and leaves this zero
	Stride   [2]int // 0 is 1
	Dilation [2]int // the distance between neighbours within the window; 0 is 1
	Pad      [4]int // top, left, bottom, right
}

// Square is a window of kernel×kernel elements that moves by stride, over an image with pad elements on each side.
func Square(kernel, stride, pad int) Window {
	return Window{Kernel: [2]int{kernel, kernel}, Stride: [2]int{stride, stride}, Pad: [4]int{pad, pad, pad, pad}}
}

// pair is two numbers as the operations have them; 0 is 1.
func pair(p [2]int) graph.Ints {
	for i, v := range p {
		if v == 0 {
			p[i] = 1
		}
	}
	return graph.IntsOf(p[:]...)
}

// Convolve is the convolution of images x [n, c, h, w] with filters w [o, c/groups, kh, kw] (cross-correlation, as usual
// in machine learning), plus bias [o], which may be nil. The result is [n, o, oh, ow]. Filters of the first o/groups
// outputs read the first c/groups channels, and so on: with groups = c each channel is convolved by itself.
func Convolve(x, w, bias *gorgonia.Node, win Window, groups int) (*gorgonia.Node, error) {
	operands := []operand{{"x", x}, {"w", w}}
	if bias != nil {
		operands = append(operands, operand{"bias", bias})
	}
	if err := wantKernel("Conv2d", w, win); err != nil {
		return nil, err
	}
	op := graph.Conv2D{Stride: pair(win.Stride), Dilation: pair(win.Dilation), Pad: graph.IntsOf(win.Pad[:]...), Groups: groups}
	return apply(convolve{op}, operands...)
}

type convolve struct{ op graph.Conv2D }

func (d convolve) name() string { return single{d.op, "Conv2d"}.name() }

func (d convolve) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	return biasedImage(b, b.Add(d.op, args[0], args[1]), args)
}

// biasedImage adds the third operand of a convolution, if there is one, to its value y.
func biasedImage(b *graph.Builder, y *graph.Node, args []*graph.Node) *graph.Node {
	if len(args) < 3 || b.Err() != nil {
		return y
	}
	bias, s := args[2], y.Type.Shape
	if bias.Type.Shape != graph.ShapeOf(s.At(1)) {
		return b.Fail(fmt.Errorf("%s of type %v: want [%d] for w %v", bias.Where(), bias.Type, s.At(1), args[1].Type.Shape))
	}
	return b.Binary(graph.Add, y, b.Broadcast(b.Reshape(bias, s.At(1), 1, 1), s))
}

// ConvolveTransposed is the transpose, as a linear map, of the convolution of images with filters w [o, c/groups, kh, kw]:
// it makes images [n, c, h, w] of x [n, o, ih, iw], plus bias [c], which may be nil. With a stride of 2 it doubles the
// sides of x, as at the end of a network that first makes images smaller. Of the sizes from which the convolution makes
// images like x, h and w are the smallest, plus extra, which is less than the stride.
func ConvolveTransposed(x, w, bias *gorgonia.Node, win Window, groups int, extra [2]int) (*gorgonia.Node, error) {
	operands := []operand{{"x", x}, {"w", w}}
	if bias != nil {
		operands = append(operands, operand{"bias", bias})
	}
	if err := wantKernel("ConvTranspose2d", w, win); err != nil {
		return nil, err
	}
	stride := pair(win.Stride)
	for i, e := range extra {
		if e < 0 || e >= stride.At(i) {
			return nil, fmt.Errorf("ConvTranspose2d: an extra size of %v with a stride of %v: want at least 0, and less", extra, win.Stride)
		}
	}
	op := graph.Conv2DTranspose{Stride: stride, Dilation: pair(win.Dilation), Pad: graph.IntsOf(win.Pad[:]...), Groups: groups}
	return apply(convolveTransposed{op, extra}, operands...)
}

type convolveTransposed struct {
	op    graph.Conv2DTranspose // without the size
	extra [2]int
}

func (d convolveTransposed) name() string { return single{d.op, "ConvTranspose2d"}.name() }

func (d convolveTransposed) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	op, x, w := d.op, args[0].Type.Shape, args[1].Type.Shape
	if x.Rank() != 4 || w.Rank() != 4 {
		return b.Fail(fmt.Errorf("%s of type %v and %s of type %v: want x [n, o, h, w] and w [o, c, kh, kw]",
			args[0].Where(), args[0].Type, args[1].Where(), args[1].Type))
	}
	size := func(axis int) int {
		return (x.At(2+axis)-1)*op.Stride.At(axis) + op.Dilation.At(axis)*(w.At(2+axis)-1) + 1 - op.Pad.At(axis) - op.Pad.At(
			axis+2) + d.extra[axis]
	}
	op.H, op.W = size(0), size(1)
	return biasedImage(b, b.Add(op, args[0], args[1]), args)
}

// wantKernel reports a window whose kernel is not that of the filters.
func wantKernel(what string, w *gorgonia.Node, win Window) error {
	if win.Kernel != [2]int{} && (w == nil || len(w.Shape()) != 4 || [2]int(w.Shape()[2:]) != win.Kernel) {
		return fmt.Errorf("%s: the window is %d×%d, but w is %v", what, win.Kernel[0], win.Kernel[1], w)
	}
	return nil
}

// Conv2dOptions are the options of [NewConv2d]. The zero value moves by 1, without padding, over all channels.
type Conv2dOptions struct {
	Stride   int // 0 is 1
	Pad      int // on each side
	Dilation int // 0 is 1
	Groups   int // 0 is 1; divides both numbers of channels
	NoBias   bool
}

// Conv2d is a convolutional layer; see [Convolve]. Its fields may be changed before it is used.
type Conv2d struct {
	W      *gorgonia.Node // [out, in/Groups, kernel, kernel]
	Bias   *gorgonia.Node // [out], or nil
	Window Window
	Groups int
}

// NewConv2d makes the weights of a layer from in to out channels with square filters of kernel×kernel, as nodes of g
// whose names begin with name: filters normally distributed with the variance 2 ÷ (elements that a filter reads) (He et
// al., arXiv 1502.01852), a bias of 0.
func NewConv2d(g *gorgonia.ExprGraph, of tensor.Dtype, name string, in, out, kernel int, o Conv2dOptions) (*Conv2d, error) {
	groups := max(o.Groups, 1)
	err := wantWeights(g, of)
	if err == nil && (in < 1 || out < 1 || kernel < 1 || o.Groups < 0 || in%groups != 0 || out%groups != 0) {
		err = fmt.Errorf("%d channels to %d in %d groups, filters of %d×%d", in, out, groups, kernel, kernel)
	}
	if err != nil {
		return nil, fmt.Errorf("Conv2d %s: %w", name, err)
	}
	c := &Conv2d{Window: Square(0, o.Stride, o.Pad), Groups: groups}
	c.Window.Dilation = [2]int{o.Dilation, o.Dilation}
	deviation := math.Sqrt(2 / float64(in/groups*kernel*kernel))
	c.W = gorgonia.NewTensor(g, of, 4, gorgonia.WithShape(out, in/groups, kernel, kernel),
		gorgonia.WithName(name+".weight"), gorgonia.WithInit(gorgonia.Gaussian(0, deviation)))
	if !o.NoBias {
		c.Bias = gorgonia.NewVector(g, of, gorgonia.WithShape(out), gorgonia.WithName(name+".bias"),
			gorgonia.WithInit(gorgonia.Zeroes()))
	}
	return c, nil
}

// Params lists the weights.
func (c *Conv2d) Params() gorgonia.Nodes { return present(c.W, c.Bias) }

// Forward convolves x [n, in, h, w].
func (c *Conv2d) Forward(x *gorgonia.Node) (*gorgonia.Node, error) {
	return Convolve(x, c.W, c.Bias, c.Window, c.Groups)
}

// MaxPool2d is the maximum of each window of x [n, c, h, w]; padding is −Inf.
func MaxPool2d(x *gorgonia.Node, win Window) (*gorgonia.Node, error) {
	return pool(x, "MaxPool2d", graph.Pool{Fn: graph.MaxPool}, win)
}

// AvgPool2d is the mean of each window of x [n, c, h, w]; padding counts as zeros.
func AvgPool2d(x *gorgonia.Node, win Window) (*gorgonia.Node, error) {
	return pool(x, "AvgPool2d", graph.Pool{Fn: graph.AvgPool, CountPad: true}, win)
}

func pool(x *gorgonia.Node, label string, op graph.Pool, win Window) (*gorgonia.Node, error) {
	if pair(win.Dilation) != graph.IntsOf(1, 1) {
		return nil, fmt.Errorf("%s: a dilation of %v: pools have none", label, win.Dilation)
	}
	op.Kernel, op.Stride, op.Pad = graph.IntsOf(win.Kernel[:]...), pair(win.Stride), graph.IntsOf(win.Pad[:]...)
	return apply(single{op, label}, operand{"x", x})
}

// GlobalAvgPool2d is the mean of each channel of x [n, c, h, w], as [n, c].
func GlobalAvgPool2d(x *gorgonia.Node) (*gorgonia.Node, error) {
	return apply(globalAverage{}, operand{"x", x})
}

type globalAverage struct{}

func (globalAverage) name() string { return "GlobalAvgPool2d" }

func (globalAverage) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	if s := args[0].Type.Shape; s.Rank() != 4 {
		return b.Fail(fmt.Errorf("%s of type %v: want [n, c, h, w]", args[0].Where(), args[0].Type))
	}
	return b.Reduce(graph.Mean, args[0], false, 2, 3)
}
