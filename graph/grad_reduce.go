package graph

import "math"

func gradReduce(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op, x := n.Op.(Reduce), n.Args[0]
	s := x.Type.Shape
	expand := func(t *Node) *Node { return b.Expand(t, op.Axes, s) }
	dy := expand(dys[0])
	switch op.Fn {
	case Mean:
		dy = b.BinaryScalar(Mul, dy, float64(n.Type.Shape.Elems())/float64(s.Elems()))
	case Prod:
		dy = b.Binary(Mul, dy, otherFactors(b, op, x))
	case MaxOf, MinOf:
		hit := b.Add(Cast{x.Type.DType}, b.Binary(Eq, x, expand(n)))
		count := b.Add(Reduce{Sum, op.Axes, op.Keep}, hit)
		dy = b.Binary(Mul, hit, b.Binary(Div, dy, expand(count)))
	}
	return []*Node{dy}, nil
}

// otherFactors is, for each element of x, the product of the others that a Prod multiplies it with. It divides only by
// factors other than 0: where no other factor is 0, it is the product of all that are not 0, by the element itself if
// that is not 0. Its own derivative is right where no factor is 0.
func otherFactors(b *Builder, op Reduce, x *Node) *Node {
	d, s := x.Type.DType, x.Type.Shape
	zero := b.BinaryScalar(Eq, x, 0)
	safe := b.Add(Select{}, zero, b.Scalar(d, 1), x)
	product := b.Expand(b.Add(Reduce{Prod, op.Axes, true}, safe), op.Axes, s)
	isZero := b.Add(Cast{d}, zero)
	zeros := b.Expand(b.Add(Reduce{Sum, op.Axes, true}, isZero), op.Axes, s)
	noOther := b.Binary(Eq, zeros, isZero)
	return b.Add(Select{}, noOther, b.Binary(Div, product, safe), b.Scalar(d, 0))
}

func gradPool(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	return []*Node{b.Add(PoolGrad(n.Op.(Pool)), n.Args[0], dys[0])}, nil
}

// gradPoolGrad is the gradient for dy of PoolGrad(x, dy), which is linear in it: the mean of the windows, or what stands
// where each window has its first maximum. For x it is 0 almost everywhere.
func gradPoolGrad(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op, x, dx := n.Op.(PoolGrad), n.Args[0], dys[0]
	if op.Fn == AvgPool {
		return []*Node{nil, b.Add(Pool(op), dx)}, nil
	}
	s, ys := x.Type.Shape, n.Args[1].Type.Shape
	k := op.Kernel.At(0) * op.Kernel.At(1)
	// windows is t as [N,OH,OW,C,K], with padding of the given value.
	windows := func(t *Node, pad float64) *Node {
		t = b.Add(Pad{IntsOf(0, 0, op.Pad.At(0), op.Pad.At(1)), IntsOf(0, 0, op.Pad.At(2), op.Pad.At(3)), pad}, t)
		t = b.Add(Im2Col{op.Kernel, op.Stride, IntsOf(1, 1), IntsOf(0, 0, 0, 0)}, t)
		return b.Reshape(t, s.At(0), ys.At(2), ys.At(3), s.At(1), k)
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
	return []*Node{nil, b.Transpose(r, 0, 3, 1, 2)}, nil
}
