package graph

// gradAttention is one AttentionGrad. The gradient of a mask of numbers, as large as the scores, stands beside it in
// primitives, which go if nobody reads them.
func gradAttention(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op := n.Op.(Attention)
	if op.Page != 0 {
		return gradPaged(b, n, dys)
	}
	lse, dout, dlse := b.Add(Result{Index: 1}, n), dys[0], dys[1]
	if dout == nil {
		dout = b.Broadcast(b.Scalar(n.Type.DType, 0), n.Type.Shape)
	}
	p := partsOf(b, op, n.Args)
	out := p.operand(n)
	dout = p.operand(dout)
	args := append(append([]*Node(nil), n.Args...), out, lse, dout)
	if dlse != nil {
		args = append(args, dlse)
	}
	dq := b.Add(AttentionGrad{op, dlse != nil}, args...)
	grads := make([]*Node, len(n.Args))
	grads[attentionQ] = dq
	grads[attentionK], grads[attentionV] = b.Add(Result{Index: attentionK}, dq), b.Add(Result{Index: attentionV}, dq)
	if op.HasMask {
		if m := n.Args[op.MaskArg()]; m.Type.DType.IsFloat() {
			ds := p.gradScores(p.probabilities(), out, lse, dout, dlse)
			grads[op.MaskArg()] = b.SumTo(ds, m.Type.Shape)
		}
	}
	return grads, nil
}
