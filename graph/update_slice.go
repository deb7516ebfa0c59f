package graph

import "fmt"

var updateSliceRow = OpInfo{
	Name: "update_slice", Doc: "the operand with part of one axis overwritten by another",
	Operands: "x, update, start", Proto: UpdateSlice{}, Class: ClassMove, Fails: always, MinArgs: 3, MaxArgs: 3,
	Infer: inferUpdateSlice, FLOPs: free, Moves: func(i int) bool { return i < 2 },
	AlongAxis: true, Grad: gradUpdateSlice, Index: func(n *Node) (int, int) {
		axis := n.Op.(UpdateSlice).Axis
		return 2, starts(n.Args[1].Type.Shape.At(axis), 1, n.Args[0].Type.Shape.At(axis))
	},
}

// UpdateSlice is x with update [..., n, ...] written along Axis from the index that the operand start (an I64 scalar)
// gives; the other axes are those of x (XLA's dynamic-update-slice, without its clamping). A start that does not fit is
// an error at run time, or at compile time if it is constant. If it updates the State that it reads, it is written in
// place where the plan finds that safe: the cost of a decoding step then depends on its tokens, not on the size of the
// cache.
type UpdateSlice struct{ Axis int }

// OpName implements Op.
func (UpdateSlice) OpName() string { return "update_slice" }

// CheckStart reports a constant start of n, an UpdateSlice, that does not fit.
func (o UpdateSlice) CheckStart(n *Node) error {
	c, ok := n.Args[2].Op.(Const)
	if !ok {
		return nil
	}
	start, size, dim := c.Value.Int(0), n.Args[1].Type.Shape.At(o.Axis), n.Args[0].Type.Shape.At(o.Axis)
	if !startFits(start, size, 1, dim) {
		return fmt.Errorf("start %v is out of range: %d elements into axis %d of %d", start, size, o.Axis, dim)
	}
	return nil
}

func inferUpdateSlice(op Op, args []Type) ([]Type, error) {
	axis, x, u := op.(UpdateSlice).Axis, args[0], args[1]
	dim, size := 0, 0
	if axis >= 0 && axis < x.Shape.Rank() {
		if u.DType != x.DType || u.Shape.Rank() != x.Shape.Rank() || u.Shape.With(axis, 0) != x.Shape.With(axis, 0) {
			return nil, fmt.Errorf("%v and its update %v differ elsewhere than in axis %d", x, u, axis)
		}
		dim, size = x.Shape.At(axis), u.Shape.At(axis)
	}
	if err := checkSlice(axis, size, 1, dim, x.Shape, args[2]); err != nil {
		return nil, err
	}
	return one(args, x)
}

// gradUpdateSlice passes the gradient of the overwritten part to the update, and the rest to x.
func gradUpdateSlice(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	axis, u, start := n.Op.(UpdateSlice).Axis, n.Args[1].Type, n.Args[2]
	zero := b.Broadcast(b.Scalar(dys[0].Type.DType, 0), u.Shape)
	return []*Node{
		b.Add(UpdateSlice{axis}, dys[0], zero, start),
		b.Add(Slice{Axis: axis, Size: u.Shape.At(axis), Step: 1}, dys[0], start),
		nil,
	}, nil
}
