// Package moe recognises a mixture of experts by its sum of feed-forward networks of the same tokens, each weighted by one
// column of gates, and puts one MoE in its place:
//
//	gates ─ slice 0 ─ [views] ─┐
//	x ─ linear ─ act ─ linear ─ ⊙ ─┐                          x ─────┐
//	gates ─ slice 1 ─ [views] ─┐   + ─►                       gates ─ moe ─►
//	x ─ linear ─ act ─ linear ─ ⊙ ─┘                          weights ┘
//
// The sum decides that it is a mixture. How the gates are computed does not matter and stays as it is:
//
//   - The sum is a chain or tree of +, which may have other terms, such as residuals, that stay; or a Reduce over an axis of
//     experts, of networks that are computed one by one and joined, or all at once by batched products.
//   - A network is linear, activation, linear, or has a second linear layer as the factor of the activation, with
//     biases or without. Experts that differ in form are refused. Their weights are operands one by one, or stacked
//     where they are slices of one tensor, in order.
//   - Gates are slices of one tensor, or else columns that are joined into one. Several factors that only weight
//     tokens are multiplied first; constants go to the sum.
//
// Tokens are sent to the experts whose gates are not zero. That saves work where gates are zero by construction (see
// [fuser.closes]); where they are not, every expert sees every token, which a note says.
//
// With a closed gate nothing that the expert would compute reaches the sum, not even infinities. A product with zero
// makes NaN of those.
//
// Nothing but the sum may read what the experts compute, since a MoE does not keep it in memory. What prevents a fusion is
// reported as a missed fusion of each tensor whose slices weight the terms of a sum.
package moe

import (
	"errors"
	"fmt"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/pattern"
	"fusec/passes/rewrite"
)

// Run is the pass fuse-moe. wanted holds the values that gradients are requested by.
func Run(c *rewrite.Context, wanted map[*graph.Node]bool) error {
	f := &fuser{wanted: wanted}
	f.Rewriter = rewrite.Rewriter{Context: c, Visit: f.visit}
	if err := f.Fixpoint(); err != nil {
		return err
	}
	for _, n := range c.Graph.Nodes {
		if op, ok := n.Op.(graph.MoE); ok && op.Dense {
			c.Note(n, "%s drops no work: %s", n.Where(), whyDense(n.Args[1]))
		}
	}
	return nil
}

// whyDense says why every expert computes every token.
func whyDense(gates *graph.Node) string {
	gates = rewrite.UnderViews(gates)
	const advice = "every expert computes every token; a top-k mask on the gate would send each token to its k best only"
	if _, ok := gates.Op.(graph.Softmax); ok {
		return fmt.Sprintf("the gate, %s, is a softmax over all experts and so zero for none: %s", pattern.Named(gates), advice)
	}
	return fmt.Sprintf("the gate, %s, is zero for no expert for certain: %s", pattern.Named(gates), advice)
}

// sought names what the pass looks for in its records.
var sought = &pattern.Pattern{Name: "moe",
	Doc: "a sum of feed-forward networks of the same tokens, each weighted by a gate", Numeric: trace.Reassociated}

// fuser rewrites the graph by a search of its own instead of a table of patterns.
type fuser struct {
	rewrite.Rewriter
	wanted map[*graph.Node]bool // that gradients are requested by
	inner  []*graph.Node        // the sums within the sum that is looked at
	looks  int                  // how many more nodes may be looked at; see [maxLooks]
}

func (f *fuser) visit(n *graph.Node) (*graph.Node, error) {
	if !n.Type.DType.IsFloat() || n.Type.Shape.Rank() == 0 || n.Type.Shape.Elems() == 0 {
		return n, nil
	}
	var found []*mixture
	var rest []term
	switch op := n.Op.(type) {
	case graph.Binary:
		if isSum(n) && !f.inSum(n) {
			found, rest = f.mixtures(n)
		}
	case graph.Reduce:
		if m := f.stacked(n, op); m != nil {
			found = []*mixture{m}
		}
	case graph.MoE:
		if f.exact(op, n) {
			op.Exact = true
			return f.Builder(n).Add(op, n.Args...), nil
		}
	case graph.MoEGrad:
		if f.exact(op.MoE(), n) {
			op.Exact = true
			return f.Builder(n).Add(op, n.Args...), nil
		}
	}
	if len(found) == 0 {
		return n, nil
	}
	mark := len(f.Graph.Nodes)
	b := f.Builder(n)
	var sum *graph.Node
	for _, m := range found {
		at := len(f.Graph.Nodes)
		y, err := f.fuse(m)
		var stop *rewrite.Stopped
		switch {
		case err == nil:
			sum = plusTerm(b, sum, b.Reshape(y, n.Type.Shape.Slice()...), 1)
		case !errors.As(err, &stop):
			return nil, err
		default:
			f.Graph.Nodes = f.Graph.Nodes[:at]
			if m.key != nil {
				f.Miss(sought, &pattern.Miss{Key: m.key, At: stop.At, Reason: stop.Reason, Covered: stop.Covered, Ahead: m.ahead()})
			}
			rest = append(rest, m.terms...)
		}
	}
	if sum == nil {
		f.Graph.Nodes = f.Graph.Nodes[:mark]
		return n, nil
	}
	for _, t := range rest {
		sum = plusTerm(b, sum, b.Reshape(t.node, n.Type.Shape.Slice()...), t.factor)
	}
	return sum, b.Err()
}

// ahead lists the sum, its terms and the experts' results, which the mixture computes.
func (m *mixture) ahead() []*graph.Node {
	list := []*graph.Node{m.sum}
	for _, t := range m.terms {
		list = append(list, t.node, t.value)
	}
	return list
}

// plusTerm is sum + factor·x, where a sum that is nil counts as nothing.
func plusTerm(b *graph.Builder, sum, x *graph.Node, factor float64) *graph.Node {
	switch {
	case sum == nil && factor == 1:
		return x
	case sum == nil:
		return b.BinaryScalar(graph.Mul, x, factor)
	case factor == 1:
		return b.Binary(graph.Add, sum, x)
	case factor == -1:
		return b.Binary(graph.Sub, sum, x)
	}
	return b.Binary(graph.Add, sum, b.BinaryScalar(graph.Mul, x, factor))
}

// fuse makes the MoE of what was found and returns the value that it adds to the sum. An error of type
// [rewrite.Stopped] says why there is none.
func (f *fuser) fuse(m *mixture) (*graph.Node, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	b := f.Builder(m.Covered...)
	y, to := m.build(b, f)
	if b.Err() != nil {
		return nil, b.Err()
	}
	if refusal := f.Context.Accepts(y.Op, y.Args...); refusal != nil {
		return nil, m.Stop(m.sum, "%v", refusal)
	}
	f.Record(sought.Name, sought.Numeric, graph.KindMoE.String(), y, m.Covered...)
	return to, nil
}
