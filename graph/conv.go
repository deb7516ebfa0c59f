package graph

import "fmt"

// Conv2D convolves images x [N,C,H,W] with filters w [O,C/Groups,KH,KW] (cross-correlation, as usual in machine
// learning) to y [N,O,OH,OW]. Filters g·O/Groups and following read the channels g·C/Groups and following. Pad is top,
// left, bottom, right; Stride and Dilation are vertical, horizontal. In [NHWC], x is [N,H,W,C], w [KH,KW,C/Groups,O] and
// y [N,OH,OW,O].
//
// Images of U8 and filters of I8 have a result of F32: sums of products of integers.
//
// Winograd allows the algorithm F(m×m, 3×3) of Winograd, with m = Winograd; 0 does not. It changes nothing but the rounding,
// and so the bound of its error; see [WinogradOf]. Filters are 3×3 then, of one group, stride and dilation are 1, and values
// are F32.
type Conv2D struct {
	Stride, Dilation Ints
	Pad              Ints
	Groups           int
	Layout           ImageLayout `attr:"optional"`
	Winograd         int         `attr:"optional"`
}

// Conv2DTranspose is the transpose of [Conv2D] as a linear map of its image: from dy, shaped as the convolution's result, and
// its filters w it makes images of height H and width W. It is the gradient of Conv2D for its image, and the transposed
// convolution of ONNX and PyTorch.
type Conv2DTranspose struct {
	Stride, Dilation Ints
	Pad              Ints
	Groups           int
	H, W             int
	Layout           ImageLayout `attr:"optional"`
	Winograd         int         `attr:"optional"` // as that of Conv2D, for the convolution that [Conv2DTranspose.Forward] is
}

// Forward is the convolution with stride 1 that makes the same images of dy, with filters of kh×kw that are turned by half a turn,
// and whose channels and numbers are exchanged: element (i, j, c, o) of w is element (kh−1−i, kw−1−j, o, c) there. The padding of
// c must not be above kh−1 and kw−1.
func (c Conv2DTranspose) Forward(kh, kw int) (op Conv2D, ok bool) {
	p, one := c.Pad, IntsOf(1, 1)
	if c.Stride != one || c.Dilation != one || c.Groups != 1 || max(p.At(0), p.At(2)) >= kh || max(p.At(1), p.At(3)) >= kw {
		return op, false
	}
	return Conv2D{Stride: one, Dilation: one, Groups: 1, Layout: c.Layout, Winograd: c.Winograd,
		Pad: IntsOf(kh-1-p.At(0), kw-1-p.At(1), kh-1-p.At(2), kw-1-p.At(3))}, true
}

// Conv2DFilterGrad is the gradient of [Conv2D] for its filters, which have KH rows and KW columns, from its image x and
// the gradient dy of its result.
type Conv2DFilterGrad struct {
	Stride, Dilation Ints
	Pad              Ints
	Groups           int
	KH, KW           int
	Layout           ImageLayout `attr:"optional"`
}

// Im2Col turns x [N,C,H,W] into patches [N,OH,OW,C·KH·KW], zero where a patch reaches into the padding.
type Im2Col struct{ Kernel, Stride, Dilation, Pad Ints }

// Col2Im is the transpose of Im2Col: it sums patches into an image of height H and width W.
type Col2Im struct {
	Kernel, Stride, Dilation, Pad Ints
	H, W                          int
}

// OpName implements Op.
func (Conv2D) OpName() string { return "conv2d" }

// OpName implements Op.
func (Conv2DTranspose) OpName() string { return "conv2d_transpose" }

// OpName implements Op.
func (Conv2DFilterGrad) OpName() string { return "conv2d_filter_grad" }

// OpName implements Op.
func (Im2Col) OpName() string { return "im2col" }

// OpName implements Op.
func (Col2Im) OpName() string { return "col2im" }

// ImageLayout implements ImageOp.
func (c Conv2D) ImageLayout() ImageLayout { return c.Layout }

// ImageLayout implements ImageOp.
func (c Conv2DTranspose) ImageLayout() ImageLayout { return c.Layout }

// ImageLayout implements ImageOp.
func (c Conv2DFilterGrad) ImageLayout() ImageLayout { return c.Layout }

// InLayout implements ImageOp.
func (c Conv2D) InLayout(l ImageLayout) ImageOp { c.Layout = l; return c }

// InLayout implements ImageOp.
func (c Conv2DTranspose) InLayout(l ImageLayout) ImageOp { c.Layout = l; return c }

