package graph

import "math"

// gradUnary gives dx = dy·f′(x), in terms of x and, where it is cheaper, of the value y = f(x).
func gradUnary(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op, x, y, dy := n.Op.(Unary), n.Args[0], n, dys[0]
	mul := func(u, v *Node) *Node { return b.Binary(Mul, u, v) }
	times := func(u *Node, c float64) *Node { return b.BinaryScalar(Mul, u, c) }
	plus := func(u *Node, c float64) *Node { return b.BinaryScalar(Add, u, c) }
	// where is x > 0 ? u : v, and at 0 what AtZero says.
	where := func(u, v *Node) *Node {
		switch op.AtZero {
		case RightSlope:
			return b.Add(Select{}, b.BinaryScalar(Ge, x, 0), u, v)
		case MeanSlope:
			v = b.Add(Select{}, b.BinaryScalar(Eq, x, 0), times(b.Binary(Add, u, v), 0.5), v)
		}
		return b.Add(Select{}, b.BinaryScalar(Gt, x, 0), u, v)
	}

	var dx *Node
	switch op.Fn {
	case Neg:
		dx = b.Unary(Neg, dy)
	case Abs:
		dx = mul(dy, b.Unary(Sign, x))
	case Exp:
		dx = mul(dy, y)
	case Expm1:
		dx = mul(dy, plus(y, 1))
	case Log:
		dx = b.Binary(Div, dy, x)
	case Log1p:
		dx = b.Binary(Div, dy, plus(x, 1))
	case Log2:
		dx = b.Binary(Div, dy, times(x, math.Ln2))
	case Sqrt:
		dx = b.Binary(Div, dy, times(y, 2))
	case Rsqrt:
		dx = mul(dy, times(b.Unary(Cube, y), -0.5))
	case Recip:
		dx = b.Unary(Neg, mul(dy, b.Unary(Square, y)))
	case Square:
		dx = mul(dy, times(x, 2))
	case Cube:
		dx = mul(dy, times(b.Unary(Square, x), 3))
	case Sin:
		dx = mul(dy, b.Unary(Cos, x))
	case Cos:
		dx = b.Unary(Neg, mul(dy, b.Unary(Sin, x)))
	case Tanh:
		dx = mul(dy, oneMinus(b, b.Unary(Square, y)))
	case Sigmoid:
		dx = mul(dy, mul(y, oneMinus(b, y)))
	case Softplus:
		dx = mul(dy, b.Unary(Sigmoid, x))
	case Erf:
		dx = mul(dy, times(b.Unary(Exp, b.Unary(Neg, b.Unary(Square, x))), 2/math.Sqrt(math.Pi)))
	case Relu:
		if op.AtZero == LeftSlope {
			x = y // which is > 0 where x is: then x need not be kept
		}
		dx = where(dy, b.Scalar(dy.Type.DType, 0))
	case LeakyRelu:
		dx = where(dy, times(dy, op.Alpha))
	case Elu:
		// The exponent is cut off at 0: where x > 0 it is not used, but its overflow would make the second derivative NaN.
		e := b.Unary(Exp, b.BinaryScalar(Min, x, 0))
		dx = where(dy, mul(dy, times(e, op.Alpha)))
	case GeluTanh:
		dx = mul(dy, geluTanhSlope(b, x, y))
	case GeluErf:
		// Φ(x) + x·φ(x), with the normal distribution's Φ and φ
		phi := times(plus(b.Unary(Erf, times(x, 1/math.Sqrt2)), 1), 0.5)
		density := times(b.Unary(Exp, times(b.Unary(Square, x), -0.5)), 1/math.Sqrt(2*math.Pi))
		dx = mul(dy, b.Binary(Add, phi, mul(x, density)))
	case Silu:
		// s + y·(1−s), with s the sigmoid
		s := b.Unary(Sigmoid, x)
		dx = mul(dy, b.Binary(Add, s, mul(y, oneMinus(b, s))))
	}
	return []*Node{dx}, nil // nil for the functions that are constant between jumps
}

// oneMinus is 1 − x.
func oneMinus(b *Builder, x *Node) *Node { return b.Binary(Sub, b.Scalar(x.Type.DType, 1), x) }

