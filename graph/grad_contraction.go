package graph

// gradMatMul gives, for y = a·b, da = dy·bᵀ and db = aᵀ·dy, each transposed if the operand was, and summed over the
// batches that an operand stood for.
func gradMatMul(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op, x, y := n.Op.(MatMul), n.Args[0], n.Args[1]
	dy := b.CastTo(x.Type.DType, dys[0])
	if s := x.Type.Shape; y.Type.Shape.Rank() == 2 && s.Rank() > 2 && !op.TransA {
		return gradLinear(b, op, x, y, dy), nil
	}
	var dx, dz *Node
	if op.TransA {
		dx = b.MatMul(y, dy, op.TransB, true)
	} else {
		dx = b.MatMul(dy, y, false, !op.TransB)
	}
	if op.TransB {
		dz = b.MatMul(dy, x, true, op.TransA)
	} else {
		dz = b.MatMul(x, dy, !op.TransA, false)
	}
	return []*Node{b.SumTo(dx, x.Type.Shape), b.SumTo(dz, y.Type.Shape)}, nil
}

// gradLinear is the gradient of x [..., m, k] by one matrix: the batches are rows, so that the matrix's gradient is
// one product and no sum over batches.
func gradLinear(b *Builder, op MatMul, x, w, dy *Node) []*Node {
	flat := func(n *Node) *Node {
		s := n.Type.Shape
		last := s.At(s.Rank() - 1)
		rows := 1
		for i := range s.Rank() - 1 {
			rows *= s.At(i)
		}
		return b.Reshape(n, rows, last)
	}
	dx := b.MatMul(dy, w, false, !op.TransB)
	if op.TransB {
		return []*Node{dx, b.MatMul(flat(dy), flat(x), true, false)}
	}
	return []*Node{dx, b.MatMul(flat(x), flat(dy), true, false)}
}

// gradConv2D goes by way of patches, with P = N·OH·OW positions, G groups and K = C/G·KH·KW elements per patch:
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
