package graph

import "slices"

// Frozen marks the nodes whose values are the same in all runs, because they follow from constants alone. With params,
// parameters that the graph does not update count as constants. Random values, results of host operations and values
// that are combined with other participants are never marked.
func Frozen(g *Graph, params bool) PerNode[bool] {
	updated := map[*Node]bool{}
	for _, u := range g.Updates {
		updated[u.Target] = true
	}
	frozen := NewPerNode[bool](g)
	for _, n := range g.Nodes {
		same := repeatable(n.Op)
		if _, isParam := n.Op.(Param); isParam {
			same = params && !updated[n]
		}
		if same && !slices.ContainsFunc(n.Args, func(a *Node) bool { return !frozen.Get(a) }) {
			frozen.Set(n, true)
		}
	}
	return frozen
}

// repeatable reports whether op, on the same operands, has the same result in each run, and no other effect.
func repeatable(op Op) bool {
	switch op := op.(type) {
	case Input, Param, State, Host, Collective:
		return false
	case Fusion:
		for _, n := range op.Body.Nodes {
			if _, operand := n.Op.(Input); !operand && !repeatable(n.Op) {
				return false
			}
		}
		return true
	}
	return ClassOf(op) != ClassRandom
}
