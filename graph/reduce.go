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
	Infer: inferReduce, FLOPs: perOperand, Grad: gradReduce, Verb: func(op Op) string { return op.(Reduce).Fn.String() },
	Detail: func(op Op) string { return fmt.Sprintf("over axes %v", op.(Reduce).Axes) },
}

func gradReduce(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	r := reduction{Builder: b, op: n.Op.(Reduce), x: n.Args[0], y: n}
	r.dy = r.expand(dys[0])
	return []*Node{r.op.Fn.Info().Grad(r)}, nil
}

func inferReduce(op Op, args []Type) ([]Type, error) {
	r, s := op.(Reduce), args[0].Shape
	if r.Fn >= endReduce {
		return nil, fmt.Errorf("unknown reduction %d", r.Fn)
	}
	if err := wantSummed(args[0]); err != nil {
		return nil, fmt.Errorf("%v %w", r.Fn, err)
	}
	if !r.Fn.Info().Of.Has(args[0].DType) {
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
