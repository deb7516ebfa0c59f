package graph

import (
	"errors"
	"fmt"
	"math"
)

// SeparableConv2D is a depthwise convolution of images x [N,H,W,C], in [NHWC], and the convolution of 1×1 that follows it, which
// makes O channels of E. Each of the E channels is convolved with a filter of its own, bias is added, and what results is kept
// between Low and High:
//
//	x ─► depthwise [KH,KW,1,E] ─► + bias [E] ─► Low, High ─► pointwise [1,1,E,O] ─► y [N,OH,OW,O]
//
// With two more operands, a convolution of 1×1 comes first, which makes the E channels of C:
//
//	x ─► expand [1,1,C,E] ─► + expandBias [E] ─► Low, High ─► depthwise ─► …
//
// Otherwise E is C. Stride, Dilation and Pad are those of the depthwise convolution; see [Conv2D]. Bounds may be infinite. The
// first form is the building block of A. Howard et al., "MobileNets", arXiv 1704.04861; the second is the inverted residual of M.
// Sandler et al., "MobileNetV2", arXiv 1801.04381, without what follows its last convolution.
type SeparableConv2D struct {
	Stride, Dilation Ints
	Pad              Ints
	Low, High        float64
}

// OpName implements Op.
func (SeparableConv2D) OpName() string { return "separable_conv2d" }

// The operands of a SeparableConv2D. The last two may be missing.
const (
	SeparableImage = iota
	SeparableDepthwise
	SeparableBias
	SeparablePointwise
	SeparableExpand
	SeparableExpandBias
	separableArgs
)

var separableConv2DRow = OpInfo{
	Name: "separable_conv2d", Doc: "a depthwise convolution between convolutions of 1×1",
	Operands: "x, depthwise, bias, pointwise, expand, expandBias", Proto: SeparableConv2D{},
	Class: ClassComposite, Fuses: true, Anchor: AnchorConv, Kind: KindConv, MinArgs: SeparableExpand, MaxArgs: separableArgs,
	Infer: inferSeparable, FLOPs: flopsSeparable, Decompose: decomposeSeparable, Lower: decomposeSeparable,
	Skips: func(op Op) bool { return op.(SeparableConv2D).Pad != noPad },
	Usual: func(*Node) Op { return SeparableConv2D{Stride: oneStep, Dilation: oneStep, Pad: noPad} },
}

// pointwise is the convolution of 1×1 in NHWC.
var pointwise = Conv2D{Stride: IntsOf(1, 1), Dilation: IntsOf(1, 1), Pad: IntsOf(0, 0, 0, 0), Groups: 1, Layout: NHWC}

// depthwise is the convolution in the middle.
func (o SeparableConv2D) depthwise(channels int) Conv2D {
	return Conv2D{Stride: o.Stride, Dilation: o.Dilation, Pad: o.Pad, Groups: channels, Layout: NHWC}
}

func inferSeparable(op Op, args []Type) ([]Type, error) {
	o := op.(SeparableConv2D)
	if math.IsNaN(o.Low) || math.IsNaN(o.High) || o.Low > o.High {
		return nil, fmt.Errorf("bounds %v and %v", o.Low, o.High)
	}
	if err := wantFloat(args[0]); err != nil {
		return nil, err
	}
	x, filters := args[SeparableImage], args[SeparableDepthwise]
	switch len(args) {
	case separableArgs:
		expand := args[SeparableExpand]
		y, err := inferConv2D(pointwise, []Type{x, expand})
		if err != nil {
			return nil, fmt.Errorf("expand: %w", err)
		}
		if expand.Shape.At(0)*expand.Shape.At(1) != 1 {
			return nil, fmt.Errorf("expand: filters %v are not of 1×1", expand.Shape)
		}
		if err := wantVectors(x.DType, expand.Shape.At(3), args[SeparableExpandBias:]); err != nil {
			return nil, fmt.Errorf("the bias of expand: %w", err)
		}
		x = y[0]
	case SeparableExpand:
	default:
		return nil, errors.New("filters of expand without a bias")
	}
	if err := wantImages([]Type{x, filters}); err != nil {
		return nil, fmt.Errorf("depthwise: %w", err)
	}
	channels := x.Shape.At(3)
	if channels == 0 {
		return nil, errors.New("depthwise: no channels")
	}
	y, err := inferConv2D(o.depthwise(channels), []Type{x, filters})
	if err != nil {
		return nil, fmt.Errorf("depthwise: %w", err)
	}
	if filters.Shape.At(3) != channels {
		return nil, fmt.Errorf("depthwise: %d filters for %d channels", filters.Shape.At(3), channels)
	}
	if err := wantVectors(x.DType, channels, args[SeparableBias:SeparablePointwise]); err != nil {
		return nil, fmt.Errorf("the bias of depthwise: %w", err)
	}
	last := args[SeparablePointwise]
	if y, err = inferConv2D(pointwise, []Type{y[0], last}); err != nil {
		return nil, fmt.Errorf("pointwise: %w", err)
	}
	if last.Shape.At(0)*last.Shape.At(1) != 1 {
		return nil, fmt.Errorf("pointwise: filters %v are not of 1×1", last.Shape)
	}
	return y, nil
}

func flopsSeparable(_ Op, args, out []Type) int64 {
	pixels := elems(out[0]) / max(int64(out[0].Shape.At(3)), 1)
	f := args[SeparableDepthwise].Shape
	sum := product(2*pixels, int64(f.Elems()+args[SeparablePointwise].Shape.Elems()))
	if len(args) == separableArgs {
		x := args[SeparableImage].Shape
		sum += product(2*int64(x.At(0)*x.At(1)*x.At(2)), int64(args[SeparableExpand].Shape.Elems()))
	}
	return sum
}

func decomposeSeparable(b *Builder, op Op, args []*Node) []*Node {
	o, x := op.(SeparableConv2D), args[SeparableImage]
	bounded := func(y, bias *Node) *Node {
		y = b.Binary(Add, y, b.Broadcast(bias, y.Type.Shape))
		if !math.IsInf(o.Low, -1) {
			y = b.BinaryScalar(Max, y, o.Low)
		}
		if !math.IsInf(o.High, 1) {
			y = b.BinaryScalar(Min, y, o.High)
		}
		return y
	}
	if len(args) == separableArgs {
		x = bounded(b.Add(pointwise, x, args[SeparableExpand]), args[SeparableExpandBias])
	}
	x = bounded(b.Add(o.depthwise(x.Type.Shape.At(3)), x, args[SeparableDepthwise]), args[SeparableBias])
	return []*Node{b.Add(pointwise, x, args[SeparablePointwise])}
}
