package graph

import "fmt"

// Reshape gives the elements, in row-major order, another shape.
type Reshape struct{ Shape Shape }

// Transpose permutes axes: axis i of the result is axis Perm[i] of the operand.
type Transpose struct{ Perm Ints }

// Broadcast repeats elements until the operand, aligned at the last axis, has the given shape.
type Broadcast struct{ Shape Shape }

// Concat joins operands along Axis.
type Concat struct{ Axis int }

// Pad adds Lo elements of the given value before, and Hi elements after, each axis of the operand.
type Pad struct {
	Lo, Hi Ints
	Value  float64
}

// Copy makes a contiguous copy on the node's device.
type Copy struct{}

// OpName implements Op.
func (Reshape) OpName() string { return "reshape" }

// OpName implements Op.
func (Transpose) OpName() string { return "transpose" }

// OpName implements Op.
func (Broadcast) OpName() string { return "broadcast" }

// OpName implements Op.
func (Concat) OpName() string { return "concat" }

// OpName implements Op.
func (Pad) OpName() string { return "pad" }

// OpName implements Op.
func (Copy) OpName() string { return "copy" }

var reshapeRow = OpInfo{
	Name: "reshape", Doc: "the elements in another shape", Operands: "x", Proto: Reshape{}, Class: ClassView,
	Stored: true, MinArgs: 1, MaxArgs: 1, Infer: inferReshape, FLOPs: free, Grad: gradReshape,
}

var transposeRow = OpInfo{
	Name: "transpose", Doc: "axes permuted", Operands: "x", Proto: Transpose{}, Class: ClassView, MinArgs: 1,
	MaxArgs: 1, Infer: inferTranspose, FLOPs: free, Grad: gradTranspose,
}

var broadcastRow = OpInfo{
	Name: "broadcast", Doc: "elements repeated to a larger shape", Operands: "x", Proto: Broadcast{},
	Class: ClassView, MinArgs: 1, MaxArgs: 1, Infer: inferBroadcast, FLOPs: free, Grad: gradBroadcast,
}

var concatRow = OpInfo{
	Name: "concat", Doc: "operands joined along an axis", Operands: "x...", Proto: Concat{}, Class: ClassMove,
	MinArgs: 1, MaxArgs: -1, Infer: inferConcat, FLOPs: free, Grad: gradConcat, AlongAxis: true,
	Moves: func(int) bool { return true },
}

var padRow = OpInfo{
	Name: "pad", Doc: "the operand surrounded by a value", Operands: "x", Proto: Pad{}, Class: ClassMove, Strided: true,
	MinArgs: 1, MaxArgs: 1, Infer: inferPad, FLOPs: free, Grad: gradPad, Moves: first,
}

var copyRow = OpInfo{
	Name: "copy", Doc: "a contiguous copy", Operands: "x", Proto: Copy{}, Class: ClassMove, Strided: true,
	Stored: true, MinArgs: 1, MaxArgs: 1, Infer: inferSame, FLOPs: free, Grad: gradCopy, Moves: first,
}

func gradReshape(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	return []*Node{b.Reshape(dys[0], n.Args[0].Type.Shape.Slice()...)}, nil
}

// Inverse is the permutation that undoes t.
func (t Transpose) Inverse() []int {
	inverse := make([]int, t.Perm.Len())
	for i := range inverse {
		inverse[t.Perm.At(i)] = i
	}
	return inverse
}

func gradTranspose(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	return []*Node{b.Transpose(dys[0], n.Op.(Transpose).Inverse()...)}, nil
}

func gradBroadcast(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	return []*Node{b.SumTo(dys[0], n.Args[0].Type.Shape)}, nil
}

func gradCopy(_ *Builder, _ *Node, dys []*Node) ([]*Node, error) { return dys, nil }

func gradConcat(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	axis := n.Op.(Concat).Axis
	r := make([]*Node, len(n.Args))
	start := 0
	for i, x := range n.Args {
		size := x.Type.Shape.At(axis)
		r[i] = b.Slice(dys[0], axis, start, size, 1)
		start += size
	}
	return r, nil
}

func gradPad(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op, dx := n.Op.(Pad), dys[0]
	for axis := range op.Lo.Len() {
		if op.Lo.At(axis) > 0 || op.Hi.At(axis) > 0 {
			dx = b.Slice(dx, axis, op.Lo.At(axis), n.Args[0].Type.Shape.At(axis), 1)
		}
	}
	return []*Node{dx}, nil
}

func inferReshape(op Op, args []Type) ([]Type, error) {
	s := op.(Reshape).Shape
	if err := s.Check(); err != nil {
		return nil, err
	}
	if s.Elems() != args[0].Shape.Elems() {
		return nil, fmt.Errorf("%v has %d elements, %v has %d", args[0].Shape, args[0].Shape.Elems(), s, s.Elems())
	}
	return one(args, args[0].Reshaped(s))
}

func inferTranspose(op Op, args []Type) ([]Type, error) {
	p, s := op.(Transpose).Perm, args[0].Shape
	if p.Len() != s.Rank() {
		return nil, fmt.Errorf("permutation %v of a tensor of rank %d", p, s.Rank())
	}
	if err := checkAxes(p, s.Rank()); err != nil {
		return nil, err
	}
	out := s
	for i := range s.Rank() {
		out = out.With(i, s.At(p.At(i)))
	}
	return one(args, args[0].Reshaped(out))
}

func inferBroadcast(op Op, args []Type) ([]Type, error) {
	to, from := op.(Broadcast).Shape, args[0].Shape
	if err := to.Check(); err != nil {
		return nil, err
	}
	lead := to.Rank() - from.Rank()
	for i := range from.Rank() {
		if lead < 0 || from.At(i) != 1 && from.At(i) != to.At(lead+i) {
			return nil, fmt.Errorf("%v does not broadcast to %v", from, to)
		}
	}
	if lead < 0 {
		return nil, fmt.Errorf("%v does not broadcast to %v", from, to)
	}
	return one(args, args[0].Reshaped(to))
}

func inferConcat(op Op, args []Type) ([]Type, error) {
	axis, t := op.(Concat).Axis, args[0]
	if axis < 0 || axis >= t.Shape.Rank() {
		return nil, fmt.Errorf("axis %d of a tensor of rank %d", axis, t.Shape.Rank())
	}
	sum := 0
	for _, u := range args {
		if u.Shape.Rank() != t.Shape.Rank() || u.DType != t.DType || u.Shape.With(axis, 0) != t.Shape.With(axis, 0) {
			return nil, fmt.Errorf("%v and %v differ elsewhere than in axis %d", t, u, axis)
		}
		sum += u.Shape.At(axis)
	}
	return one(args, t.Reshaped(t.Shape.With(axis, sum)))
}

func inferPad(op Op, args []Type) ([]Type, error) {
	p, s := op.(Pad), args[0].Shape
	if err := wantLens(s.Rank(), p.Lo, p.Hi); err != nil {
		return nil, err
	}
	for i := range s.Rank() {
		if p.Lo.At(i) < 0 || p.Hi.At(i) < 0 || p.Lo.At(i) > MaxElems || p.Hi.At(i) > MaxElems {
			return nil, fmt.Errorf("padding %v and %v", p.Lo, p.Hi)
		}
		s = s.With(i, p.Lo.At(i)+s.At(i)+p.Hi.At(i))
	}
	return one(args, args[0].Reshaped(s))
}
