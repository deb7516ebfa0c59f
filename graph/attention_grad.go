package graph

import (
	"fmt"
	"math"
)

var attentionGradRow = OpInfo{
	Name: "attention_grad", Doc: "gradient of attention, from its results; results dq, dk, dv",
	Operands: "q, k, v, mask?, lengths?, seed?, out, lse, dout, dlse?", Proto: AttentionGrad{},
	Class: ClassComposite, Fuses: true, Anchor: AnchorAttention, Kind: KindAttention, MinArgs: 6, MaxArgs: 10,
	Infer: inferAttentionGrad, FLOPs: flopsAttentionGrad, Decompose: decomposeAttentionGrad,
	Contracts: func(op Op, i int) bool {
		g := op.(AttentionGrad)
		return i < attentionOptional || i == g.OutArg() || i == g.DOutArg()
	},
	Usual: func(n *Node) Op { return AttentionGrad{Attention: usualAttention(n)} },
}

// AttentionGrad is the gradient of an Attention of the same attributes: results 0, 1 and 2 are those for q, k and v.
// Its operands are those of the attention, as [Attention] lists them; then out and lse, the attention's results; dout,
// the gradient of out; and dlse, the gradient of lse, if HasDlse is set.
//
// Scores and probabilities are not operands: they are computed again. With s the masked scores (Dao et al., arXiv
// 2205.14135, appendix B.4)
//
//	P = softmax(s),  Δ = Σ dout⊙out by rows
//	dv = drop(P)ᵀ·dout
//	ds = P ⊙ (drop(dout·vᵀ) − Δ + dlse)
//	dq = Scale·ds·k,  dk = Scale·dsᵀ·q
//
// A query that attends to no key, whose lse is −Inf, adds nothing to any gradient. Heads that share keys and values add
// to the same dk and dv. The gradient of a mask is ds, which is as large as the scores. It is not a result of this
// operation.
//
// lse follows from the scores. It is an operand so that a kernel need not sum again, because P = exp(s − lse). Where
// |lse| is large, as in a row that a finite mask moves to −1e9, its precision does not suffice for the logarithm of the
// sum. P is the softmax there, too.
//
// Where q, k and v are of a 16-bit type, so are out and dout; lse, dlse and the results are F32.
type AttentionGrad struct {
	Attention
	HasDlse bool
}

// OpName implements Op.
func (AttentionGrad) OpName() string { return "attention_grad" }

// Indices of the operands after those of the attention, counted from [AttentionGrad.OutArg].
const (
	gradOut = iota
	gradLSE
	gradDOut
	gradDLSE
)

// OutArg is the index of the operand out.
func (a AttentionGrad) OutArg() int { return a.Attention.operands() + gradOut }

// LSEArg is the index of the operand lse.
func (a AttentionGrad) LSEArg() int { return a.OutArg() + gradLSE }

// DOutArg is the index of the operand dout.
func (a AttentionGrad) DOutArg() int { return a.OutArg() + gradDOut }

// DLSEArg is the index of the operand dlse, -1 if there is none.
func (a AttentionGrad) DLSEArg() int {
	if !a.HasDlse {
		return -1
	}
	return a.OutArg() + gradDLSE
}

func inferAttentionGrad(op Op, args []Type) ([]Type, error) {
	a := op.(AttentionGrad)
	if a.Page != 0 {
		return nil, fmt.Errorf("keys in pages have no gradient except through gather")
	}
	if a.HasScales {
		return nil, fmt.Errorf("keys and values of few bits have no gradient")
	}
	first := a.OutArg()
	if want := first + gradDLSE + count(a.HasDlse); len(args) != want {
		return nil, fmt.Errorf("needs %d operands with these attributes, not %d", want, len(args))
	}
	results, err := inferAttention(a.Attention, args[:first])
	if err != nil {
		return nil, err
	}
	for i, name := range []string{"out", "lse", "dout", "dlse"}[:len(args)-first] {
		want := results[i%2]
		if i%2 == 0 {
			want.DType = args[attentionQ].DType
		}
		if args[first+i] != want {
			return nil, fmt.Errorf("%s is %v, not %v", name, args[first+i], want)
		}
	}
	return accumulators(args[:attentionOptional]), nil
}

// flopsAttentionGrad counts pairs as flopsAttention does: scores and probabilities again, and four further products.
func flopsAttentionGrad(op Op, args, _ []Type) int64 {
	a := op.(AttentionGrad)
	d := a.Dims(args[attentionQ].Shape, args[attentionK].Shape, args[attentionV].Shape)
	return a.work(d, 6*d.Depth+4*d.Width)
}

func decomposeAttentionGrad(b *Builder, op Op, args []*Node) []*Node {
	a := op.(AttentionGrad)
	p := partsOf(b, a.Attention, args)
	var dlse *Node
	if i := a.DLSEArg(); i >= 0 {
		dlse = args[i]
	}
	lse, dout := args[a.LSEArg()], args[a.DOutArg()]
	prob, _ := p.weights()
	dv := b.MatMul(p.grouped(p.operand(p.dropped(prob))), p.grouped(dout), true, false)
	ds := p.gradScores(prob, args[a.OutArg()], lse, dout, dlse)
	ds = p.grouped(p.operand(b.BinaryScalar(Mul, ds, a.Scale)))
	dq := p.heads(b.MatMul(ds, args[attentionK], false, false))
	return []*Node{dq, b.MatMul(ds, p.grouped(args[attentionQ]), true, false), dv}
}

// column repeats x, which has one element for each query, along the keys.
func (p attentionParts) column(x *Node) *Node {
	rows := p.s.With(p.s.Rank()-1, 1).Slice()
	return p.b.Broadcast(p.b.Reshape(x, rows...), p.s)
}

// attending is x with 0 for the queries that attend to no key.
func (p attentionParts) attending(lse, x *Node) *Node {
	b := p.b
	return b.Add(Select{}, b.BinaryScalar(Eq, lse, math.Inf(-1)), b.Scalar(x.Type.DType, 0), x)
}

// probabilities are the softmax of the scores, before dropout.
func (p attentionParts) probabilities() *Node {
	return p.b.Add(Softmax{Axis: p.s.Rank() - 1}, p.scores())
}

// gradScores is the gradient of the masked scores. dlse may be nil.
func (p attentionParts) gradScores(prob, out, lse, dout, dlse *Node) *Node {
	b := p.b
	wide := lse.Type.DType
	delta := b.Reduce(Sum, b.Binary(Mul, b.CastTo(wide, dout), b.CastTo(wide, out)), false, p.s.Rank()-1)
	if dlse != nil {
		delta = b.Binary(Sub, delta, dlse)
	}
	d := p.dropped(p.heads(b.MatMul(p.grouped(dout), p.args[attentionV], false, true)))
	return b.Binary(Mul, prob, b.Binary(Sub, d, p.column(p.attending(lse, delta))))
}
