package graph

import "fmt"

// Conv2D convolves x [N,C,H,W] with w [O,C/Groups,KH,KW] (cross-correlation, as usual in machine learning). Pad is top,
// left, bottom, right; Stride and Dilation are vertical, horizontal.
type Conv2D struct {
	Stride, Dilation Ints
	Pad              Ints
	Groups           int
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
func (Im2Col) OpName() string { return "im2col" }

// OpName implements Op.
func (Col2Im) OpName() string { return "col2im" }

var conv2DRow = OpInfo{
	Name: "conv2d", Doc: "two-dimensional convolution, NCHW", Operands: "x, w", Proto: Conv2D{},
	Class: ClassContraction, Fuses: true, Anchor: AnchorConv, Kind: KindConv, MinArgs: 2, MaxArgs: 2,
	Infer: inferConv2D, FLOPs: flopsConv2D, Grad: gradConv2D,
}

var im2ColRow = OpInfo{
	Name: "im2col", Doc: "the patches of an image as rows", Operands: "x", Proto: Im2Col{}, Class: ClassMove,
	MinArgs: 1, MaxArgs: 1, Infer: inferIm2Col, FLOPs: free, Grad: gradIm2Col,
}

var col2ImRow = OpInfo{
	Name: "col2im", Doc: "patches summed into an image", Operands: "cols", Proto: Col2Im{}, Class: ClassMove,
	MinArgs: 1, MaxArgs: 1, Infer: inferCol2Im, FLOPs: perOperand, Grad: gradCol2Im,
}

// gradConv2D uses patches, with P = N·OH·OW positions, G groups and K = C/G·KH·KW elements per patch:
//
//	dw [G,O/G,K] = Σ over P of dy [G,P,O/G] ⊗ patches of x [G,P,K]
//	dx           = patches dy·w [G,P,K], summed into the image
func gradConv2D(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op, x, w := n.Op.(Conv2D), n.Args[0], n.Args[1]
	xs, ws, ys := x.Type.Shape, w.Type.Shape, n.Type.Shape
	kernel := IntsOf(ws.At(2), ws.At(3))
	g := op.Groups
	p, o, k := ys.At(0)*ys.At(2)*ys.At(3), ws.At(0)/g, ws.At(1)*ws.At(2)*ws.At(3)

	// grouped turns [N,OH,OW,G·c] into [G,P,c], and ungrouped back.
	grouped := func(t *Node, c int) *Node { return b.Transpose(b.Reshape(t, p, g, c), 1, 0, 2) }
	ungrouped := func(t *Node, c int) *Node {
		return b.Reshape(b.Transpose(t, 1, 0, 2), ys.At(0), ys.At(2), ys.At(3), g*c)
	}
	dy := grouped(b.Transpose(b.CastTo(x.Type.DType, dys[0]), 0, 2, 3, 1), o)
	cols := grouped(b.Add(Im2Col{kernel, op.Stride, op.Dilation, op.Pad}, x), k)
	dw := b.Reshape(b.MatMul(dy, cols, true, false), ws.Slice()...)
	dcols := ungrouped(b.MatMul(dy, b.Reshape(w, g, o, k), false, false), k)
	dx := b.Add(Col2Im{kernel, op.Stride, op.Dilation, op.Pad, xs.At(2), xs.At(3)}, dcols)
	return []*Node{dx, dw}, nil
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
		return 0, fmt.Errorf("window of size %d, stride %d, dilation %d, padding %d and %d is not valid", kernel, stride, dilation, lo, hi)
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

func inferConv2D(op Op, args []Type) ([]Type, error) {
	c, x, w := op.(Conv2D), args[0].Shape, args[1].Shape
	if err := wantRank(x, 4); err != nil {
		return nil, err
	}
	if err := wantRank(w, 4); err != nil {
		return nil, err
	}
	if args[0].DType != args[1].DType {
		return nil, fmt.Errorf("element types %v and %v differ", args[0].DType, args[1].DType)
	}
	if err := wantContracted(args[0]); err != nil {
		return nil, err
	}
	if c.Groups < 1 || x.At(1)%c.Groups != 0 || w.At(0)%c.Groups != 0 || w.At(1) != x.At(1)/c.Groups {
		return nil, fmt.Errorf("channels do not fit: image %v, filters %v, %d groups", x, w, c.Groups)
	}
	oh, ow, err := windows2D(x.At(2), x.At(3), IntsOf(w.At(2), w.At(3)), c.Stride, c.Dilation, c.Pad)
	if err != nil {
		return nil, err
	}
	return one(args, TypeOf(args[0].DType.Accumulator(), x.At(0), w.At(0), oh, ow))
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

func flopsConv2D(_ Op, args, out []Type) int64 {
	w := args[1].Shape
	return product(2*elems(out[0]), int64(w.At(1)*w.At(2)*w.At(3)))
}