// InLayout implements ImageOp.
func (c Conv2DFilterGrad) InLayout(l ImageLayout) ImageOp { c.Layout = l; return c }

// FilterAt implements ImageOp.
func (Conv2D) FilterAt() int { return 1 }

// FilterAt implements ImageOp.
func (Conv2DTranspose) FilterAt() int { return 1 }

// FilterAt implements ImageOp.
func (Conv2DFilterGrad) FilterAt() int { return FiltersOut }

// oneStep is a stride or dilation of 1, and noPad no padding.
var oneStep, noPad = IntsOf(1, 1), IntsOf(0, 0, 0, 0)

// inserts is true of convolutions between whose elements zeros may stand.
func inserts(Op) bool { return true }

var conv2DRow = OpInfo{
	Name: "conv2d", Doc: "two-dimensional convolution", Operands: "x, w", Proto: Conv2D{},
	Class: ClassContraction, Fuses: true, Anchor: AnchorConv, Kind: KindConv, MinArgs: 2, MaxArgs: 2,
	Infer: inferConv2D, FLOPs: flopsConv2D, Lower: lowerConv2D, Grad: gradConv2D, Contracts: factors,
	Skips: func(op Op) bool { return op.(Conv2D).Pad != noPad },
	Usual: func(*Node) Op { return Conv2D{Stride: oneStep, Dilation: oneStep, Pad: noPad, Groups: 1} },
}

var conv2DTransposeRow = OpInfo{
	Name: "conv2d_transpose", Doc: "the image that a convolution leads back to", Operands: "dy, w", Proto: Conv2DTranspose{},
	Class: ClassContraction, Fuses: true, Anchor: AnchorConv, Kind: KindConv, MinArgs: 2, MaxArgs: 2,
	Infer: inferConv2DTranspose, FLOPs: flopsConv2DTranspose, Lower: lowerConv2DTranspose, Grad: gradConv2DTranspose,
	Contracts: factors, Skips: inserts, Usual: func(*Node) Op {
		return Conv2DTranspose{Stride: oneStep, Dilation: oneStep, Pad: noPad, Groups: 1}
	},
}

var conv2DFilterGradRow = OpInfo{
	Name: "conv2d_filter_grad", Doc: "gradient of conv2d for its filters", Operands: "x, dy", Proto: Conv2DFilterGrad{},
	Class: ClassContraction, Kind: KindConv, MinArgs: 2, MaxArgs: 2,
	Infer: inferConv2DFilterGrad, FLOPs: flopsConv2DFilterGrad, Lower: lowerConv2DFilterGrad, Grad: gradConv2DFilterGrad,
	Contracts: factors, Skips: inserts, Usual: func(*Node) Op {
		return Conv2DFilterGrad{Stride: oneStep, Dilation: oneStep, Pad: noPad, Groups: 1}
	},
}

var im2ColRow = OpInfo{
	Name: "im2col", Doc: "the patches of an image as rows", Operands: "x", Proto: Im2Col{}, Class: ClassMove,
	MinArgs: 1, MaxArgs: 1, Infer: inferIm2Col, FLOPs: free, Grad: gradIm2Col, Moves: first,
	Usual: func(*Node) Op { return Im2Col{Stride: oneStep, Dilation: oneStep, Pad: noPad} },
}

var col2ImRow = OpInfo{
	Name: "col2im", Doc: "patches summed into an image", Operands: "cols", Proto: Col2Im{}, Class: ClassMove,
	MinArgs: 1, MaxArgs: 1, Infer: inferCol2Im, FLOPs: perOperand, Grad: gradCol2Im,
	Usual: func(*Node) Op { return Col2Im{Stride: oneStep, Dilation: oneStep, Pad: noPad} },
}

// Conv is the convolution of which op is the transpose.
func (op Conv2DTranspose) Conv() Conv2D {
	return Conv2D{Stride: op.Stride, Dilation: op.Dilation, Pad: op.Pad, Groups: op.Groups, Layout: op.Layout}
}

// Conv is the convolution of whose filters op is the gradient.
func (op Conv2DFilterGrad) Conv() Conv2D {
	return Conv2D{Stride: op.Stride, Dilation: op.Dilation, Pad: op.Pad, Groups: op.Groups, Layout: op.Layout}
}

// The three convolutions are the derivatives of one form, linear in images x, filters w and results y:
//
//	Σ y · Conv2D(x, w) = Σ x · Conv2DTranspose(y, w) = Σ w · Conv2DFilterGrad(x, y)
//
// so each one's gradients are made of the other two.

