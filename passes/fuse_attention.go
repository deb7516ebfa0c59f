package passes

import (
	"errors"
	"fmt"
	"slices"

	"fusec/graph"
	"fusec/passes/pattern"
)

// fuse-attention recognises attention by its two contractions around a softmax and puts one Attention in their place:
//
//	q ─ [⊙ c] ─┐
//	           matmul ─ [⊙ c] ─ [+ mask] ─ softmax ─ [dropout] ─┐               q ─┐
//	k ─ [⊙ c] ─┘                                                matmul ─►       k ─ attention ─►
//	                                                       v ───┘               v ─┘
//
// The contractions decide that it is one; all that stands around and between them is then taken in:
//
//   - Scales, as products or quotients by constants of the scores, of q, of k, or of several of these, become Scale. A
//     scalar that is known at run time only goes to q, which is smaller than the scores.
//   - Masks that are added, taken off or chosen by become Causal, Window and lengths where they are constant and say no
//     more than that, and else one operand: see [scoreMask].
//   - Dropout of the probabilities becomes Dropout. It numbers elements in row-major order, as an Attention does.
//   - Views stay outside, as strides. Those that only regroup the rows of the scores vanish, and so do repetitions of
//     the keys and values for a group of heads: see [operand].
//   - Casts to a wider type and back vanish. Arithmetic in a narrower type would be lost, and prevents the fusion.
//
// Nothing but the softmax may read the scores, and nothing but the second contraction the probabilities: an Attention
// never has them in memory. What prevents a fusion, be it that or another condition, is told as a near miss for each
// softmax between contractions.
func fuseAttention(c *Context) error {
	f := &attentionFuser{}
	f.rewriter = rewriter{ctx: c, visit: f.visit}
	if err := f.fixpoint(func() { f.missed, f.softmaxed = nil, map[*graph.Node]bool{} }); err != nil {
		return err
	}
	f.tell()
	return nil
}

// attentionPattern names what the pass looks for in its records.
var attentionPattern = &pattern.Pattern{Name: "attention", Doc: "two contractions around a softmax"}

// attentionFuser rewrites as raise does, with a search of its own in place of a table of patterns.
type attentionFuser struct {
	raiser
	softmaxed map[*graph.Node]bool // that follow element by element from a softmax, of what was visited in this walk
}

func (f *attentionFuser) visit(n *graph.Node) (*graph.Node, error) {
	if followsFrom(n, isSoftmax, func(a *graph.Node) bool { return f.softmaxed[a] }) {
		f.softmaxed[n] = true
	}
	if _, ok := n.Op.(graph.MatMul); !ok {
		return n, nil
	}
	for side := range n.Args {
		if !f.softmaxed[n.Args[side]] {
			continue
		}
		softmax := softmaxUnder(n.Args[side])
		if softmax == nil || !productUnder(softmax.Args[0]) {
			continue
		}
		mark := len(f.g.Nodes)
		to, err := f.fuse(n, side, softmax)
		var stop *stopped
		switch {
		case err == nil:
			return to, nil
		case !errors.As(err, &stop):
			return nil, err
		}
		f.g.Nodes = f.g.Nodes[:mark]
		f.missed = append(f.missed, missed{attentionPattern,
			&pattern.Miss{Key: softmax, At: stop.at, Reason: stop.reason, Covered: stop.covered}})
	}
	return n, nil
}

// fuse makes the Attention that ends in the contraction second, whose operand on the given side is the probabilities,
// and returns the value that takes second's place. An error of type stopped tells why there is none.
func (f *attentionFuser) fuse(second *graph.Node, side int, softmax *graph.Node) (*graph.Node, error) {
	a := attention{uses: f.uses, second: second, side: side, softmax: softmax, dtype: second.Type.DType, scale: 1}
	if err := a.above(); err != nil {
		return nil, err
	}
	a, err := a.below(softmax.Args[0], softmax)
	if err != nil {
		return nil, err
	}
	b := f.builder(a.covered...)
	y, to, err := a.build(b)
	if err != nil {
		return nil, err
	}
	if b.Err() != nil {
		return nil, b.Err()
	}
	if refusal := f.ctx.Accepts(y.Op, y.Args...); refusal != nil {
		return nil, a.stop(softmax, "%v", refusal)
	}
	f.note(attentionPattern.Name, graph.KindAttention.String(), y, a.covered...)
	return to, nil
}

// stopped is the first condition that failed.
type stopped struct {
	at      *graph.Node
	reason  string
	covered []*graph.Node
}

// Error implements error.
func (s *stopped) Error() string { return s.at.Where() + ": " + s.reason }

// softmaxUnder finds a softmax from which n follows element by element, however that may be written, or nil.
func softmaxUnder(n *graph.Node) *graph.Node {
	return searchElements(n, isSoftmax)
}

func isSoftmax(n *graph.Node) bool {
	_, ok := n.Op.(graph.Softmax)
	return ok
}

// productUnder reports whether n follows element by element from a matrix product.
func productUnder(n *graph.Node) bool {
	return searchElements(n, func(m *graph.Node) bool { _, ok := m.Op.(graph.MatMul); return ok }) != nil
}

// searchElements looks for a node among n and what n follows from element by element: through elementwise work,
// dropout, and views that keep all elements.
func searchElements(n *graph.Node, found func(*graph.Node) bool) *graph.Node {
	elems := n.Type.Shape.Elems()
	seen := map[*graph.Node]bool{n: true}
	for todo := []*graph.Node{n}; len(todo) > 0; todo = todo[1:] {
		m := todo[0]
		if found(m) {
			return m
		}
		if !keepsElements(m) {
			continue
		}
		for _, a := range m.Args {
			if !seen[a] && a.Type.Shape.Elems() == elems {
				seen[a] = true
				todo = append(todo, a)
			}
		}
	}
	return nil
}

// keepsElements reports whether n's elements follow one by one from those of its operands of as many elements.
func keepsElements(n *graph.Node) bool {
	switch n.Op.(type) {
	case graph.Reshape, graph.Transpose:
		return true
	}
	return isElementwise(n)
}

// followsFrom reports whether [searchElements] would find a node from n on, given which operands it would find one from.
func followsFrom(n *graph.Node, found, from func(*graph.Node) bool) bool {
	return found(n) || keepsElements(n) && slices.ContainsFunc(n.Args, func(a *graph.Node) bool {
		return from(a) && a.Type.Shape.Elems() == n.Type.Shape.Elems()
	})
}

// named describes a node for a near miss: what it computes, the user's name for it and where it was built.
func named(n *graph.Node) string {
	s := pattern.Describe(n)
	for _, o := range n.Origin {
		if o.Pos != "" {
			return fmt.Sprintf("%s (%s)", s, o.Pos)
		}
	}
	return s
}
