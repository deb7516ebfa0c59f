package passes

import (
	"slices"

	"fusec/graph"
	"fusec/passes/pattern"
)

// partRules put parts of a value together without zeros in between, as the gradient of a value that was sliced into
// queries, keys and values:
//
//	dq ─ unslice at 0 ─┐                        dq ─┐
//	dk ─ unslice at d ─ + ─┐                    dk ─ concat ─►
//	dv ─ unslice at 2d ─── + ─►                 dv ─┘
var partRules = []Rule{
	{"unslice-sum", "sum of unslices side by side that fill an axis → concat", []graph.Op{graph.Binary{}}, unsliceSum},
}

// A placed part is an Unslice of a sum and where it starts.
type placed struct {
	node  *graph.Node
	start int
}

// unsliceSum takes the parts that fill an axis out of a sum, in whatever order and with whatever else they are summed.
// What else there is, is added to the whole in its order.
func unsliceSum(s *simplifier, n *graph.Node) *graph.Node {
	if n.Op.(graph.Binary).Fn != graph.Add {
		return nil
	}
	terms := s.terms(nil, n)
	byOp := map[graph.Unslice][]placed{}
	for _, t := range terms {
		if op, ok := t.Op.(graph.Unslice); ok && t.Type == n.Type {
			if start, ok := pattern.Uniform(t.Args[1]); ok && op.Step == 1 {
				byOp[op] = append(byOp[op], placed{t, int(start)})
			}
		}
	}
	for i := range n.Type.Shape.Rank() {
		op := graph.Unslice{Axis: i, Size: n.Type.Shape.At(i), Step: 1}
		parts := byOp[op]
		slices.SortStableFunc(parts, func(a, b placed) int { return a.start - b.start })
		if len(parts) < 2 || !fill(op, parts) {
			continue
		}
		of, used := make([]*graph.Node, len(parts)), map[*graph.Node]bool{}
		for i, p := range parts {
			of[i], used[p.node] = p.node.Args[0], true
		}
		sum := s.b.Add(graph.Concat{Axis: op.Axis}, of...)
		for _, t := range terms {
			if !used[t] {
				sum = s.b.Binary(graph.Add, sum, t)
			}
		}
		return sum
	}
	return nil
}

// terms appends what n is the sum of: sums that only n reads are taken apart.
func (s *simplifier) terms(to []*graph.Node, n *graph.Node) []*graph.Node {
	for _, a := range n.Args {
		if a.Op == n.Op && a.Type == n.Type && s.oneUse(a) {
			to = s.terms(to, a)
		} else {
			to = append(to, a)
		}
	}
	return to
}

// fill reports whether parts, in the order of their starts, take every element of the axis once.
func fill(op graph.Unslice, parts []placed) bool {
	next := 0
	for _, p := range parts {
		if p.start != next {
			return false
		}
		next += p.node.Args[0].Type.Shape.At(op.Axis)
	}
	return next == op.Size
}