func gradConv2D(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op, x, w := n.Op.(Conv2D), n.Args[0], n.Args[1]
	if convolvesIntegers(x.Type, w.Type) {
		return nil, fmt.Errorf("conv2d of integers %v and %v has no gradient", x.Type, w.Type)
	}
	_, _, height, width := op.Layout.ImageDims(x.Type.Shape)
	_, _, kh, kw := op.Layout.FilterDims(w.Type.Shape)
	dy := b.CastTo(x.Type.DType, dys[0])
	return []*Node{
		b.Add(Conv2DTranspose{op.Stride, op.Dilation, op.Pad, op.Groups, height, width, op.Layout, 0}, dy, w),
		b.Add(Conv2DFilterGrad{op.Stride, op.Dilation, op.Pad, op.Groups, kh, kw, op.Layout}, x, dy),
	}, nil
}

func gradConv2DTranspose(b *Builder, n *Node, dxs []*Node) ([]*Node, error) {
	op, y, w := n.Op.(Conv2DTranspose), n.Args[0], n.Args[1]
	_, _, kh, kw := op.Layout.FilterDims(w.Type.Shape)
	dx := b.CastTo(y.Type.DType, dxs[0])
	return []*Node{
		b.Add(op.Conv(), dx, w),
		b.Add(Conv2DFilterGrad{op.Stride, op.Dilation, op.Pad, op.Groups, kh, kw, op.Layout}, dx, y),
	}, nil
}

func gradConv2DFilterGrad(b *Builder, n *Node, dws []*Node) ([]*Node, error) {
	op, x, y := n.Op.(Conv2DFilterGrad), n.Args[0], n.Args[1]
	_, _, height, width := op.Layout.ImageDims(x.Type.Shape)
	dw := b.CastTo(x.Type.DType, dws[0])
	return []*Node{
		b.Add(Conv2DTranspose{op.Stride, op.Dilation, op.Pad, op.Groups, height, width, op.Layout, 0}, y, dw),
		b.Add(op.Conv(), x, dw),
	}, nil
}

// convolvesIntegers reports whether a convolution of images x with filters w sums products of integers.
func convolvesIntegers(x, w Type) bool { return x.DType == U8 && w.DType == I8 }

// lowerConv2D rebuilds a convolution of integers in F32, and one on another layout than NCHW.
func lowerConv2D(b *Builder, op Op, args []*Node) []*Node {
	if x, w := args[0], args[1]; convolvesIntegers(x.Type, w.Type) {
		return []*Node{b.Add(op, b.CastTo(F32, x), b.CastTo(F32, w))}
	}
	return lowerImage(b, op, args)
}

// byGroup turns t [N,OH,OW,G·c] into [G,N·OH·OW,c].
func byGroup(b *Builder, t *Node, groups int) *Node {
	s := t.Type.Shape
	return b.Transpose(b.Reshape(t, s.At(0)*s.At(1)*s.At(2), groups, s.At(3)/groups), 1, 0, 2)
}

// lowerConv2DTranspose multiplies dy with the filters to patches, group by group, and sums these into the image.
func lowerConv2DTranspose(b *Builder, o Op, args []*Node) []*Node {
	op, dy, w := o.(Conv2DTranspose), args[0], args[1]
	if op.Layout != NCHW {
		return inNCHW(b, op, args)
	}
	ys, ws, g := dy.Type.Shape, w.Type.Shape, op.Groups
	k := ws.At(1) * ws.At(2) * ws.At(3)
	cols := b.MatMul(byGroup(b, b.Transpose(dy, 0, 2, 3, 1), g), b.Reshape(w, g, ws.At(0)/g, k), false, false)
	cols = b.Reshape(b.Transpose(cols, 1, 0, 2), ys.At(0), ys.At(2), ys.At(3), g*k)
	return []*Node{b.Add(Col2Im{IntsOf(ws.At(2), ws.At(3)), op.Stride, op.Dilation, op.Pad, op.H, op.W}, cols)}
}

// lowerConv2DFilterGrad multiplies dy, transposed, with the patches of x, group by group.
func lowerConv2DFilterGrad(b *Builder, o Op, args []*Node) []*Node {
	op, x, dy := o.(Conv2DFilterGrad), args[0], args[1]
	if op.Layout != NCHW {
		return inNCHW(b, op, args)
	}
	cols := b.Add(Im2Col{IntsOf(op.KH, op.KW), op.Stride, op.Dilation, op.Pad}, x)
	dw := b.MatMul(byGroup(b, b.Transpose(dy, 0, 2, 3, 1), op.Groups), byGroup(b, cols, op.Groups), true, false)
	return []*Node{b.Reshape(dw, dy.Type.Shape.At(1), x.Type.Shape.At(1)/op.Groups, op.KH, op.KW)}
}

