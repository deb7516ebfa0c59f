package graph

var allReduceRow = OpInfo{
	Name: "all_reduce", Doc: "values of all participants combined; the operand itself if there is only one", Operands: "x",
	Proto: AllReduce{}, Class: ClassCollective, MinArgs: 1, MaxArgs: 1, Infer: inferAllReduce, FLOPs: combined,
	Grad: gradAllReduce, Sent: func(bytes, participants int64) int64 { return 2 * sentShares(bytes, participants) },
}

// AllReduce combines the values of x of all participants of a group, element by element, and returns the result to each
// of them, as MPI_Allreduce does. Fn is Sum, Mean, MaxOf or MinOf. A program that runs alone is a group of one, in which
// the result is x. Parts may be 0 for a group of any number of participants.
type AllReduce struct {
	Fn ReduceFn
	Group
}

// OpName implements Op.
func (AllReduce) OpName() string { return "all_reduce" }

func inferAllReduce(op Op, args []Type) ([]Type, error) {
	o := op.(AllReduce)
	if o.Parts != 0 {
		if err := o.check(); err != nil {
			return nil, err
		}
	}
	if err := checkCombined(o.Fn, args[0]); err != nil {
		return nil, err
	}
	return one(args, args[0])
}

// gradAllReduce combines the gradients of all participants as the values were. The gradient of a maximum or minimum is
// shared among the participants that reach it.
func gradAllReduce(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op, x, dy := n.Op.(AllReduce), n.Args[0], dys[0]
	if op.Fn.Info().Bound == OfTerms {
		return []*Node{b.Add(op, dy)}, nil
	}
	sum := AllReduce{Sum, op.Group}
	hit := b.Add(Cast{x.Type.DType}, b.Binary(Eq, x, n))
	share := b.Binary(Div, hit, b.Add(sum, hit))
	return []*Node{b.Binary(Mul, b.Add(sum, dy), share)}, nil
}
