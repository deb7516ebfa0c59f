package simplify

import (
	"fusec/graph"
	"fusec/graph/trace"
)

// moveRules drop operations that do not move data:
//
//	a ─┐                          a ─┐
//	b ─ concat ─┐                 b ─ concat ─►
//	          c ─ concat ─►       c ─┘
var moveRules = []Rule{
	{"concat-one", "concat of one → its operand", trace.Exact, []graph.Op{graph.Concat{}}, concatOne},
	{"concat-concat", "concat of a concat along the same axis, read once → one", trace.Exact, []graph.Op{graph.Concat{}},
		concatConcat},
	{"pad-nothing", "pad by nothing → its operand", trace.Exact, []graph.Op{graph.Pad{}}, padNothing},
	{"dropout-nothing", "dropout of nothing → its operand", trace.Exact, []graph.Op{graph.Dropout{}}, dropoutNothing},
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
