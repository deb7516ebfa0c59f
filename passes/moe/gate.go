package moe

import (
	"math"

	"fusec/graph"
	"fusec/passes/constant"
	"fusec/passes/rewrite"
)

// maxLooks bounds how many nodes are looked at to find out which gates are zero. It is far more than real gates need, and
// bounds the memory and the time for long chains and for sums of sums. Beyond it nothing is known of a gate.
const maxLooks = 1 << 10

// look counts a node that is looked at, and reports whether it may be.
func (f *fuser) look() bool {
	f.looks--
	return f.looks >= 0
}

// closes reports whether some gates of a token are zero by construction: they were multiplied by the result of a
// comparison, of a routing or of a mask that the host gives, or selected by it; or their softmax was taken of logits of
// which a mask made some so low that their exponential is exactly 0. k is the largest number of a token's gates that are
// not zero, or 0 if that is not known.
//
// A gate of zero gets no gradient in a MoE. That is right where the graph gives it none either, as through a product with
// a zero. It is wrong for a mask that a gradient is requested by, and for gates that may be zero by accident beside the
// mask, such as those of a linear layer before training. Neither counts where gradients are requested.
func (f *fuser) closes(n *graph.Node) (closed bool, k int) {
	if !f.look() {
		return false, 0
	}
	switch op := n.Op.(type) {
	case graph.Const:
		return hasElement(op.Value, func(v float64) bool { return v == 0 }), 0
	case graph.Softmax:
		return f.lowers(n.Args[0])
	case graph.Unary:
		if op.Fn == graph.Relu {
			return true, 0
		}
		if op.Fn.Eval(0, op.Alpha) == 0 { // what is closed stays so
			return f.closes(n.Args[0])
		}
	case graph.Binary:
		switch op.Fn {
		case graph.Mul:
			x, kx := f.closesFactor(n.Args[0])
			y, ky := f.closesFactor(n.Args[1])
			return x && (y || f.opens(n.Args[1])) || y && f.opens(n.Args[0]), fewer(kx, ky)
		case graph.Div:
			return f.closes(n.Args[0])
		case graph.Add, graph.Max:
			x, kx := f.closes(n.Args[0])
			y, ky := f.closes(n.Args[1])
			if kx == 0 || ky == 0 {
				return x && y, 0
			}
			return x && y, kx + ky
		}
	case graph.Select:
		for i, x := range n.Args[1:] {
			if v, ok := x.ConstScalar(); ok && v == 0 {
				other, k := f.closes(n.Args[2-i])
				if i == 1 {
					k = fewer(k, f.holds(n.Args[0]))
				}
				return other || f.opens(n.Args[2-i]), k
			}
		}
		x, _ := f.closes(n.Args[1])
		y, _ := f.closes(n.Args[2])
		return x && y, 0
	case graph.Cast:
		if n.Args[0].Type.DType == graph.Bool {
			return true, f.holds(n.Args[0])
		}
		return f.closes(n.Args[0])
	case graph.Reduce:
		if op.Fn == graph.Sum {
			x, each := f.closes(n.Args[0])
			return x, each * (n.Args[0].Type.Shape.Elems() / max(n.Type.Shape.Elems(), 1))
		}
	case graph.Concat:
		for _, a := range n.Args {
			if x, _ := f.closes(a); !x {
				return false, 0
			}
		}
		return true, 0
	case graph.Reshape, graph.Transpose, graph.Broadcast:
		return f.closes(n.Args[0])
	case graph.Slice: // fewer experts have no more that are open
		return f.closes(n.Args[0])
	}
	return false, 0
}

// opens reports whether gates are zero nowhere, or only where they are so small that no gradient is left. Without
// requests for gradients that does not matter, and it is true.
func (f *fuser) opens(n *graph.Node) bool {
	if len(f.wanted) == 0 {
		return true
	}
	if !f.look() {
		return false
	}
	switch op := n.Op.(type) {
	case graph.Const:
		return !hasElement(op.Value, func(v float64) bool { return v == 0 })
	case graph.Softmax:
		return true
	case graph.Unary:
		return op.Fn == graph.Sigmoid || op.Fn == graph.Exp || op.Fn == graph.Softplus
	case graph.Binary:
		switch op.Fn {
		case graph.Mul:
			return f.opens(n.Args[0]) && f.opens(n.Args[1])
		case graph.Div:
			return f.opens(n.Args[0])
		}
	case graph.Cast:
		return n.Args[0].Type.DType.IsFloat() && f.opens(n.Args[0])
	case graph.Reshape, graph.Transpose, graph.Broadcast, graph.Slice:
		return f.opens(n.Args[0])
	}
	return false
}

