package simplify

import (
	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

// scalarRules keep repeated values small. An elementwise operation takes a scalar for all elements, so nothing need be
// repeated for it, and what is computed from repeated values alone is computed before they are repeated:
//
//	c ─ broadcast ─ + ─►         c ─ + ─►
//	            x ─┘             x ─┘
//
//	v ─ broadcast ─ sqrt ─►      v ─ sqrt ─ broadcast ─►
//
// The same holds for a statistic, what is computed from a reduction alone, and the Reshape that gives it back the
// reduced axes: the Reshape follows the arithmetic, unless it stays because something that is neither arithmetic nor a
// view reads it, as the norm of all gradients does.
var scalarRules = []Rule{
	{"scalar-operand", "a repeated single value beside another operand → the value as a scalar", trace.Exact, elementwiseOps,
		scalarOperand},
	{"broadcast-late", "f(broadcast x, …) → broadcast f(x, …)", trace.Exact, elementwiseOps, broadcastLate},
	{"reshape-late", "f(reshape x) → reshape f(x) for a statistic x", trace.Exact, elementwiseOps, reshapeLate},
}

var elementwiseOps = []graph.Op{graph.Unary{}, graph.Binary{}, graph.Select{}, graph.Cast{}, graph.Custom{}}

// single returns a scalar equal to every element of x, if x is one value repeated, and else nil.
func (s *simplifier) single(x *graph.Node) *graph.Node {
	if v, ok := x.Uniform(); ok {
		return s.b.Const(v)
	}
	if _, ok := x.Op.(graph.Broadcast); ok && x.Args[0].Type.Shape.Elems() == 1 {
		return s.b.Reshape(x.Args[0])
	}
	return nil
}

func scalarOperand(s *simplifier, n *graph.Node) *graph.Node {
	shape := n.Type.Shape
	if shape.Rank() == 0 || len(n.Args) == 1 {
		return nil
	}
	wide, narrow := 0, 0 // operands that must stay, and that can be made scalars
	for _, a := range n.Args {
		switch {
		case a.Type.Shape.Rank() == 0:
		case rewrite.IsSingle(a):
			narrow++
		default:
			wide++
		}
	}
	if narrow == 0 || wide == 0 {
		return nil
	}
	args := make([]*graph.Node, len(n.Args))
	for i, a := range n.Args {
		if args[i] = a; a.Type.Shape.Rank() > 0 && rewrite.IsSingle(a) {
			args[i] = s.single(a)
		}
	}
	return s.b.Add(n.Op, args...)
}

// broadcastLate applies where every operand is a scalar or repeats a value of one and the same smaller shape. A widened
// value of 16 bits is repeated first: launches widen what they read, and would not take in work of another shape.
func broadcastLate(s *simplifier, n *graph.Node) *graph.Node {
	if _, cast := n.Op.(graph.Cast); cast && n.Args[0].Type.DType.Is16() {
		return nil
	}
	args := make([]*graph.Node, len(n.Args))
	var from *graph.Shape
	for i, a := range n.Args {
		args[i] = a
		if a.Type.Shape.Rank() == 0 {
			continue
		}
		if _, ok := a.Op.(graph.Broadcast); ok {
			args[i] = a.Args[0]
		} else if rewrite.IsSingle(a) {
			args[i] = s.single(a)
			continue
		} else {
			return nil
		}
		if sh := args[i].Type.Shape; sh.Rank() > 0 {
			if from != nil && *from != sh {
				return nil
			}
			from = &sh
		} else if from == nil {
			from = &graph.Shape{}
		}
	}
	if from == nil {
		return nil
	}
	return s.b.Broadcast(s.b.Add(n.Op, args...), n.Type.Shape)
}

// maxStatistic bounds how many nodes are looked at between a statistic and its reductions.
const maxStatistic = 64

// isStatistic reports whether x is a reduction or computed elementwise from reductions and from scalars.
func isStatistic(x *graph.Node) bool {
	todo := []*graph.Node{x}
	for i := 0; i < len(todo); i++ {
		if i == maxStatistic {
			return false
		}
		x := todo[i]
		switch x.Op.(type) {
		case graph.Reduce:
		case graph.Unary, graph.Cast:
			todo = append(todo, x.Args[0])
		case graph.Binary:
			switch {
			case x.Args[1].Type.Shape.Rank() == 0:
				todo = append(todo, x.Args[0])
			case x.Args[0].Type.Shape.Rank() == 0:
				todo = append(todo, x.Args[1])
			default:
				todo = append(todo, x.Args...)
			}
		default:
			return false
		}
	}
	return true
}

func reshapeLate(s *simplifier, n *graph.Node) *graph.Node {
	args := make([]*graph.Node, len(n.Args))
	var from *graph.Node
	for i, a := range n.Args {
		args[i] = a
		if a.Type.Shape.Rank() == 0 {
			continue
		}
		if _, ok := a.Op.(graph.Reshape); !ok || !isStatistic(a.Args[0]) || s.staysAnyway(a) {
			return nil
		}
		args[i] = a.Args[0]
		if from != nil && from.Type.Shape != args[i].Type.Shape {
			return nil
		}
		from = args[i]
	}
	if from == nil {
		return nil
	}
	return s.b.Reshape(s.b.Add(n.Op, args...), n.Type.Shape.Slice()...)
}

// staysAnyway reports whether something reads n that no rule moves n past.
func (s *simplifier) staysAnyway(n *graph.Node) bool {
	for _, r := range s.Uses.Readers(n) {
		if !graph.Elementwise(r.Op) && !graph.IsView(r.Op) {
			return true
		}
	}
	return false
}
