package graph

import "math"

// Softmax is exp(x − max x) ÷ Σ exp(x − max x) along Axis; a slice of −Inf only gives zeros. In a slice with +Inf, the
// elements of +Inf give NaN and the others 0, as exp x ÷ Σ exp x does.
type Softmax struct{ Axis int }

// LogSoftmax is x − max x − log Σ exp(x − max x) along Axis, and for infinities the logarithm of [Softmax].
type LogSoftmax struct{ Axis int }

// OpName implements Op.
func (Softmax) OpName() string { return "softmax" }

// OpName implements Op.
func (LogSoftmax) OpName() string { return "log_softmax" }

var softmaxRow = OpInfo{
	Name: "softmax", Doc: "exponentials along an axis, normalised to sum 1", Operands: "x", Proto: Softmax{},
	Class: ClassComposite, Fuses: true, Anchor: AnchorRow, Kind: KindSoftmax,
	RowAxes: func(n *Node) Ints { return IntsOf(n.Op.(Softmax).Axis) }, MinArgs: 1, MaxArgs: 1, Infer: inferSoftmax,
	AlongAxis: true, FLOPs: times(16), Decompose: decomposeSoftmax, Grad: gradSoftmax,
	Usual: func(n *Node) Op { return Softmax{n.Type.Shape.Rank() - 1} },
}

var logSoftmaxRow = OpInfo{
	Name: "log_softmax", Doc: "logarithm of softmax", Operands: "x", Proto: LogSoftmax{}, Class: ClassComposite,
	Fuses: true, Anchor: AnchorRow, Kind: KindSoftmax,
	RowAxes: func(n *Node) Ints { return IntsOf(n.Op.(LogSoftmax).Axis) }, MinArgs: 1, MaxArgs: 1,
	AlongAxis: true, Infer: inferSoftmax, FLOPs: times(16), Decompose: decomposeLogSoftmax, Grad: gradLogSoftmax,
	Usual: func(n *Node) Op { return LogSoftmax{n.Type.Shape.Rank() - 1} },
}

// shifted is x − max x along axis, where an infinite maximum is replaced by the nearest finite number. So the
// exponentials of a slice of −Inf only are 0 and not NaN. In a slice with +Inf, that of +Inf is +Inf, and the others
// are 0.
func shifted(b *Builder, x *Node, axis int) *Node {
	most := math.MaxFloat64
	if x.Type.DType == F32 {
		most = math.MaxFloat32
	}
	m := b.BinaryScalar(Max, b.BinaryScalar(Min, b.Reduce(MaxOf, x, true, axis), most), -most)
	return b.Binary(Sub, x, b.Broadcast(m, x.Type.Shape))
}

func decomposeSoftmax(b *Builder, op Op, args []*Node) []*Node {
	axis, x := op.(Softmax).Axis, args[0]
	e := b.Unary(Exp, shifted(b, x, axis))
	return []*Node{b.Binary(Div, e, b.Broadcast(sumOrOne(b, e, axis), x.Type.Shape))}
}

// sumOrOne is the sum of exponentials along axis, or 1 where all of them are 0.
func sumOrOne(b *Builder, e *Node, axis int) *Node {
	sum := b.Reduce(Sum, e, true, axis)
	return b.Add(Select{}, b.BinaryScalar(Eq, sum, 0), b.Scalar(e.Type.DType, 1), sum)
}

func decomposeLogSoftmax(b *Builder, op Op, args []*Node) []*Node {
	axis, x := op.(LogSoftmax).Axis, args[0]
	d := shifted(b, x, axis)
	lse := b.Unary(Log, sumOrOne(b, b.Unary(Exp, d), axis))
	return []*Node{b.Binary(Sub, d, b.Broadcast(lse, x.Type.Shape))}
}

// gradSoftmax gives dx = y⊙(dy − Σ dy⊙y).
func gradSoftmax(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	axis, dy := n.Op.(Softmax).Axis, dys[0]
	sum := b.Reduce(Sum, b.Binary(Mul, dy, n), true, axis)
	return []*Node{b.Binary(Mul, n, b.Binary(Sub, dy, b.Broadcast(sum, n.Type.Shape)))}, nil
}

// gradLogSoftmax gives dx = dy − exp(y)·Σ dy.
func gradLogSoftmax(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	axis, dy := n.Op.(LogSoftmax).Axis, dys[0]
	sum := b.Reduce(Sum, dy, true, axis)
	return []*Node{b.Binary(Sub, dy, b.Binary(Mul, b.Unary(Exp, n), b.Broadcast(sum, n.Type.Shape)))}, nil
}

func inferSoftmax(op Op, args []Type) ([]Type, error) {
	axis := 0
	switch o := op.(type) {
	case Softmax:
		axis = o.Axis
	case LogSoftmax:
		axis = o.Axis
	}
	if err := wantFloat(args[0]); err != nil {
		return nil, err
	}
	return args[:1], checkAxes(IntsOf(axis), args[0].Shape.Rank())
}
