package graph

import "fmt"

// Gather takes the slices of x [..., d, ...] at indices [i...]. The result is [..., i..., ...], with Axis replaced by
// the indices' axes. An index outside 0..d-1 is an error at run time.
type Gather struct{ Axis int }

// ScatterAdd is the transpose of Gather: it adds each update, in the order of the indices, to zeros whose Axis has Size
// elements.
type ScatterAdd struct{ Axis, Size int }

// OpName implements Op.
func (Gather) OpName() string { return "gather" }

// OpName implements Op.
func (ScatterAdd) OpName() string { return "scatter_add" }

var gatherRow = OpInfo{
	Name: "gather", Doc: "slices of x picked by indices", Operands: "x, indices", Proto: Gather{},
	Class: ClassIndex, Fails: always, MinArgs: 2, MaxArgs: 2, Infer: inferGather, FLOPs: free, Grad: gradGather,
	Moves: first, Usual: func(*Node) Op { return Gather{} },
	Index: func(n *Node) (int, int) { return 1, n.Args[0].Type.Shape.At(n.Op.(Gather).Axis) },
}

var scatterAddRow = OpInfo{
	Name: "scatter_add", Doc: "updates added to zeros at indices", Operands: "indices, updates", Proto: ScatterAdd{},
	Class: ClassIndex, Fails: always, MinArgs: 2, MaxArgs: 2, Infer: inferScatterAdd, FLOPs: perUpdate,
	Usual: func(*Node) Op { return ScatterAdd{} },
	Grad:  gradScatterAdd, Index: func(n *Node) (int, int) { return 0, n.Op.(ScatterAdd).Size },
}

func gradGather(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	axis := n.Op.(Gather).Axis
	return []*Node{b.Add(ScatterAdd{axis, n.Args[0].Type.Shape.At(axis)}, n.Args[1], dys[0]), nil}, nil
}

func gradScatterAdd(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	return []*Node{nil, b.Add(Gather{n.Op.(ScatterAdd).Axis}, dys[0], n.Args[0])}, nil
}

func wantIndices(t Type) error {
	if !t.DType.IsIndex() {
		return fmt.Errorf("indices are %v, not i32 or i64", t.DType)
	}
	return nil
}

func inferGather(op Op, args []Type) ([]Type, error) {
	axis, s, ix := op.(Gather).Axis, args[0].Shape, args[1].Shape
	if err := wantIndices(args[1]); err != nil {
		return nil, err
	}
	if axis < 0 || axis >= s.Rank() {
		return nil, fmt.Errorf("axis %d of a tensor of rank %d", axis, s.Rank())
	}
	if s.Rank()-1+ix.Rank() > MaxRank {
		return nil, fmt.Errorf("result has more than %d axes", MaxRank)
	}
	dims := s.Slice()
	out := append(append(append([]int(nil), dims[:axis]...), ix.Slice()...), dims[axis+1:]...)
	return one(args, args[0].Reshaped(ShapeOf(out...)))
}

func inferScatterAdd(op Op, args []Type) ([]Type, error) {
	o, ix, u := op.(ScatterAdd), args[0].Shape, args[1].Shape
	if err := wantIndices(args[0]); err != nil {
		return nil, err
	}
	if err := wantSummed(args[1]); err != nil {
		return nil, fmt.Errorf("sums %w", err)
	}
	if o.Axis < 0 || o.Size < 0 || o.Axis > u.Rank()-ix.Rank() || u.Rank()-ix.Rank()+1 > MaxRank {
		return nil, fmt.Errorf("updates %v do not hold indices %v at axis %d", u, ix, o.Axis)
	}
	dims := u.Slice()
	for i := range ix.Rank() {
		if dims[o.Axis+i] != ix.At(i) {
			return nil, fmt.Errorf("updates %v do not hold indices %v at axis %d", u, ix, o.Axis)
		}
	}
	out := append(append(append([]int(nil), dims[:o.Axis]...), o.Size), dims[o.Axis+ix.Rank():]...)
	return one(args, args[1].Reshaped(ShapeOf(out...)))
}

func perUpdate(_ Op, args, _ []Type) int64 { return elems(args[1]) }
