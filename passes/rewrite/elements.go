package rewrite

import (
	"slices"

	"fusec/graph"
)

// SoftmaxUnder finds a softmax from which n follows element by element, however that may be written, or nil.
func SoftmaxUnder(n *graph.Node) *graph.Node {
	return searchElements(n, IsSoftmax)
}

// IsSoftmax reports whether n is a softmax.
func IsSoftmax(n *graph.Node) bool {
	_, ok := n.Op.(graph.Softmax)
	return ok
}

// ProductUnder finds a matrix product from which n follows element by element, or nil.
func ProductUnder(n *graph.Node) *graph.Node {
	return searchElements(n, func(m *graph.Node) bool { _, ok := m.Op.(graph.MatMul); return ok })
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
	return graph.Joins(n.Op)
}

// FollowsFrom reports whether a search like [SoftmaxUnder] finds a node from n on. from says from which operands it does.
func FollowsFrom(n *graph.Node, found, from func(*graph.Node) bool) bool {
	return found(n) || keepsElements(n) && slices.ContainsFunc(n.Args, func(a *graph.Node) bool {
		return from(a) && a.Type.Shape.Elems() == n.Type.Shape.Elems()
	})
}

// Leading lists the axes of a matrix product's operand or result before the last two.
func Leading(s graph.Shape) []int { return s.Slice()[:s.Rank()-2] }

// Trimmed is a shape's sizes without leading ones.
func Trimmed(s graph.Shape) []int {
	d := s.Slice()
	for len(d) > 0 && d[0] == 1 {
		d = d[1:]
	}
	return d
}

// SwapsLast reports whether n only swaps the last two axes of its operand.
func SwapsLast(n *graph.Node) bool {
	op, ok := n.Op.(graph.Transpose)
	if !ok {
		return false
	}
	r := op.Perm.Len()
	for i := range r - 2 {
		if op.Perm.At(i) != i {
			return false
		}
	}
	return r >= 2 && op.Perm.At(r-1) == r-2 && op.Perm.At(r-2) == r-1
}

// IsSingle reports whether every element of x is the same: a constant of one value, or one element repeated.
func IsSingle(x *graph.Node) bool {
	if _, ok := x.Uniform(); ok {
		return true
	}
	_, ok := x.Op.(graph.Broadcast)
	return ok && x.Args[0].Type.Shape.Elems() == 1
}

// Flipped gives the comparison f' with f(x,y) = f'(y,x).
var Flipped = map[graph.BinaryFn]graph.BinaryFn{graph.Lt: graph.Gt, graph.Gt: graph.Lt, graph.Le: graph.Ge, graph.Ge: graph.Le}

// UnderViews is the value that n is a view of, through any number of views, or n itself.
func UnderViews(n *graph.Node) *graph.Node {
	for graph.IsView(n.Op) {
		n = n.Args[0]
	}
	return n
}

// KeepsRows reports whether n is a Reshape that leaves the last axis as it is.
func KeepsRows(n *graph.Node) bool {
	if _, ok := n.Op.(graph.Reshape); !ok {
		return false
	}
	from, to := n.Args[0].Type.Shape, n.Type.Shape
	return from.Rank() > 0 && to.Rank() > 0 && from.At(from.Rank()-1) == to.At(to.Rank()-1)
}