// geluTanhSlope is s + y(1−s)·2u′ with s = ½(1+tanh u) = σ(2u), y = x·s and u = √(2/π)(x+0.044715x³). Unlike 1+tanh,
// the sigmoid does not cancel.
func geluTanhSlope(b *Builder, x, y *Node) *Node {
	k := 2 * math.Sqrt(2/math.Pi)
	sq := b.Unary(Square, x)
	u := b.Binary(Mul, x, b.BinaryScalar(Add, b.BinaryScalar(Mul, sq, k*0.044715), k))
	s := b.Unary(Sigmoid, u)
	slope := b.BinaryScalar(Add, b.BinaryScalar(Mul, sq, 3*k*0.044715), k)
	return b.Binary(Add, s, b.Binary(Mul, b.Binary(Mul, y, oneMinus(b, s)), slope))
}

// gradBinary sums the gradient of an operand that stood for all elements. Comparisons give Bools and are never asked.
func gradBinary(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	x, y, dy := n.Args[0], n.Args[1], dys[0]
	var dx, dz *Node
	switch op := n.Op.(Binary); op.Fn {
	case Add:
		dx, dz = dy, dy
	case Sub:
		dx, dz = dy, b.Unary(Neg, dy)
	case Mul:
		dx, dz = b.Binary(Mul, dy, y), b.Binary(Mul, dy, x)
	case Div:
		dx = b.Binary(Div, dy, y)
		dz = b.Unary(Neg, b.Binary(Mul, dx, n))
	case Pow:
		dx, dz = gradPow(b, n, dy)
	case Max:
		dx, dz = gradExtreme(b, Gt, x, y, dy)
	case Min:
		dx, dz = gradExtreme(b, Lt, x, y, dy)
	}
	if dx != nil {
		dx = b.SumTo(dx, x.Type.Shape)
	}
	return []*Node{dx, b.SumTo(dz, y.Type.Shape)}, nil
}

// gradPow gives dy·y·x^(y−1), which is 0 for y = 0, and dy·x^y·log x, which is 0 for x = 0 and y ≥ 0, as in PyTorch.
func gradPow(b *Builder, n, dy *Node) (dx, dz *Node) {
	x, y := n.Args[0], n.Args[1]
	zero := b.Scalar(dy.Type.DType, 0)
	switch c, constant := y.ConstScalar(); {
	case constant && c == 0:
	case constant && c == 1:
		dx = dy
	case constant && c == 2:
		dx = b.Binary(Mul, dy, b.BinaryScalar(Mul, x, 2))
	case constant:
		dx = b.Binary(Mul, dy, b.BinaryScalar(Mul, b.BinaryScalar(Pow, x, c-1), c))
	default:
		slope := b.Binary(Mul, y, b.Binary(Pow, x, b.BinaryScalar(Sub, y, 1)))
		dx = b.Binary(Mul, dy, b.Add(Select{}, b.BinaryScalar(Eq, y, 0), zero, slope))
	}
	flat := b.Binary(And, b.BinaryScalar(Eq, x, 0), b.BinaryScalar(Ge, y, 0))
	slope := b.Binary(Mul, n, b.Unary(Log, x))
	dz = b.Binary(Mul, dy, b.Add(Select{}, flat, zero, slope))
	return dx, dz
}

// gradExtreme passes dy to the operand that wins by the comparison, and half of it to each where they are equal.
func gradExtreme(b *Builder, wins BinaryFn, x, y, dy *Node) (dx, dz *Node) {
	zero := b.Scalar(dy.Type.DType, 0)
	tied := b.Add(Select{}, b.Binary(Eq, x, y), b.BinaryScalar(Mul, dy, 0.5), zero)
	dx = b.Add(Select{}, b.Binary(wins, x, y), dy, tied)
	dz = b.Add(Select{}, b.Binary(wins, y, x), dy, tied)
	return dx, dz
}

func gradSelect(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	cond, dy := n.Args[0], dys[0]
	zero := b.Scalar(dy.Type.DType, 0)
	da := b.SumTo(b.Add(Select{}, cond, dy, zero), n.Args[1].Type.Shape)
	db := b.SumTo(b.Add(Select{}, cond, zero, dy), n.Args[2].Type.Shape)
	return []*Node{nil, da, db}, nil
}

func gradCast(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	return []*Node{b.CastTo(n.Args[0].Type.DType.Accumulator(), dys[0])}, nil
}
