package graph

import (
	"fmt"
	"math"
)

var ropeRow = OpInfo{
	Name: "rope", Doc: "pairs of elements rotated by angles proportional to the position", Operands: "x, start, divisors?",
	Proto: RoPE{}, Class: ClassComposite, Strided: true, MinArgs: 2, MaxArgs: 3, Infer: inferRoPE, FLOPs: flopsRoPE,
	Decompose: decomposeRoPE, Grad: gradRoPE, Usual: func(*Node) Op { return RoPE{Base: 1e4} },
}

// RoPE is the rotary position embedding (Su et al., arXiv 2104.09864): row i of x [..., s, d] has the position p =
// start + i, and its pair j of elements is rotated by the angle p·Base^(−2j/d), so that the product of two rows depends
// only on the difference of their positions. Pair j is elements j and j + d/2 or, if Interleaved, 2j and 2j+1; d is
// even. Inverse rotates in the other direction, which is also the gradient. The operand start is an I64 scalar. The optional
// operand divisors (F64 [d/2]) divides the angles of each pair, as models do that are stretched to longer texts: by one number
// (Chen et al., arXiv 2306.15595), or the slow pairs more than the fast ones (Llama 3.1; Peng et al., arXiv 2309.00071).
type RoPE struct {
	Base        float64
	Interleaved bool
	Inverse     bool
}

// The optional operand, and the number of operands with it.
const (
	ropeDivisors = 2
	ropeOperands = 3
)

// OpName implements Op.
func (RoPE) OpName() string { return "rope" }

// Angle is the angle by which pair j of d/2 is rotated at position p, with its divisor, which is 1 without that operand.
// Inverse does not change it.
func (r RoPE) Angle(p int64, j, d int, divisor float64) float64 {
	return float64(p) * (r.frequency(j, d) / divisor)
}

// frequency is the angle of pair j per position.
func (r RoPE) frequency(j, d int) float64 { return math.Pow(r.Base, -2*float64(j)/float64(d)) }

// Pairs gives the places of the pairs in a row of d elements: the first elements start at 0, the second ones at second,
// both with the given step.
func (r RoPE) Pairs(d int) (second, step int) {
	if r.Interleaved {
		return 1, 2
	}
	return d / 2, 1
}

func inferRoPE(op Op, args []Type) ([]Type, error) {
	x, start := args[0], args[1]
	if err := wantFloat(x); err != nil {
		return nil, err
	}
	r := x.Shape.Rank()
	if r < 2 {
		return nil, fmt.Errorf("needs positions and their elements as the last two axes, not shape %v", x.Shape)
	}
	if d := x.Shape.At(r - 1); d%2 != 0 {
		return nil, fmt.Errorf("rotates pairs of elements, but the last axis of %v has %d", x.Shape, d)
	}
	if start.DType != I64 || start.Shape.Rank() != 0 {
		return nil, fmt.Errorf("start is %v, not an i64 scalar", start)
	}
	if len(args) == ropeOperands {
		if t, want := args[ropeDivisors], TypeOf(F64, x.Shape.At(r-1)/2); t != want {
			return nil, fmt.Errorf("the divisors are %v, not %v", t, want)
		}
	}
	if b := op.(RoPE).Base; !(b > 0) || math.IsInf(b, 1) {
		return nil, fmt.Errorf("the base %v is not a positive number", b)
	}
	return args[:1], nil
}

// flopsRoPE counts three operations for each element; the angles are the same for all batches and heads.
func flopsRoPE(_ Op, args, _ []Type) int64 {
	const sincos = 28 // as a Sin and a Cos
	s := args[0].Shape
	angles := int64(s.At(s.Rank()-2)) * int64(s.At(s.Rank()-1)/2)
	return 3*elems(args[0]) + sincos*angles
}

// decomposeRoPE computes the angles in f64 for any type of x: in f32 the error at position 10⁵ is 0.004.
func decomposeRoPE(b *Builder, op Op, args []*Node) []*Node {
	r, x, start := op.(RoPE), args[0], args[1]
	s := x.Type.Shape
	last := s.Rank() - 1
	n, d := s.At(last-1), s.At(last)
	if d == 0 {
		return []*Node{x}
	}
	freq := NewTensor(TypeOf(F64, d/2))
	for j := range d / 2 {
		freq.SetFloat(j, r.frequency(j, d))
	}
	table := ShapeOf(n, d/2)
	at := b.Binary(Add, b.Const(indices(I64, n, n, 1)), start)
	frequencies := b.Const(freq)
	if len(args) == ropeOperands {
		frequencies = b.Binary(Div, frequencies, args[ropeDivisors])
	}
	angle := b.Binary(Mul, b.Broadcast(b.Add(Cast{F64}, at), table), b.Broadcast(frequencies, table))
	if r.Inverse {
		angle = b.Unary(Neg, angle)
	}
	half := s.With(last, d/2)
	factor := func(f UnaryFn) *Node {
		return b.Broadcast(b.Add(Cast{x.Type.DType}, b.Unary(f, angle)), half)
	}
	sin, cos := factor(Sin), factor(Cos)

	second, step := r.Pairs(d)
	u, v := b.Slice(x, last, 0, d/2, step), b.Slice(x, last, second, d/2, step)
	put := func(x *Node, start int) *Node {
		return b.Add(Unslice{Axis: last, Size: d, Step: step}, x, b.Scalar(I64, float64(start)))
	}
	return []*Node{b.Binary(Add,
		put(b.Binary(Sub, b.Binary(Mul, u, cos), b.Binary(Mul, v, sin)), 0),
		put(b.Binary(Add, b.Binary(Mul, v, cos), b.Binary(Mul, u, sin)), second))}
}

// gradRoPE rotates the gradient back: a rotation's transpose is its inverse. That of the divisors
// goes through the primitives.
func gradRoPE(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op := n.Op.(RoPE)
	grads := make([]*Node, len(n.Args))
	if len(n.Args) == ropeOperands {
		first := len(b.g.Nodes)
		y := decomposeRoPE(b, op, n.Args)
		if b.Err() != nil {
			return nil, b.Err()
		}
		all, err := throughNodes(b, n, first, y, dys, func(a *Node) bool { return a == n.Args[ropeDivisors] })
		if err != nil {
			return nil, err
		}
		grads[ropeDivisors] = all[ropeDivisors]
	}
	op.Inverse = !op.Inverse
	grads[0] = b.Add(op, append([]*Node{dys[0]}, n.Args[1:]...)...)
	return grads, nil
}
