package graph

import "math"

// gradAttention recomputes the probabilities from the log-sum-exp (Dao et al., arXiv 2205.14135, appendix B.4): with
// s the masked scores, P = exp(s − lse), O = drop(P)·v and Δ = Σ dO⊙O by rows,
//
//	dv = drop(P)ᵀ·dO
//	ds = P ⊙ (drop(dO·vᵀ) − Δ + dlse)
//	dq = Scale·ds·k,  dk = Scale·dsᵀ·q,  dmask = ds
//
// It never passes through the maximum, whose gradient cancels, nor through the logarithm of an empty sum.
func gradAttention(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	p := partsOf(b, n.Op, n.Args)
	s, dtype := p.s, n.Type.DType
	q, k, v := n.Args[attentionQ], n.Args[attentionK], n.Args[attentionV]
	rows := s.With(s.Rank()-1, 1).Slice()
	column := func(x *Node) *Node { return b.Broadcast(b.Reshape(x, rows...), s) }

	lse := b.Add(Result{Index: 1}, n)
	lse = b.Add(Select{}, b.BinaryScalar(Eq, lse, math.Inf(-1)), b.Scalar(dtype, 0), lse)
	prob := b.Unary(Exp, b.Binary(Sub, p.scores(), column(lse)))

	grads := make([]*Node, len(n.Args))
	var d *Node // of each score, before the factor prob
	if dy := dys[0]; dy != nil {
		gy := p.grouped(dy)
		grads[attentionV] = b.MatMul(p.grouped(p.dropped(prob)), gy, true, false)
		delta := b.Reduce(Sum, b.Binary(Mul, dy, n), false, s.Rank()-1)
		d = b.Binary(Sub, p.dropped(p.heads(b.MatMul(gy, v, false, true))), column(delta))
	}
	if dl := dys[1]; dl != nil {
		if c := column(dl); d == nil {
			d = c
		} else {
			d = b.Binary(Add, d, c)
		}
	}
	ds := b.Binary(Mul, prob, d)
	if p.op.HasMask {
		if m := n.Args[p.op.MaskArg()]; m.Type.DType != Bool {
			grads[p.op.MaskArg()] = b.SumTo(ds, m.Type.Shape)
		}
	}
	ds = p.grouped(b.BinaryScalar(Mul, ds, p.op.Scale))
	grads[attentionQ] = p.heads(b.MatMul(ds, k, false, false))
	grads[attentionK] = b.MatMul(ds, p.grouped(q), true, false)
	return grads, nil
}
