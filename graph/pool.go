package graph

import (
	"fmt"
	"math"
	"slices"
)

// Pool takes the maximum or the mean of each window of x [N,C,H,W], or in [NHWC] [N,H,W,C]. Padding counts as −Inf for the maximum.
// For the mean it counts as zeros, and in the divisor, if CountPad is set; else it is ignored.
type Pool struct {
	Fn                  PoolFn
	Kernel, Stride, Pad Ints
	CountPad            bool
	Layout              ImageLayout `attr:"optional"`
}

// PoolGrad is the gradient of Pool for x given dy. If several elements are the maximum, the first gets the gradient.
type PoolGrad struct {
	Fn                  PoolFn
	Kernel, Stride, Pad Ints
	CountPad            bool
	Layout              ImageLayout `attr:"optional"`
}

// OpName implements Op.
func (Pool) OpName() string { return "pool" }

// OpName implements Op.
func (PoolGrad) OpName() string { return "pool_grad" }

// ImageLayout implements ImageOp.
func (p Pool) ImageLayout() ImageLayout { return p.Layout }

// ImageLayout implements ImageOp.
func (p PoolGrad) ImageLayout() ImageLayout { return p.Layout }

// InLayout implements ImageOp.
func (p Pool) InLayout(l ImageLayout) ImageOp { p.Layout = l; return p }

// InLayout implements ImageOp.
func (p PoolGrad) InLayout(l ImageLayout) ImageOp { p.Layout = l; return p }

// FilterAt implements ImageOp.
func (Pool) FilterAt() int { return NoFilters }

// FilterAt implements ImageOp.
func (PoolGrad) FilterAt() int { return NoFilters }

var poolRow = OpInfo{
	Name: "pool", Doc: "maximum or mean of each window", Operands: "x", Proto: Pool{}, Class: ClassReduce,
	Kind: KindPool, MinArgs: 1, MaxArgs: 1, Infer: inferPool, FLOPs: flopsPool,
	Lower: lowerImage, Grad: gradPool, Usual: func(*Node) Op { return Pool{Stride: oneStep, Pad: noPad} },
	Verb: func(op Op) string { return op.(Pool).Fn.String() + "_pool" },
}

var poolGradRow = OpInfo{
	Name: "pool_grad", Doc: "gradient of pool", Operands: "x, dy", Proto: PoolGrad{}, Class: ClassMove,
	Kind: KindPool, MinArgs: 2, MaxArgs: 2, Infer: inferPoolGrad, FLOPs: perOperand,
	Lower: lowerImage, Grad: gradPoolGrad, Usual: func(*Node) Op { return PoolGrad{Stride: oneStep, Pad: noPad} },
	Verb: func(op Op) string { return op.(PoolGrad).Fn.String() + "_pool_grad" },
}

func gradPool(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	return []*Node{b.Add(PoolGrad(n.Op.(Pool)), n.Args[0], dys[0])}, nil
}

// gradPoolGrad is the gradient for dy. For x it is 0 almost everywhere.
func gradPoolGrad(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	return []*Node{nil, n.Op.(PoolGrad).Fn.Info().GradGrad(b, n, dys[0])}, nil
}

// firstMaximum is, of each window, the element of dx at the first maximum of x.
func firstMaximum(b *Builder, n, dx *Node) *Node {
	op, x := n.Op.(PoolGrad), n.Args[0]
	turn := func(t *Node, from, to ImageLayout) *Node {
		if from == to {
			return t
		}
		return b.Add(Transpose{ImagePerm(from, to)}, t)
	}
	x, dx = turn(x, op.Layout, NCHW), turn(dx, op.Layout, NCHW)
	_, _, oh, ow := op.Layout.ImageDims(n.Args[1].Type.Shape)
	s := x.Type.Shape
	k := op.Kernel.At(0) * op.Kernel.At(1)
	// windows is t as [N,OH,OW,C,K], with padding of the given value.
	windows := func(t *Node, pad float64) *Node {
		t = b.Add(Pad{IntsOf(0, 0, op.Pad.At(0), op.Pad.At(1)), IntsOf(0, 0, op.Pad.At(2), op.Pad.At(3)), pad}, t)
		t = b.Add(Im2Col{op.Kernel, op.Stride, IntsOf(1, 1), IntsOf(0, 0, 0, 0)}, t)
		return b.Reshape(t, s.At(0), oh, ow, s.At(1), k)
	}
	xw := windows(x, math.Inf(-1))
	shape, axis := xw.Type.Shape, IntsOf(4)
	places := NewTensor(TypeOf(x.Type.DType, k))
	for i := range k {
		places.SetFloat(i, float64(i))
	}
	place := b.Broadcast(b.Const(places), shape)
	hit := b.Binary(Eq, xw, b.Expand(b.Reduce(MaxOf, xw, true, 4), axis, shape))
	first := b.Reduce(MinOf, b.Add(Select{}, hit, place, b.Scalar(x.Type.DType, float64(k))), true, 4)
	chosen := b.Binary(Eq, place, b.Expand(first, axis, shape))
	r := b.Reduce(Sum, b.Add(Select{}, chosen, windows(dx, 0), b.Scalar(x.Type.DType, 0)), false, 4)
	return turn(r, NHWC, op.Layout)
}

// maxPool bounds the windows of pools that are larger than the image.
const maxPool = 1 << 16

func inferPool(op Op, args []Type) ([]Type, error) {
	p, s := op.(Pool), args[0].Shape
	if p.Fn >= endPool {
		return nil, fmt.Errorf("unknown pool %d", p.Fn)
	}
	if err := wantFloat(args[0]); err != nil && !(args[0].DType.Is16() && p.Fn == MaxPool) {
		return nil, err
	}
	if err := wantRank(s, 4); err != nil {
		return nil, err
	}
	n, c, h, w := p.Layout.ImageDims(s)
	oh, ow, err := windows2D(h, w, p.Kernel, p.Stride, IntsOf(1, 1), p.Pad)
	if err != nil {
		return nil, err
	}
	for i := range 2 { // kernels keep data for each row and column of a window
		if k, size := p.Kernel.At(i), [2]int{h, w}[i]; k > max(maxPool, size) {
			return nil, fmt.Errorf("a window of %d is larger than the image, of %d, and than %d", k, size, maxPool)
		}
	}
	return one(args, args[0].Reshaped(p.Layout.Image(n, c, oh, ow)))
}

func inferPoolGrad(op Op, args []Type) ([]Type, error) {
	y, err := inferPool(Pool(op.(PoolGrad)), slices.Clip(args[:1]))
	if err != nil {
		return nil, err
	}
	if dy := y[0].Accumulator(); dy != args[1] {
		return nil, fmt.Errorf("dy is %v, not %v", args[1], dy)
	}
	return []Type{args[0].Accumulator()}, nil
}

func flopsPool(op Op, _, out []Type) int64 {
	k := op.(Pool).Kernel
	return product(elems(out[0]), int64(k.At(0)*k.At(1)))
}
