// Package raise recognises operations that were written out in primitives, and puts one node in their place:
//
//	x ──────────┐
//	│           ⊙ ─►        x ─ relu ─►
//	└─ ≥ 0 ─ cast
//
// The table is [Patterns]; each of its rows is in the file of its kind, with a drawing. A row's pattern is matched
// at every node from operands to users, so that larger operations are recognised by their parts, already raised: a
// layer norm is looked for in terms of means. Where several patterns fit, the first wins.
//
// Values inside a match that other nodes read stay in the graph. Constants are recognised within the accuracy in which
// people write them. The result differs from what was written only at the limits of arithmetic, where it is the
// mathematical one: a relu of −Inf is 0 and not −Inf·0, and a softmax does not overflow.
//
// The target is asked before each rewrite, and what it refuses becomes a missed fusion with its reason.
package raise

import (
	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/pattern"
	"fusec/passes/rewrite"
	"slices"
)

// Run is the pass raise.
func Run(c *rewrite.Context) error {
	r := &raiser{}
	r.Rewriter = rewrite.Rewriter{Context: c, Visit: r.visit}
	return r.Fixpoint()
}

// raising is a pattern with what to make of it.
type raising struct {
	name, doc string
	numeric   trace.Numeric
	expr      pattern.Expr
	kind      string // what it makes, for the record
	// make returns the node to use in place of the root, built with b, or nil.
	make func(b *graph.Builder, m *pattern.Match) *graph.Node
}

// leaves tells of patterns whether a match is left as it is, or to another pattern, by what reads its nodes.
var leaves = map[string]func(u *graph.Uses, m *pattern.Match) bool{"conv2d-rows": becomesImage, "conv2d-pixels": leavesPixels,
	"conv2d-shifts": leavesShifts, "layer-norm": leavesRoot, "rms-norm": leavesRoot}

// raisings is the table, in the order in which patterns of one root are tried.
var raisings = slices.Concat(activationPatterns, geluPatterns, statisticPatterns, softmaxPatterns, normPatterns, convPatterns)

var (
	raisingOf = map[*pattern.Pattern]*raising{}
	patterns  = func() *pattern.Set {
		var ps []*pattern.Pattern
		for i := range raisings {
			p := &pattern.Pattern{Name: raisings[i].name, Doc: raisings[i].doc, Numeric: raisings[i].numeric,
				Expr: raisings[i].expr}
			raisingOf[p] = &raisings[i]
			ps = append(ps, p)
		}
		return pattern.NewSet(ps...)
	}()
)

type raiser struct{ rewrite.Rewriter }

func (r *raiser) visit(n *graph.Node) (*graph.Node, error) {
	for _, p := range patterns.Candidates(n) {
		m, miss := p.Match(n, r.Uses)
		if miss != nil {
			r.Miss(p, miss)
		}
		if leave := leaves[p.Name]; m == nil || leave != nil && leave(r.Uses, m) {
			continue
		}
		mark := len(r.Graph.Nodes)
		b := r.Builder(m.Covered...)
		to := raisingOf[p].make(b, m)
		if err := b.Err(); err != nil {
			return nil, err
		}
		if to == nil {
			r.Graph.Nodes = r.Graph.Nodes[:mark]
			continue
		}
		if refusal := r.refused(r.Graph.Nodes[mark:]); refusal != nil {
			r.Graph.Nodes = r.Graph.Nodes[:mark]
			r.Miss(p, &pattern.Miss{Key: n, At: n, Reason: refusal.Error(), Covered: m.Covered})
			continue
		}
		r.Record(p.Name, p.Numeric, raisingOf[p].kind, to, m.Covered...)
		return to, nil
	}
	return n, nil
}

// refused asks the target about the operations that a rewrite made.
func (r *raiser) refused(made []*graph.Node) error {
	for _, n := range made {
		switch graph.ClassOf(n.Op) {
		case graph.ClassSource, graph.ClassView:
			continue
		}
		if err := r.Context.Accepts(n.Op, n.Args...); err != nil {
			return err
		}
	}
	return nil
}
