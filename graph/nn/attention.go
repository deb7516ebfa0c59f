package nn

import (
	"math"

	"fusec/graph"

	"gorgonia.org/gorgonia"
)

// AttentionOptions are the options and optional operands of an [Attention].
type AttentionOptions struct {
	// Scale is the factor of the scores; 0 is 1/√d, with d the elements of a query.
	Scale float64
	// Causal lets a query attend only to keys up to its own position. The last query is at the position of the last
	// key.
	Causal bool
	// Window w > 0 lets a query attend only to keys less than w positions away.
	Window int
	// Mask, if not nil, has a shape that broadcasts to that of the scores [..., h, sq, sk]. It is added to them, or, if
	// it holds bools, scores where it is false are removed.
	Mask *gorgonia.Node
	// Lengths, if not nil, are integers: the number of valid keys of each batch [...].
	Lengths *gorgonia.Node
	// Tail, with Lengths, puts the last query at the position of the last valid key, as with a key-value cache.
	Tail bool
	// Dropout is the probability with which a weight is dropped in training, drawn from Seed; see [Dropout].
	Dropout float64
	Seed    *gorgonia.Node
}

// Attention is softmax(scale·q·kᵀ + masks)·v (Vaswani et al., arXiv 1706.03762) for q [..., h, sq, d], k [..., hk,
// sk, d] and v [..., hk, sk, dv]; the result is [..., h, sq, dv]. Without further axes there is one head. h is a
// multiple of hk: with fewer heads of keys and values, head i reads those of head i÷(h÷hk) (grouped queries, Ainslie et
// al., arXiv 2305.13245). A query that attends to no key gets zeros.
func Attention(q, k, v *gorgonia.Node, o AttentionOptions) (*gorgonia.Node, error) {
	d := attention{graph.Attention{Scale: o.Scale, Causal: o.Causal, Window: o.Window, Dropout: o.Dropout, Tail: o.Tail,
		HasMask: o.Mask != nil, HasLengths: o.Lengths != nil}}
	operands := []operand{{"q", q}, {"k", k}, {"v", v}}
	if o.Mask != nil {
		operands = append(operands, operand{"mask", o.Mask})
	}
	if o.Lengths != nil {
		operands = append(operands, operand{"lengths", o.Lengths})
	}
	if o.Dropout != 0 {
		operands = append(operands, operand{"seed", o.Seed})
	}
	return apply(d, operands...)
}

type attention struct{ op graph.Attention }

func (d attention) name() string { return single{d.op, "Attention"}.name() }

func (d attention) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	if d.op.Scale == 0 {
		d.op.Scale = 1
		if s := args[0].Type.Shape; s.Rank() > 0 && s.At(s.Rank()-1) > 0 {
			d.op.Scale = 1 / math.Sqrt(float64(s.At(s.Rank()-1)))
		}
	}
	if d.op.Dropout == 0 {
		args = args[:min(len(args), 3+flags(d.op.HasMask, d.op.HasLengths))]
	}
	return b.Add(d.op, args...)
}

// still implements modal.
func (d attention) still() definition {
	d.op.Dropout = 0
	return d
}

func flags(all ...bool) (n int) {
	for _, f := range all {
		if f {
			n++
		}
	}
	return n
}
