package simplify

import (
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
)

// partRules put parts of a value together without zeros in between, as the gradient of a value that was sliced into
// queries, keys and values:
//
//	dq ─ unslice at 0 ─┐                        dq ─┐
//	dk ─ unslice at d ─ + ─┐                    dk ─ concat ─►
//	dv ─ unslice at 2d ─── + ─►                 dv ─┘
var partRules = []Rule{
	{"unslice-sum", "sum of unslices side by side that fill an axis → concat", trace.Exact, []graph.Op{graph.Binary{}}, unsliceSum},
}

// A placed part is an Unslice of a sum and where it starts.
type placed struct {
	node  *graph.Node
	start int
}

// placedPart describes t, a term of a sum of the same type, as a part. ok is false if it is none.
func placedPart(t *graph.Node) (op graph.Unslice, start int, ok bool) {
	if op, ok = t.Op.(graph.Unslice); ok && op.Step == 1 {
		if v, ok := t.Args[1].ConstScalar(); ok {
			return op, int(v), true
		}
	}
	return op, 0, false
}

// A filling is how much of an axis the parts among the terms of a sum take, those that overlap counted twice.
type filling struct {
	op  graph.Unslice
	sum int
}

// fillings adds up the parts of sum n, from what is known of its operands, and reports whether the parts of both operands
// together may fill an axis. Only then unsliceSum looks at all terms.
func (s *simplifier) fillings(n *graph.Node) (full bool) {
	var both []filling
	for i, a := range n.Args {
		var of []filling
		if s.isSum(n, a) {
			of = s.filled[a]
		} else if op, _, ok := placedPart(a); ok && a.Type == n.Type {
			of = []filling{{op, a.Args[0].Type.Shape.At(op.Axis)}}
		}
		for _, f := range of {
			k := slices.IndexFunc(both, func(g filling) bool { return g.op == f.op })
			if k < 0 {
				both = append(both, f)
				continue
			}
			both[k].sum += f.sum
			full = full || i > 0 && both[k].sum == f.op.Size
		}
	}
	if both != nil {
		s.filled[n] = both
	}
	return full
}

// isSum reports whether operand a of sum n is a sum that only n reads: its terms are n's.
func (s *simplifier) isSum(n, a *graph.Node) bool {
	return a.Op == n.Op && a.Type == n.Type && s.oneUse(a)
}

// unsliceSum takes the parts that fill an axis out of a sum, whatever their order and the other terms. The other terms
// are added to the whole in their order.
func unsliceSum(s *simplifier, n *graph.Node) *graph.Node {
	if n.Op.(graph.Binary).Fn != graph.Add || !s.fillings(n) {
		return nil
	}
	terms := s.terms(n)
	byOp := map[graph.Unslice][]placed{}
	for _, t := range terms {
		if op, start, ok := placedPart(t); ok && t.Type == n.Type {
			byOp[op] = append(byOp[op], placed{t, start})
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

// terms lists what n is the sum of, in order: sums that only n reads are replaced by their terms.
func (s *simplifier) terms(n *graph.Node) (list []*graph.Node) {
	stack := []*graph.Node{n}
	for len(stack) > 0 {
		m := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if m != n && !s.isSum(n, m) {
			list = append(list, m)
			continue
		}
		for _, a := range slices.Backward(m.Args) {
			stack = append(stack, a)
		}
	}
	return list
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
