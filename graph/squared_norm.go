package graph

import "fmt"

var squaredNormRow = OpInfo{
	Name: "squared_norm", Doc: "sum of the squares of all operands' elements, in f64", Operands: "x...",
	Proto: SquaredNorm{}, Class: ClassComposite, Kind: KindReduce, MinArgs: 1, MaxArgs: -1, Infer: inferSquaredNorm,
	FLOPs: flopsSquaredNorm, Decompose: decomposeSquaredNorm, Grad: gradSquaredNorm,
}

// SquaredNorm is the sum of the squares of all elements of all its operands, an F64 scalar. It is computed in float64,
// so that squares of float32 do not overflow and a small operand is not lost next to a large one: the result is finite
// if and only if every element of operands of 32 and 16 bits is. Clipping of gradients by their global norm uses it.
type SquaredNorm struct{}

// OpName implements Op.
func (SquaredNorm) OpName() string { return "squared_norm" }

func inferSquaredNorm(_ Op, args []Type) ([]Type, error) {
	for i, t := range args {
		if !t.DType.IsFloat() && !t.DType.Is16() {
			return nil, fmt.Errorf("operand %d is %v, not a float", i, t.DType)
		}
	}
	return one(args, TypeOf(F64))
}

func flopsSquaredNorm(_ Op, args, _ []Type) int64 {
	var sum int64
	for _, t := range args {
		sum += 2 * elems(t)
	}
	return sum
}

func decomposeSquaredNorm(b *Builder, _ Op, args []*Node) []*Node {
	var sum *Node
	for _, x := range args {
		if x.Type.DType != F64 {
			x = b.Add(Cast{To: F64}, x)
		}
		x = b.Unary(Square, x)
		if r := x.Type.Shape.Rank(); r > 0 {
			axes := make([]int, r)
			for i := range axes {
				axes[i] = i
			}
			x = b.Reduce(Sum, x, false, axes...)
		}
		if sum == nil {
			sum = x
		} else {
			sum = b.Binary(Add, sum, x)
		}
	}
	return []*Node{sum}
}

func gradSquaredNorm(b *Builder, n *Node, dy []*Node) ([]*Node, error) {
	dx := make([]*Node, len(n.Args))
	for i, x := range n.Args {
		d := b.BinaryScalar(Mul, dy[0], 2)
		if x.Type.DType != F64 {
			d = b.Add(Cast{To: x.Type.DType}, d)
		}
		dx[i] = b.Binary(Mul, x, d)
	}
	return dx, b.Err()
}
