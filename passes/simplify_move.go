package passes

import (
	"slices"

	"fusec/graph"
	"fusec/passes/pattern"
)

// moveRules drop operations that move data to where it is already:
//
//	a ─┐                          a ─┐
//	b ─ concat ─┐                 b ─ concat ─►
//	          c ─ concat ─►       c ─┘
var moveRules = []Rule{
	{"concat-one", "concat of one → its operand", []graph.Op{graph.Concat{}}, concatOne},
	{"concat-concat", "concat of a concat along the same axis, read once → one", []graph.Op{graph.Concat{}}, concatConcat},
	{"sum-unslice", "sum of unslices that together fill the axis, each read once → concat", []graph.Op{graph.Binary{}}, sumUnslice},
	{"pad-nothing", "pad by nothing → its operand", []graph.Op{graph.Pad{}}, padNothing},
	{"dropout-nothing", "dropout of nothing → its operand", []graph.Op{graph.Dropout{}}, dropoutNothing},
}

func concatOne(_ *simplifier, n *graph.Node) *graph.Node {
	if len(n.Args) == 1 {
		return n.Args[0]
	}
	return nil
}

func concatConcat(s *simplifier, n *graph.Node) *graph.Node {
	var args []*graph.Node
	for _, a := range n.Args {
		if a.Op == n.Op && s.oneUse(a) {
			args = append(args, a.Args...)
		} else {
			args = append(args, a)
		}
	}
	if len(args) == len(n.Args) {
		return nil
	}
	return s.b.Add(n.Op, args...)
}

// sumUnslice makes one value of the gradients of a value's slices.
func sumUnslice(s *simplifier, n *graph.Node) *graph.Node {
	parts, ok := s.addends(n, nil)
	if !ok {
		return nil
	}
	op, _ := parts[0].Op.(graph.Unslice)
	starts := map[*graph.Node]int{}
	for _, p := range parts {
		u, ok := p.Op.(graph.Unslice)
		if !ok || u.Axis != op.Axis || u.Step != 1 || !s.oneUse(p) {
			return nil
		}
		start, ok := pattern.Uniform(p.Args[1])
		if !ok {
			return nil
		}
		starts[p] = int(start)
	}
	slices.SortStableFunc(parts, func(a, b *graph.Node) int { return starts[a] - starts[b] })
	var args []*graph.Node
	end := 0
	for _, p := range parts {
		if starts[p] != end {
			return nil
		}
		args = append(args, p.Args[0])
		end += p.Args[0].Type.Shape.At(op.Axis)
	}
	if end != n.Type.Shape.At(op.Axis) {
		return nil
	}
	return s.b.Add(graph.Concat{Axis: op.Axis}, args...)
}

// maxAddends bounds the sums that addends takes apart.
const maxAddends = 16

// addends appends what the sum n adds up, through sums that are read once.
func (s *simplifier) addends(n *graph.Node, to []*graph.Node) ([]*graph.Node, bool) {
	if op, ok := n.Op.(graph.Binary); !ok || op.Fn != graph.Add || n.Args[0].Type != n.Args[1].Type {
		return nil, false
	}
	for _, a := range n.Args {
		if len(to) == maxAddends {
			return nil, false
		}
		if op, ok := a.Op.(graph.Binary); ok && op.Fn == graph.Add && s.oneUse(a) {
			if to, ok = s.addends(a, to); !ok {
				return nil, false
			}
			continue
		}
		to = append(to, a)
	}
	return to, true
}

func padNothing(_ *simplifier, n *graph.Node) *graph.Node {
	if n.Args[0].Type == n.Type {
		return n.Args[0]
	}
	return nil
}

func dropoutNothing(_ *simplifier, n *graph.Node) *graph.Node {
	if n.Op.(graph.Dropout).P == 0 {
		return n.Args[0]
	}
	return nil
}
