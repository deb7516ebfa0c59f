package graph

import "fmt"

// Slice takes Size elements, Step apart, along Axis, from the index that the operand start (an I64 scalar) gives. A
// start that does not fit is an error at run time, or at compile time if it is constant.
type Slice struct{ Axis, Size, Step int }

// Unslice is the transpose of Slice: zeros with Size elements along Axis, with the operand's elements written from
// start on, Step apart.
type Unslice struct{ Axis, Size, Step int }

// OpName implements Op.
func (Slice) OpName() string { return "slice" }

// OpName implements Op.
func (Unslice) OpName() string { return "unslice" }

var sliceRow = OpInfo{
	Name: "slice", Doc: "part of one axis", Operands: "x, start", Proto: Slice{}, Class: ClassView,
	Fails: func(n *Node) bool { _, ok := n.Op.(Slice).ConstStart(n); return !ok }, MinArgs: 2, MaxArgs: 2,
	AlongAxis: true, Infer: inferSlice, FLOPs: free, Grad: gradSlice, Index: func(n *Node) (int, int) {
		op := n.Op.(Slice)
		return 1, starts(op.Size, op.Step, n.Args[0].Type.Shape.At(op.Axis))
	},
}

var unsliceRow = OpInfo{
	Name: "unslice", Doc: "zeros with the operand written to part of one axis", Operands: "x, start",
	Proto: Unslice{}, Class: ClassMove, Fails: always, MinArgs: 2, MaxArgs: 2, Infer: inferUnslice, FLOPs: free,
	AlongAxis: true, Moves: first, Grad: gradUnslice, Index: func(n *Node) (int, int) {
		op := n.Op.(Unslice)
		return 1, starts(n.Args[0].Type.Shape.At(op.Axis), op.Step, op.Size)
	},
}

func gradSlice(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op, x := n.Op.(Slice), n.Args[0]
	return []*Node{b.Add(Unslice{op.Axis, x.Type.Shape.At(op.Axis), op.Step}, dys[0], n.Args[1]), nil}, nil
}

func gradUnslice(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op, x := n.Op.(Unslice), n.Args[0]
	return []*Node{b.Add(Slice{op.Axis, x.Type.Shape.At(op.Axis), op.Step}, dys[0], n.Args[1]), nil}, nil
}

func checkSlice(axis, size, step, dim int, s Shape, start Type) error {
	if axis < 0 || axis >= s.Rank() {
		return fmt.Errorf("axis %d of a tensor of rank %d", axis, s.Rank())
	}
	if start.DType != I64 || start.Shape.Rank() != 0 {
		return fmt.Errorf("start is %v, not an i64 scalar", start)
	}
	if size < 0 || step < 1 || size > 0 && (dim < 1 || size-1 > (dim-1)/step) {
		return fmt.Errorf("%d elements, %d apart, do not fit into %d", size, step, dim)
	}
	return nil
}

// starts is the number of places at which size elements, step apart, can begin along an axis of dim.
func starts(size, step, dim int) int {
	if size == 0 {
		return dim + 1
	}
	return dim - (size-1)*step
}

// startFits reports whether size elements, step apart, that checkSlice accepts can begin at start along an axis of dim.
func startFits(start int64, size, step, dim int) bool {
	return start >= 0 && start < int64(starts(size, step, dim))
}

// ConstStart is where n, a Slice, starts; false if that is not constant or out of range, which is an error at run time.
func (o Slice) ConstStart(n *Node) (int, bool) {
	c, ok := n.Args[1].Op.(Const)
	if !ok || !startFits(c.Value.Int(0), o.Size, o.Step, n.Args[0].Type.Shape.At(o.Axis)) {
		return 0, false
	}
	return int(c.Value.Int(0)), true
}

func inferSlice(op Op, args []Type) ([]Type, error) {
	o, s := op.(Slice), args[0].Shape
	dim := 0
	if o.Axis >= 0 && o.Axis < s.Rank() {
		dim = s.At(o.Axis)
	}
	if err := checkSlice(o.Axis, o.Size, o.Step, dim, s, args[1]); err != nil {
		return nil, err
	}
	return one(args, args[0].Reshaped(s.With(o.Axis, o.Size)))
}

func inferUnslice(op Op, args []Type) ([]Type, error) {
	o, s := op.(Unslice), args[0].Shape
	dim := 0
	if o.Axis >= 0 && o.Axis < s.Rank() {
		dim = s.At(o.Axis)
	}
	if err := checkSlice(o.Axis, dim, o.Step, o.Size, s, args[1]); err != nil {
		return nil, err
	}
	return one(args, args[0].Reshaped(s.With(o.Axis, o.Size)))
}
