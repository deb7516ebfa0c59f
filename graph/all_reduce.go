package graph

import "fmt"

var allReduceRow = OpInfo{
	Name: "all_reduce", Doc: "values of all participants combined; the operand itself if there is only one", Operands: "x",
	Proto: AllReduce{}, Class: ClassMove, MinArgs: 1, MaxArgs: 1, Infer: inferAllReduce, FLOPs: free,
	Grad: gradAllReduce,
}

// AllReduce combines the values of x of all participants of a group, element by element, and returns the result to each
// of them, as MPI_Allreduce does. Each participant runs one program. Fn is Sum, Mean, MaxOf or MinOf. A program that
// runs alone is a group of one, in which the result is x. No target supports larger groups yet.
type AllReduce struct{ Fn ReduceFn }

// OpName implements Op.
func (AllReduce) OpName() string { return "all_reduce" }

func inferAllReduce(op Op, args []Type) ([]Type, error) {
	f, t := op.(AllReduce).Fn, args[0]
	if f >= endReduce {
		return nil, fmt.Errorf("unknown reduction %d", f)
	}
	if !f.Info().OfGroup {
		return nil, fmt.Errorf("%v is not a reduction of a group: want sum, mean, max or min", f)
	}
	if err := wantComputed(t); err != nil {
		return nil, fmt.Errorf("%v %w", f, err)
	}
	if !f.Info().Of.Has(t.DType) {
		return nil, fmt.Errorf("%v of %v", f, t.DType)
	}
	return one(args, t)
}

// gradAllReduce combines the gradients of all participants as the values were. The gradient of a maximum or minimum is
// shared among the participants that reach it.
func gradAllReduce(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	f, x, dy := n.Op.(AllReduce).Fn, n.Args[0], dys[0]
	if f.Info().Bound == OfTerms {
		return []*Node{b.Add(AllReduce{f}, dy)}, nil
	}
	hit := b.Add(Cast{x.Type.DType}, b.Binary(Eq, x, n))
	share := b.Binary(Div, hit, b.Add(AllReduce{Sum}, hit))
	return []*Node{b.Binary(Mul, b.Add(AllReduce{Sum}, dy), share)}, nil
}