func gradIm2Col(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op, s := n.Op.(Im2Col), n.Args[0].Type.Shape
	return []*Node{b.Add(Col2Im{op.Kernel, op.Stride, op.Dilation, op.Pad, s.At(2), s.At(3)}, dys[0])}, nil
}

func gradCol2Im(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op := n.Op.(Col2Im)
	return []*Node{b.Add(Im2Col{op.Kernel, op.Stride, op.Dilation, op.Pad}, dys[0])}, nil
}

// maxWindow bounds the attributes of windows, so that no product of two of them overflows.
const maxWindow = 1 << 30

// window is the number of positions of a window along an axis.
func window(size, lo, hi, kernel, stride, dilation int) (int, error) {
	if kernel < 1 || stride < 1 || dilation < 1 || lo < 0 || hi < 0 || max(kernel, stride, dilation, lo, hi) > maxWindow {
		return 0, fmt.Errorf("window of size %d, stride %d, dilation %d, padding %d and %d is not valid", kernel, stride, dilation, lo,
			hi)
	}
	span := dilation*(kernel-1) + 1
	if size+lo+hi < span {
		return 0, fmt.Errorf("a window of %d does not fit into %d elements with padding %d and %d", span, size, lo, hi)
	}
	return (size+lo+hi-span)/stride + 1, nil
}

// windows2D is the height and width of the result of sliding a window over an image.
func windows2D(h, w int, kernel, stride, dilation, pad Ints) (oh, ow int, err error) {
	if err = wantLens(2, kernel, stride, dilation); err == nil {
		err = wantLens(4, pad)
	}
	if err != nil {
		return
	}
	if oh, err = window(h, pad.At(0), pad.At(2), kernel.At(0), stride.At(0), dilation.At(0)); err != nil {
		return
	}
	ow, err = window(w, pad.At(1), pad.At(3), kernel.At(1), stride.At(1), dilation.At(1))
	return
}

// inferConv checks the types of the operands of a convolution.
func inferConv(args []Type) error {
	if err := wantImages(args); err != nil {
		return err
	}
	return wantContracted(args[0])
}

func inferConv2D(op Op, args []Type) ([]Type, error) {
	integers := convolvesIntegers(args[0], args[1])
	if integers {
		for _, a := range args {
			if err := wantRank(a.Shape, 4); err != nil {
				return nil, err
			}
		}
	} else if err := inferConv(args); err != nil {
		return nil, err
	}
	c, x, w := op.(Conv2D), args[0].Shape, args[1].Shape
	n, channels, height, width := c.Layout.ImageDims(x)
	o, perGroup, kh, kw := c.Layout.FilterDims(w)
	if c.Groups < 1 || channels%c.Groups != 0 || o%c.Groups != 0 || perGroup != channels/c.Groups {
		return nil, fmt.Errorf("channels do not fit: image %v, filters %v, %d groups", x, w, c.Groups)
	}
	oh, ow, err := windows2D(height, width, IntsOf(kh, kw), c.Stride, c.Dilation, c.Pad)
	if err != nil {
		return nil, err
	}
	if c.Winograd != 0 {
		if err := c.winogradOf(args); err != nil {
			return nil, err
		}
	}
	to := args[0].DType.Accumulator()
	if integers {
		to = F32
	}
	return one(args, Type{to, c.Layout.Image(n, o, oh, ow)})
}

func inferConv2DTranspose(op Op, args []Type) ([]Type, error) {
	if err := inferConv(args); err != nil {
		return nil, err
	}
	c, dy, w := op.(Conv2DTranspose), args[0].Shape, args[1].Shape
	n, channels, oh, ow := c.Layout.ImageDims(dy)
	o, perGroup, kh, kw := c.Layout.FilterDims(w)
	if c.Groups < 1 || o%c.Groups != 0 || channels != o {
		return nil, fmt.Errorf("channels do not fit: gradient %v, filters %v, %d groups", dy, w, c.Groups)
	}
	if perGroup > MaxElems/c.Groups {
		return nil, fmt.Errorf("%d groups of %d channels are too large", c.Groups, perGroup)
	}
	if err := c.wantPositions(oh, ow, kh, kw); err != nil {
		return nil, err
	}
	if c.Winograd != 0 {
		forward, ok := c.Forward(kh, kw)
		if !ok {
			return nil, fmt.Errorf("the algorithm of Winograd is for stride and dilation 1, one group and padding of at most 2, not for "+
				"stride %v, dilation %v, %d groups and padding %v", c.Stride, c.Dilation, c.Groups, c.Pad)
		}
		if err := forward.winogradOf(args); err != nil {
			return nil, err
		}
	}
	return one(args, Type{args[0].DType.Accumulator(), c.Layout.Image(n, perGroup*c.Groups, c.H, c.W)})
}

