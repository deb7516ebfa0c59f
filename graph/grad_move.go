package graph

// The gradient of an operation that moves elements moves them back; elements that were repeated are summed.

func gradReshape(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	return []*Node{b.Reshape(dys[0], n.Args[0].Type.Shape.Slice()...)}, nil
}

// Inverse is the permutation that undoes t.
func (t Transpose) Inverse() []int {
	inverse := make([]int, t.Perm.Len())
	for i := range inverse {
		inverse[t.Perm.At(i)] = i
	}
	return inverse
}

func gradTranspose(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	return []*Node{b.Transpose(dys[0], n.Op.(Transpose).Inverse()...)}, nil
}

func gradBroadcast(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	return []*Node{b.SumTo(dys[0], n.Args[0].Type.Shape)}, nil
}

func gradCopy(_ *Builder, _ *Node, dys []*Node) ([]*Node, error) { return dys, nil }

func gradSlice(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op, x := n.Op.(Slice), n.Args[0]
	return []*Node{b.Add(Unslice{op.Axis, x.Type.Shape.At(op.Axis), op.Step}, dys[0], n.Args[1]), nil}, nil
}

func gradUnslice(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op, x := n.Op.(Unslice), n.Args[0]
	return []*Node{b.Add(Slice{op.Axis, x.Type.Shape.At(op.Axis), op.Step}, dys[0], n.Args[1]), nil}, nil
}

func gradConcat(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	axis := n.Op.(Concat).Axis
	r := make([]*Node, len(n.Args))
	start := 0
	for i, x := range n.Args {
		size := x.Type.Shape.At(axis)
		r[i] = b.Slice(dys[0], axis, start, size, 1)
		start += size
	}
	return r, nil
}

func gradPad(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op, dx := n.Op.(Pad), dys[0]
	for axis := range op.Lo.Len() {
		if op.Lo.At(axis) > 0 || op.Hi.At(axis) > 0 {
			dx = b.Slice(dx, axis, op.Lo.At(axis), n.Args[0].Type.Shape.At(axis), 1)
		}
	}
	return []*Node{dx}, nil
}

func gradIm2Col(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op, s := n.Op.(Im2Col), n.Args[0].Type.Shape
	return []*Node{b.Add(Col2Im{op.Kernel, op.Stride, op.Dilation, op.Pad, s.At(2), s.At(3)}, dys[0])}, nil
}

func gradCol2Im(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op := n.Op.(Col2Im)
	return []*Node{b.Add(Im2Col{op.Kernel, op.Stride, op.Dilation, op.Pad}, dys[0])}, nil
}

func gradGather(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	axis := n.Op.(Gather).Axis
	return []*Node{b.Add(ScatterAdd{axis, n.Args[0].Type.Shape.At(axis)}, n.Args[1], dys[0]), nil}, nil
}

func gradScatterAdd(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	return []*Node{nil, b.Add(Gather{n.Op.(ScatterAdd).Axis}, dys[0], n.Args[0])}, nil
}

// gradDropout drops the same elements: the seed is the same.
func gradDropout(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	return []*Node{b.Add(n.Op, dys[0], n.Args[1]), nil}, nil
}
