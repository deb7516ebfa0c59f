package graph

// gradSoftmax gives dx = y⊙(dy − Σ dy⊙y).
func gradSoftmax(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	axis, dy := n.Op.(Softmax).Axis, dys[0]
	sum := b.Reduce(Sum, b.Binary(Mul, dy, n), true, axis)
	return []*Node{b.Binary(Mul, n, b.Binary(Sub, dy, b.Broadcast(sum, n.Type.Shape)))}, nil
}

// gradLogSoftmax gives dx = dy − exp(y)·Σ dy.
func gradLogSoftmax(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	axis, dy := n.Op.(LogSoftmax).Axis, dys[0]
	sum := b.Reduce(Sum, dy, true, axis)
	return []*Node{b.Binary(Sub, dy, b.Binary(Mul, b.Unary(Exp, n), b.Broadcast(sum, n.Type.Shape)))}, nil
}

// standardised is x̂ = (x − mean)·r along axes, with r = 1/√(variance + eps), or, uncentred, x·r with r = 1/√(mean of
// squares + eps). It returns x̂ and r, the latter in x's shape.
func standardised(b *Builder, x *Node, eps float64, centred bool, axes ...int) (xhat, r *Node) {
	s := x.Type.Shape
	if centred {
		x = b.Binary(Sub, x, b.Broadcast(b.Reduce(Mean, x, true, axes...), s))
	}
	v := b.Reduce(Mean, b.Unary(Square, x), true, axes...)
	r = b.Broadcast(b.Unary(Rsqrt, b.BinaryScalar(Add, v, eps)), s)
	return b.Binary(Mul, x, r), r
}

// gradStandardised is the gradient of x for the gradient g of x̂: r·(g − mean g − x̂·mean(g⊙x̂)), uncentred without
// the mean of g.
func gradStandardised(b *Builder, xhat, r, g *Node, centred bool, axes ...int) *Node {
	s := xhat.Type.Shape
	along := b.Broadcast(b.Reduce(Mean, b.Binary(Mul, g, xhat), true, axes...), s)
	d := b.Binary(Sub, g, b.Binary(Mul, xhat, along))
	if centred {
		d = b.Binary(Sub, d, b.Broadcast(b.Reduce(Mean, g, true, axes...), s))
	}
	return b.Binary(Mul, r, d)
}

func gradLayerNorm(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	x, gamma, dy := n.Args[0], n.Args[1], dys[0]
	s := x.Type.Shape
	last := s.Rank() - 1
	xhat, r := standardised(b, x, n.Op.(LayerNorm).Eps, true, last)
	dx := gradStandardised(b, xhat, r, b.Binary(Mul, dy, b.Broadcast(gamma, s)), true, last)
	return []*Node{dx, b.SumTo(b.Binary(Mul, dy, xhat), gamma.Type.Shape), b.SumTo(dy, gamma.Type.Shape)}, nil
}

func gradRMSNorm(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	x, gamma, dy := n.Args[0], n.Args[1], dys[0]
	s := x.Type.Shape
	last := s.Rank() - 1
	xhat, r := standardised(b, x, n.Op.(RMSNorm).Eps, false, last)
	dx := gradStandardised(b, xhat, r, b.Binary(Mul, dy, b.Broadcast(gamma, s)), false, last)
	return []*Node{dx, b.SumTo(b.Binary(Mul, dy, xhat), gamma.Type.Shape)}, nil
}

// otherAxes are the axes of [n,c,...] without that of the channels.
func otherAxes(s Shape) []int {
	var axes []int
	for i := range s.Rank() {
		if i != 1 {
			axes = append(axes, i)
		}
	}
	return axes
}

// gradBatchNorm is the gradient through the first result. The running statistics, as operands and as results, carry
// none.
func gradBatchNorm(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op, x, gamma, dy := n.Op.(BatchNorm), n.Args[0], n.Args[1], dys[0]
	if dy == nil {
		return make([]*Node, len(n.Args)), nil
	}
	s := x.Type.Shape
	axes := otherAxes(s)
	g := b.Binary(Mul, dy, perChannel(b, gamma, s))
	var xhat, dx *Node
	if op.Train {
		var r *Node
		xhat, r = standardised(b, x, op.Eps, true, axes...)
		dx = gradStandardised(b, xhat, r, g, true, axes...)
	} else {
		r := perChannel(b, b.Unary(Rsqrt, b.BinaryScalar(Add, n.Args[4], op.Eps)), s)
		xhat = b.Binary(Mul, b.Binary(Sub, x, perChannel(b, n.Args[3], s)), r)
		dx = b.Binary(Mul, g, r)
	}
	dgamma := b.Reduce(Sum, b.Binary(Mul, dy, xhat), false, axes...)
	return []*Node{dx, dgamma, b.Reduce(Sum, dy, false, axes...), nil, nil}, nil
}

func gradGroupNorm(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op, x, gamma, dy := n.Op.(GroupNorm), n.Args[0], n.Args[1], dys[0]
	s := x.Type.Shape
	grouped := func(t *Node) *Node {
		return b.Reshape(t, s.At(0), op.Groups, s.Elems()/max(s.At(0)*op.Groups, 1))
	}
	xhat, r := standardised(b, grouped(x), op.Eps, true, 2)
	g := grouped(b.Binary(Mul, dy, perChannel(b, gamma, s)))
	dx := b.Reshape(gradStandardised(b, xhat, r, g, true, 2), s.Slice()...)
	axes := otherAxes(s)
	dgamma := b.Reduce(Sum, b.Binary(Mul, dy, b.Reshape(xhat, s.Slice()...)), false, axes...)
	return []*Node{dx, dgamma, b.Reduce(Sum, dy, false, axes...)}, nil
}
