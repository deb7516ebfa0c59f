// Package attention recognises attention by its two contractions around a softmax and puts one Attention in their place:
//
//	q ─ [⊙ c] ─┐
//	           matmul ─ [⊙ c] ─ [+ mask] ─ softmax ─ [dropout] ─┐               q ─┐
//	k ─ [⊙ c] ─┘                                                matmul ─►       k ─ attention ─►
//	                                                       v ───┘               v ─┘
//
// The two contractions decide that it is an attention. The work around and between them is then absorbed:
//
//   - Scales, as products or quotients by constants of the scores, of q, of k, or of several of these, become Scale. A
//     scalar that is known at run time only goes to q, which is smaller than the scores.
//   - Masks that are added, subtracted or selected by become Causal, Window and lengths where they are constant and
//     these express them, and one operand otherwise: see [scoreMask].
//   - Dropout of the probabilities becomes Dropout. It numbers elements in row-major order, as an Attention does.
//   - Views stay outside, as strides. Those that only regroup the rows of the scores vanish, and so do repetitions of
//     the keys and values for a group of heads: see [operand].
//   - Casts to a wider type and back vanish. Arithmetic in a narrower type prevents the fusion, since its rounding would be lost.
//
// Nothing but the softmax may read the scores, and nothing but the second contraction the probabilities: an Attention
// never has them in memory. Whatever prevents a fusion is reported as a missed fusion of each softmax between
// contractions.
package attention

import (
	"errors"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/pattern"
	"fusec/passes/rewrite"
)

// Run is the pass fuse-attention.
func Run(c *rewrite.Context) error {
	f := &fuser{}
	f.Rewriter = rewrite.Rewriter{Context: c, Visit: f.visit, Begin: func() { f.softmaxed = map[*graph.Node]bool{} }}
	return f.Fixpoint()
}

// sought names what the pass looks for in its records.
var sought = &pattern.Pattern{Name: "attention", Doc: "two contractions around a softmax", Numeric: trace.Reassociated}

// fuser rewrites the graph by a search of its own instead of a table of patterns.
type fuser struct {
	rewrite.Rewriter
	softmaxed map[*graph.Node]bool // that follow element by element from a softmax, of what was visited in this walk
}

func (f *fuser) visit(n *graph.Node) (*graph.Node, error) {
	if rewrite.FollowsFrom(n, rewrite.IsSoftmax, func(a *graph.Node) bool { return f.softmaxed[a] }) {
		f.softmaxed[n] = true
	}
	if _, ok := n.Op.(graph.MatMul); !ok {
		return n, nil
	}
	for side := range n.Args {
		if !f.softmaxed[n.Args[side]] {
			continue
		}
		softmax := rewrite.SoftmaxUnder(n.Args[side])
		if softmax == nil {
			continue
		}
		first := rewrite.ProductUnder(softmax.Args[0])
		if first == nil {
			continue
		}
		mark := len(f.Graph.Nodes)
		to, err := f.fuse(n, side, softmax)
		var stop *rewrite.Stopped
		switch {
		case err == nil:
			return to, nil
		case !errors.As(err, &stop):
			return nil, err
		}
		f.Graph.Nodes = f.Graph.Nodes[:mark]
		f.Miss(sought, &pattern.Miss{Key: softmax, At: stop.At, Reason: stop.Reason, Covered: stop.Covered,
			Ahead: []*graph.Node{n, softmax, first}})
	}
	return n, nil
}

// fuse makes the Attention that ends in the contraction second, whose operand on the given side is the probabilities,
// and returns the value that takes second's place. An error of type [rewrite.Stopped] says why there is none.
func (f *fuser) fuse(second *graph.Node, side int, softmax *graph.Node) (*graph.Node, error) {
	a := attention{Cover: rewrite.Cover{Uses: f.Uses}, second: second, side: side, softmax: softmax, dtype: second.Type.DType,
		scale: 1}
	if err := a.above(); err != nil {
		return nil, err
	}
	a, err := a.below(softmax.Args[0], softmax)
	if err != nil {
		return nil, err
	}
	b := f.Builder(a.Covered...)
	y, to, err := a.build(b)
	if err != nil {
		return nil, err
	}
	if b.Err() != nil {
		return nil, b.Err()
	}
	if refusal := f.Context.Accepts(y.Op, y.Args...); refusal != nil {
		return nil, a.Stop(softmax, "%v", refusal)
	}
	f.Record(sought.Name, sought.Numeric, graph.KindAttention.String(), y, a.Covered...)
	return to, nil
}
