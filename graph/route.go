package graph

import "fmt"

var topKRow = OpInfo{
	Name: "top_k", Doc: "the largest elements of each row; results values, indices", Operands: "x", Proto: TopK{},
	Class: ClassIndex, MinArgs: 1, MaxArgs: 1, Infer: inferTopK, FLOPs: perOperand, Grad: gradTopK,
	Chooses: func(int) bool { return true },
}

var routeRow = OpInfo{
	Name: "route", Doc: "assignment of tokens to experts; results mask, dropped choices", Operands: "scores",
	Proto: Route{}, Class: ClassIndex, MinArgs: 1, MaxArgs: 1, Infer: inferRoute, FLOPs: perOperand,
	Grad: gradRoute, Chooses: func(int) bool { return true },
}

// TopK selects the K largest elements of each row along the last axis of x [..., n], in descending order. Equal
// elements keep their order, and NaN comes last. Result 0 is their values [..., K], result 1 their indices in the row,
// as I64.
type TopK struct{ K int }

// OpName implements Op.
func (TopK) OpName() string { return "top_k" }

func inferTopK(op Op, args []Type) ([]Type, error) {
	k, x := op.(TopK).K, args[0]
	if err := wantFloat(x); err != nil {
		return nil, err
	}
	r := x.Shape.Rank()
	if r == 0 {
		return nil, fmt.Errorf("needs an operand of rank 1 or more, not %v", x)
	}
	if n := x.Shape.At(r - 1); k < 0 || k > n {
		return nil, fmt.Errorf("k = %d is outside 0..%d", k, n)
	}
	s := x.Shape.With(r-1, k)
	return []Type{x.Reshaped(s), {DType: I64, Shape: s}}, nil
}

// Route assigns the tokens of a mixture of experts to experts, by the scores [..., E] of each token for each of E
// experts.
//
// Each token chooses the K experts with its highest scores (Shazeer et al., arXiv 1701.06538), the first of equal ones,
// never one with the score NaN or −Inf. If Capacity > 0, an expert takes at most Capacity tokens: first the tokens
// whose first choice it is, in their order, then those whose second choice it is, and so on (Lepikhin et al., arXiv
// 2006.16668). Further choices are dropped. With ExpertChoice each expert chooses the Capacity tokens with its highest
// scores, and K is ignored (Zhou et al., arXiv 2202.09368).
//
// Result 0 is a Bool [..., E]: true where a token is sent to an expert. Result 1, an I64 [E], is the number of dropped
// choices of each expert. With ExpertChoice its element 0 is the number of tokens that no expert took, and the others
// are 0. No gradient flows.
type Route struct {
	K, Capacity  int
	ExpertChoice bool
}

// OpName implements Op.
func (Route) OpName() string { return "route" }

func inferRoute(op Op, args []Type) ([]Type, error) {
	o, x := op.(Route), args[0]
	if err := wantFloat(x); err != nil {
		return nil, err
	}
	r := x.Shape.Rank()
	if r == 0 {
		return nil, fmt.Errorf("needs scores of rank 1 or more, not %v", x)
	}
	e := x.Shape.At(r - 1)
	switch {
	case o.Capacity < 0:
		return nil, fmt.Errorf("capacity %d is negative", o.Capacity)
	case !o.ExpertChoice && (o.K < 1 || o.K > e):
		return nil, fmt.Errorf("k = %d is outside 1..%d", o.K, e)
	case o.ExpertChoice && o.Capacity == 0:
		return nil, fmt.Errorf("choice by experts needs a capacity")
	}
	return []Type{{DType: Bool, Shape: x.Shape}, TypeOf(I64, e)}, nil
}

// gradRoute returns no gradient: the result is constant between jumps.
func gradRoute(*Builder, *Node, []*Node) ([]*Node, error) { return []*Node{nil}, nil }

// gradTopK adds the gradients of the values to the elements from which they were taken. It is a product with the
// indicator of each index, because ScatterAdd has the same indices for all rows.
func gradTopK(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	dy := dys[0]
	if dy == nil {
		return []*Node{nil}, nil
	}
	x := n.Args[0].Type.Shape
	r := x.Rank()
	rows, k, width := x.Drop(IntsOf(r-1)).Elems(), n.Op.(TopK).K, x.At(r-1)
	wide := ShapeOf(rows, k, width)
	column := func(y *Node) *Node { return b.Broadcast(b.Reshape(y, rows, k, 1), wide) }
	at := b.Broadcast(b.Const(indices(I64, width, width)), wide)
	hit := b.Binary(Eq, column(b.Add(Result{1}, n)), at)
	dx := b.Reduce(Sum, b.Add(Select{}, hit, column(dy), b.Scalar(dy.Type.DType, 0)), false, 1)
	return []*Node{b.Reshape(dx, x.Slice()...)}, nil
}