// closesFactor is closes for a factor of gates, which may be a mask from the host, with an element for each.
func (f *fuser) closesFactor(n *graph.Node) (closed bool, k int) {
	base := rewrite.UnderViews(n)
	if _, ok := base.Op.(graph.Input); ok {
		return !f.wanted[base] && base.Type.Shape.Elems() >= n.Type.Shape.Elems() && n.Type.Shape.Rank() > 0, 0
	}
	return f.closes(n)
}

// fewer is the smaller of two counts of which 0 means that it is not known.
func fewer(a, b int) int {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// lowers reports whether some logits are masked, being [constant.Lowest] or lower. k is the largest number of a token's
// logits that are not, or 0 if that is not known.
func (f *fuser) lowers(n *graph.Node) (lowered bool, k int) {
	if !f.look() {
		return false, 0
	}
	if t := constant.Of(n); t != nil {
		return hasElement(t, func(v float64) bool { return v <= constant.Lowest }), 0
	}
	switch op := n.Op.(type) {
	case graph.Unary:
		if op.Fn == graph.Log { // −Inf where a mask is 0
			return f.closesFactor(n.Args[0])
		}
	case graph.Binary:
		switch op.Fn {
		case graph.Add, graph.Sub:
			x, kx := f.lowersTerm(n.Args[0], n.Args[1])
			y, ky := f.lowersTerm(n.Args[1], n.Args[0])
			return x || y, fewer(kx, ky)
		case graph.Mul, graph.Div:
			if c, ok := constant.Factor(op.Fn, n.Args[1]); ok && math.Abs(c) >= -constant.Lowest {
				return true, 0
			}
			return f.lowers(n.Args[0])
		}
	case graph.Select:
		for i, x := range n.Args[1:] {
			if v, ok := x.ConstScalar(); ok && v <= constant.Lowest {
				if i == 1 {
					return true, f.holds(n.Args[0])
				}
				return true, 0
			}
		}
	case graph.Cast, graph.Reshape, graph.Transpose, graph.Broadcast, graph.Slice:
		return f.lowers(n.Args[0])
	}
	return false, 0
}

// lowersTerm is lowers for a term of logits. Added to what the graph computes, an input with an element for each logit
// counts as a mask from the host, and one with an element for each expert as a bias.
func (f *fuser) lowersTerm(n, other *graph.Node) (lowered bool, k int) {
	base := rewrite.UnderViews(n)
	if _, ok := base.Op.(graph.Input); ok {
		return !f.wanted[base] && base.Type.Shape.Elems() == n.Type.Shape.Elems() && rewrite.ProductUnder(other) != nil, 0
	}
	return f.lowers(n)
}

func hasElement(t *graph.Tensor, is func(float64) bool) bool {
	for i := range t.Type.Shape.Elems() {
		if is(t.Float(i)) {
			return true
		}
	}
	return false
}

// holds returns for how many experts a condition is true for a token at most, ignoring ties, or 0 if that is not known.
func (f *fuser) holds(n *graph.Node) int {
	if !f.look() {
		return 0
	}
	switch op := n.Op.(type) {
	case graph.Route:
		if !op.ExpertChoice {
			return op.K
		}
	case graph.Reshape, graph.Transpose, graph.Broadcast:
		return f.holds(n.Args[0])
	case graph.Binary:
		switch op.Fn {
		case graph.And:
			return fewer(f.holds(n.Args[0]), f.holds(n.Args[1]))
		case graph.Or:
			if x, y := f.holds(n.Args[0]), f.holds(n.Args[1]); x > 0 && y > 0 {
				return x + y
			}
		case graph.Eq:
			return max(f.rankOf(n.Args[1], n.Args[0]), f.rankOf(n.Args[0], n.Args[1]))
		case graph.Ge:
			return f.rankOf(n.Args[1], n.Args[0])
		case graph.Le:
			return f.rankOf(n.Args[0], n.Args[1])
		}
	}
	return 0
}

// exact reports whether a Route chose the experts of a mixture, at most op.TopK for a token, and the mixture does not say so.
func (f *fuser) exact(op graph.MoE, n *graph.Node) bool {
	if op.Exact || op.Dense || op.TopK <= 0 {
		return false
	}
	f.looks = maxLooks
	k := f.routed(n.Args[1], op.Experts)
	return k > 0 && k <= op.TopK
}

// routed is how many gates of a token are not zero at most, unless they are NaN, where a Route chose among all experts, or 0.
func (f *fuser) routed(n *graph.Node, experts int) int {
	if !f.look() {
		return 0
	}
	switch op := n.Op.(type) {
	case graph.Reshape:
		return f.routed(n.Args[0], experts)
	case graph.Cast:
		if n.Args[0].Type.DType == graph.Bool {
			return routes(n.Args[0], experts)
		}
		return f.routed(n.Args[0], experts)
	case graph.Binary:
		switch op.Fn {
		case graph.Div:
			return f.routed(n.Args[0], experts)
		case graph.Mul:
			return fewer(f.routed(n.Args[0], experts), f.routed(n.Args[1], experts))
		}
	case graph.Softmax: // −Inf becomes zero
		masked := n.Args[0]
		if v, ok := lastConst(masked); ok && math.IsInf(v, -1) && op.Axis == n.Type.Shape.Rank()-1 {
			return routes(masked.Args[0], experts)
		}
	case graph.Select:
		if v, ok := lastConst(n); ok && v == 0 {
			return routes(n.Args[0], experts)
		}
	}
	return 0
}

// lastConst is what a selection gives where its condition is false, if that is one number.
func lastConst(n *graph.Node) (float64, bool) {
	if _, ok := n.Op.(graph.Select); !ok {
		return 0, false
	}
	return n.Args[2].ConstScalar()
}

// routes is how many experts a condition that a Route made holds for at most, or 0.
func routes(n *graph.Node, experts int) int {
	for {
		switch op := n.Op.(type) {
		case graph.Route:
			if op.ExpertChoice || n.Type.Shape.At(n.Type.Shape.Rank()-1) != experts {
				return 0
			}
			return op.K
		case graph.Reshape:
			n = n.Args[0]
		default:
			return 0
		}
	}
}

// rankOf is k if t is the k-th largest element of rows of x: by TopK, by a maximum, or by a maximum of what is left
// without the larger ones. It is 1 if t is an index of TopK that x is compared with, and 0 for anything else.
func (f *fuser) rankOf(t, x *graph.Node) int {
	for f.look() {
		switch op := t.Op.(type) {
		case graph.Reshape, graph.Broadcast, graph.Transpose:
			t = t.Args[0]
			continue
		case graph.Slice:
			top, ok := t.Args[0].Op.(graph.TopK)
			at, isConst := op.ConstStart(t)
			if ok && isConst && op.Size == 1 && op.Axis == t.Type.Shape.Rank()-1 && at < top.K && t.Args[0].Args[0] == x {
				return at + 1
			}
			if _, ok := t.Args[0].Op.(graph.Result); ok {
				t = t.Args[0]
				continue
			}
		case graph.Result:
			if _, ok := t.Args[0].Op.(graph.TopK); ok && constant.Of(x) != nil {
				return 1
			}
		case graph.TopK:
			if t.Args[0] == x {
				return op.K
			}
		case graph.Reduce:
			if op.Fn == graph.MaxOf && op.Axes.Len() == 1 {
				return f.takenOut(t.Args[0], x) + 1
			}
		}
		return 0
	}
	return 0
}

// takenOut counts how many of the largest elements of each row of x are missing in n; -1 if n is something else:
//
//	n = x ⊙ (x < t)    or    x − x ⊙ (x ≥ t)    or    x < t ? x : low    where t is a rank of x
func (f *fuser) takenOut(n, x *graph.Node) int {
	if n == x {
		return 0
	}
	var of, condition *graph.Node
	left := true // the condition holds for what is left
	switch op := n.Op.(type) {
	case graph.Binary:
		switch op.Fn {
		case graph.Mul:
			of, condition = maskedBy(n)
		case graph.Sub:
			if m, ok := n.Args[1].Op.(graph.Binary); ok && m.Fn == graph.Mul {
				of, condition = maskedBy(n.Args[1])
				left = false
			}
			if of != n.Args[0] {
				return -1
			}
		}
	case graph.Select:
		if of, condition = n.Args[1], n.Args[0]; rewrite.IsSingle(of) {
			of, left = n.Args[2], false
		}
	}
	if condition == nil {
		return -1
	}
	c, ok := condition.Op.(graph.Binary)
	if !ok {
		return -1
	}
	t, than := condition.Args[1], condition.Args[0]
	fn := c.Fn
	if fn == graph.Gt || fn == graph.Le { // t > x, t ≤ x
		t, than, fn = than, t, rewrite.Flipped[fn]
	}
	before := f.takenOut(of, x)
	wants := map[bool]graph.BinaryFn{true: graph.Lt, false: graph.Ge}[left]
	if before < 0 || than != of && than != x || fn != wants {
		return -1
	}
	r := f.rankOf(t, than)
	if r == 0 {
		return -1
	}
	if than == of { // and not x, of which t is a rank
		r += before
	}
	return r
}

// maskedBy splits a product of a value and a cast condition.
func maskedBy(n *graph.Node) (of, condition *graph.Node) {
	for i, a := range n.Args {
		if _, ok := a.Op.(graph.Cast); ok && a.Args[0].Type.DType == graph.Bool {
			return n.Args[1-i], a.Args[0]
		}
	}
	return nil, nil
}