// wantPositions checks that the filters have oh×ow positions on the image.
func (c Conv2DTranspose) wantPositions(oh, ow, kh, kw int) error {
	h, w, err := windows2D(c.H, c.W, IntsOf(kh, kw), c.Stride, c.Dilation, c.Pad)
	if err != nil {
		return err
	}
	if h != oh || w != ow {
		return fmt.Errorf("on an image of %d×%d the filters have %d×%d positions, not %d×%d", c.H, c.W, h, w, oh, ow)
	}
	return nil
}

func inferConv2DFilterGrad(op Op, args []Type) ([]Type, error) {
	if err := inferConv(args); err != nil {
		return nil, err
	}
	c, x, dy := op.(Conv2DFilterGrad), args[0].Shape, args[1].Shape
	n, channels, height, width := c.Layout.ImageDims(x)
	images, o, oh, ow := c.Layout.ImageDims(dy)
	if n != images || c.Groups < 1 || channels%c.Groups != 0 || o%c.Groups != 0 {
		return nil, fmt.Errorf("images or channels do not fit: image %v, gradient %v, %d groups", x, dy, c.Groups)
	}
	t := Conv2DTranspose{c.Stride, c.Dilation, c.Pad, c.Groups, height, width, c.Layout, 0}
	if err := t.wantPositions(oh, ow, c.KH, c.KW); err != nil {
		return nil, err
	}
	return one(args, Type{args[0].DType.Accumulator(), c.Layout.Filters(o, channels/c.Groups, c.KH, c.KW)})
}

func inferIm2Col(op Op, args []Type) ([]Type, error) {
	o, s := op.(Im2Col), args[0].Shape
	if err := wantRank(s, 4); err != nil {
		return nil, err
	}
	oh, ow, err := windows2D(s.At(2), s.At(3), o.Kernel, o.Stride, o.Dilation, o.Pad)
	if err != nil {
		return nil, err
	}
	k := o.Kernel.At(0) * o.Kernel.At(1)
	if s.At(1) > MaxElems/k {
		return nil, fmt.Errorf("patches of %d channels and %v elements are too large", s.At(1), o.Kernel)
	}
	return one(args, args[0].Reshaped(ShapeOf(s.At(0), oh, ow, s.At(1)*k)))
}

func inferCol2Im(op Op, args []Type) ([]Type, error) {
	o, s := op.(Col2Im), args[0].Shape
	if err := wantRank(s, 4); err != nil {
		return nil, err
	}
	oh, ow, err := windows2D(o.H, o.W, o.Kernel, o.Stride, o.Dilation, o.Pad)
	if err != nil {
		return nil, err
	}
	if err := wantSummed(args[0]); err != nil {
		return nil, fmt.Errorf("sums %w", err)
	}
	k := o.Kernel.At(0) * o.Kernel.At(1)
	if s.At(1) != oh || s.At(2) != ow || s.At(3)%k != 0 {
		return nil, fmt.Errorf("patches %v are not those of an image of %d×%d (want [n,%d,%d,%d·c])", s, o.H, o.W, oh, ow, k)
	}
	return one(args, args[0].Reshaped(ShapeOf(s.At(0), s.At(3)/k, o.H, o.W)))
}

func flopsConv2D(op Op, args, out []Type) int64 {
	return flopsConv(op.(Conv2D).Layout, args[1].Shape, out[0])
}

func flopsConv2DTranspose(op Op, args, _ []Type) int64 {
	return flopsConv(op.(Conv2DTranspose).Layout, args[1].Shape, args[0])
}

func flopsConv2DFilterGrad(op Op, args, out []Type) int64 {
	return flopsConv(op.(Conv2DFilterGrad).Layout, out[0].Shape, args[1])
}

// flopsConv is two operations for each element of the convolution's result and of a filter.
func flopsConv(l ImageLayout, filters Shape, y Type) int64 {
	_, perGroup, kh, kw := l.FilterDims(filters)
	return product(2*elems(y), int64(perGroup*kh*kw))
}
