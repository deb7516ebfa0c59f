package graph

// gradUnary is what the function's row says.
func gradUnary(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op := n.Op.(Unary)
	return []*Node{op.Fn.Info().Grad(derivative{b, op, n.Args[0], n, dys[0]})}, nil
}

// gradBinary is what the function's row says; the gradient of an operand that stood for all elements is summed.
func gradBinary(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	x, y := n.Args[0], n.Args[1]
	dx, dz := n.Op.(Binary).Fn.Info().Grad(b, n, dys[0])
	if dx != nil {
		dx = b.SumTo(dx, x.Type.Shape)
	}
	return []*Node{dx, b.SumTo(dz, y.Type.Shape)}, nil
}

func gradSelect(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	cond, dy := n.Args[0], dys[0]
	zero := b.Scalar(dy.Type.DType, 0)
	da := b.SumTo(b.Add(Select{}, cond, dy, zero), n.Args[1].Type.Shape)
	db := b.SumTo(b.Add(Select{}, cond, zero, dy), n.Args[2].Type.Shape)
	return []*Node{nil, da, db}, nil
}

func gradCast(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	return []*Node{b.CastTo(n.Args[0].Type.DType.Accumulator(), dys[0])}, nil
}
