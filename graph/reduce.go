package graph

import "fmt"

// Reduce combines the elements along Axes. With Keep the reduced axes stay with size 1.
type Reduce struct {
	Fn   ReduceFn
	Axes Ints
	Keep bool
}

// OpName implements Op.
func (Reduce) OpName() string { return "reduce" }

var reduceRow = OpInfo{
	Name: "reduce", Doc: "elements combined along axes", Operands: "x", Proto: Reduce{}, Class: ClassReduce,
	Fuses: true, Anchor: AnchorRow, RowAxes: reducedAxes, Kind: KindReduce, MinArgs: 1, MaxArgs: 1,
	Infer: inferReduce, FLOPs: perOperand, Grad: gradReduce,
}

func gradReduce(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op, x := n.Op.(Reduce), n.Args[0]
	s := x.Type.Shape
	expand := func(t *Node) *Node { return b.Expand(t, op.Axes, s) }
	dy := expand(dys[0])
	switch op.Fn {
	case Mean:
		dy = b.BinaryScalar(Mul, dy, float64(n.Type.Shape.Elems())/float64(s.Elems()))
	case Prod:
		dy = b.Binary(Mul, dy, otherFactors(b, op, x))
	case MaxOf, MinOf:
		hit := b.Add(Cast{x.Type.DType}, b.Binary(Eq, x, expand(n)))
		count := b.Add(Reduce{Sum, op.Axes, op.Keep}, hit)
		dy = b.Binary(Mul, hit, b.Binary(Div, dy, expand(count)))
	}
	return []*Node{dy}, nil
}

// otherFactors is, for each element of x, the product of the other elements of its Prod. It divides only by factors
// other than 0: if no other factor is 0, it is the product of all factors that are not 0, divided by the element itself
// if that is not 0. Its derivative is right where no factor is 0.
func otherFactors(b *Builder, op Reduce, x *Node) *Node {
	d, s := x.Type.DType, x.Type.Shape
	zero := b.BinaryScalar(Eq, x, 0)
	safe := b.Add(Select{}, zero, b.Scalar(d, 1), x)
	product := b.Expand(b.Add(Reduce{Prod, op.Axes, true}, safe), op.Axes, s)
	isZero := b.Add(Cast{d}, zero)
	zeros := b.Expand(b.Add(Reduce{Sum, op.Axes, true}, isZero), op.Axes, s)
	noOther := b.Binary(Eq, zeros, isZero)
	return b.Add(Select{}, noOther, b.Binary(Div, product, safe), b.Scalar(d, 0))
}

func inferReduce(op Op, args []Type) ([]Type, error) {
	r, s := op.(Reduce), args[0].Shape
	if int(r.Fn) >= len(reduceFns) {
		return nil, fmt.Errorf("unknown reduction %d", r.Fn)
	}
	if err := wantSummed(args[0]); err != nil {
		return nil, fmt.Errorf("%v %w", r.Fn, err)
	}
	if r.Fn == Mean && !args[0].DType.IsFloat() {
		return nil, fmt.Errorf("%v of %v", r.Fn, args[0].DType)
	}
	if err := checkAxes(r.Axes, s.Rank()); err != nil {
		return nil, err
	}
	out := s.Drop(r.Axes)
	if r.Keep {
		out = s
		for i := range r.Axes.Len() {
			out = out.With(r.Axes.At(i), 1)
		}
	}
	return one(args, args[0].Reshaped(out))
}
