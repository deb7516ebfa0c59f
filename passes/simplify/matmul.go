package simplify

import (
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

// matmulRules let a matrix product read its operands as they are stored:
//
//	b ─ transpose[…,1,0] ─ matmul ─►        b ─ matmul(transB) ─►
//	                   a ─┘                 a ─┘
var matmulRules = []Rule{
	{"matmul-transpose", "operand with its last two axes swapped → flag", trace.Exact, []graph.Op{graph.MatMul{}}, matmulTranspose},
	{"matmul-broadcast", "operand repeated along batch axes that the other has → the operand itself", trace.Exact,
		[]graph.Op{graph.MatMul{}}, matmulBroadcast},
}

func matmulTranspose(s *simplifier, n *graph.Node) *graph.Node {
	op, a, b := n.Op.(graph.MatMul), n.Args[0], n.Args[1]
	if rewrite.SwapsLast(a) {
		a, op.TransA = a.Args[0], !op.TransA
	}
	if rewrite.SwapsLast(b) {
		b, op.TransB = b.Args[0], !op.TransB
	}
	if op == n.Op {
		return nil
	}
	return s.b.Add(op, a, b)
}

func matmulBroadcast(s *simplifier, n *graph.Node) *graph.Node {
	for i, x := range n.Args {
		if _, ok := x.Op.(graph.Broadcast); !ok {
			continue
		}
		from, to := x.Args[0].Type.Shape, x.Type.Shape
		if from.Rank() < 2 || !slices.Equal(from.Slice()[from.Rank()-2:], to.Slice()[to.Rank()-2:]) {
			continue
		}
		args := slices.Clone(n.Args)
		args[i] = x.Args[0]
		if t, err := graph.ResultTypes(n.Op, args); err == nil && t[0] == n.Type {
			return s.b.Add(n.Op, args...)
		}
	}
	return nil
}
