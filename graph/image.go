package graph

import "fmt"

// The layout of images in memory is an attribute of the operations on them, not of the type of a value: the shape of a value is
// always that of its memory, and a change of layout is a [Transpose], which all targets, drawings and costs know. NHWC is the
// only layout besides NCHW. Blocks of channels are not used: in NHWC any number of channels is right without padding, a
// convolution is one matrix product with a row-major result, a joining of channels is a write with strides, and depthwise
// convolutions and pools run over vectors of channels.

// Image is the shape of n images of c channels, h rows and w columns in layout l.
func (l ImageLayout) Image(n, c, h, w int) Shape {
	if l == NHWC {
		return ShapeOf(n, h, w, c)
	}
	return ShapeOf(n, c, h, w)
}

// ImageDims is the inverse of [ImageLayout.Image]; s has rank 4.
func (l ImageLayout) ImageDims(s Shape) (n, c, h, w int) {
	if l == NHWC {
		return s.At(0), s.At(3), s.At(1), s.At(2)
	}
	return s.At(0), s.At(1), s.At(2), s.At(3)
}

// Filters is the shape of o filters of c channels, kh rows and kw columns in layout l.
func (l ImageLayout) Filters(o, c, kh, kw int) Shape {
	if l == NHWC {
		return ShapeOf(kh, kw, c, o)
	}
	return ShapeOf(o, c, kh, kw)
}

// FilterDims is the inverse of [ImageLayout.Filters]; s has rank 4.
func (l ImageLayout) FilterDims(s Shape) (o, c, kh, kw int) {
	if l == NHWC {
		return s.At(3), s.At(2), s.At(0), s.At(1)
	}
	return s.At(0), s.At(1), s.At(2), s.At(3)
}

// ImagePerm is the permutation of a [Transpose] that takes images from layout from to layout to.
func ImagePerm(from, to ImageLayout) Ints {
	switch {
	case from == to:
		return IntsOf(0, 1, 2, 3)
	case to == NHWC:
		return IntsOf(0, 2, 3, 1)
	}
	return IntsOf(0, 3, 1, 2)
}

// FilterPerm is the permutation of a [Transpose] that takes filters from layout from to layout to.
func FilterPerm(from, to ImageLayout) Ints {
	switch {
	case from == to:
		return IntsOf(0, 1, 2, 3)
	case to == NHWC:
		return IntsOf(2, 3, 1, 0)
	}
	return IntsOf(3, 2, 0, 1)
}

// An ImageOp is an operation on images whose layout is an attribute: a convolution or a pool. All its operands and its
// result are images, except for the filters of convolutions.
type ImageOp interface {
	Op
	ImageLayout() ImageLayout
	// InLayout is the same operation on images and filters of another layout.
	InLayout(ImageLayout) ImageOp
	// FilterAt is the operand that is filters, [FiltersOut] for the result, or [NoFilters].
	FilterAt() int
}

// What [ImageOp.FilterAt] returns besides an operand.
const (
	FiltersOut = -1
	NoFilters  = -2
)

// OperandPerm is the permutation of a Transpose that takes operand i of op, or with [FiltersOut] its result, from layout
// from to layout to.
func OperandPerm(op ImageOp, i int, from, to ImageLayout) Ints {
	if op.FilterAt() == i {
		return FilterPerm(from, to)
	}
	return ImagePerm(from, to)
}

// inNCHW rebuilds an operation on another layout as that on NCHW between transposes.
func inNCHW(b *Builder, op ImageOp, args []*Node) []*Node {
	from := op.ImageLayout()
	turned := make([]*Node, len(args))
	for i, a := range args {
		turned[i] = b.Add(Transpose{OperandPerm(op, i, from, NCHW)}, a)
	}
	return []*Node{b.Add(Transpose{OperandPerm(op, FiltersOut, NCHW, from)}, b.Add(op.InLayout(NCHW), turned...))}
}

// lowerImage rebuilds an operation on another layout than NCHW.
func lowerImage(b *Builder, op Op, args []*Node) []*Node {
	if op := op.(ImageOp); op.ImageLayout() != NCHW {
		return inNCHW(b, op, args)
	}
	return nil
}

// wantImages checks the types of the operands of an operation on images: rank 4 and one element type.
func wantImages(args []Type) error {
	for _, a := range args {
		if err := wantRank(a.Shape, 4); err != nil {
			return err
		}
		if a.DType != args[0].DType {
			return fmt.Errorf("element types %v and %v differ", args[0].DType, a.DType)
		}
	}
	return nil
}
