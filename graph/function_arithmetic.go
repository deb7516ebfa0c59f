package graph

import (
	"errors"
	"math"
)

// The arithmetic of two variables.
const (
	Add BinaryFn = iota
	Sub
	Mul
	Div // of integers: truncated; by zero: an error at run time
	Pow
	Max // NaN if either is
	Min // NaN if either is
	Rem // x − y·trunc(x/y), with the sign of x; of integers by zero: an error at run time
	Mod // x − y·⌊x/y⌋, with the sign of y; of integers by zero: an error at run time
	endArithmetic
)

var (
	errDivision = errors.New("division of an integer by zero")
	errPower    = errors.New("integer zero to a negative power")
)

var arithmetic = []BinaryInfo{
	{Fn: Add, Name: "add", Doc: "x + y", Of: Numbers, Commutes: true, FLOPs: 1, Bound: Bound{Terms: OfArguments},
		Eval:    func(x, y float64) float64 { return x + y },
		EvalInt: func(x, y int64) (int64, error) { return x + y, nil },
		Grad:    func(_ *Builder, _, dy *Node) (dx, dz *Node) { return dy, dy },
		Form:    Form{Sign: "+", Bind: BindSum, Left: BindSum, Right: BindSum}},
	{Fn: Sub, Name: "sub", Doc: "x − y", Of: Numbers, FLOPs: 1, Bound: Bound{Terms: OfArguments},
		Eval:    func(x, y float64) float64 { return x - y },
		EvalInt: func(x, y int64) (int64, error) { return x - y, nil },
		Grad:    func(b *Builder, _, dy *Node) (dx, dz *Node) { return dy, b.Unary(Neg, dy) },
		Form:    Form{Sign: "−", Bind: BindSum, Left: BindSum, Right: BindProduct}},
	{Fn: Mul, Name: "mul", Doc: "x·y", Of: Numbers, Commutes: true, FLOPs: 1,
		Eval:    func(x, y float64) float64 { return x * y },
		EvalInt: func(x, y int64) (int64, error) { return x * y, nil },
		Grad: func(b *Builder, n, dy *Node) (dx, dz *Node) {
			return b.Binary(Mul, dy, n.Args[1]), b.Binary(Mul, dy, n.Args[0])
		},
		Form: Form{Sign: "×", Bind: BindProduct, Left: BindProduct, Right: BindProduct}},
	{Fn: Div, Name: "div", Doc: "x/y; of integers truncated", Of: Numbers, Fails: true, FLOPs: 1, Bound: Bound{Pole: true},
		Eval: func(x, y float64) float64 { return x / y }, YLo: 0.5, YHi: 2,
		EvalInt: func(x, y int64) (int64, error) {
			if y == 0 {
				return 0, errDivision
			}
			return x / y, nil
		},
		EvalU64: func(x, y uint64) (uint64, error) {
			if y == 0 {
				return 0, errDivision
			}
			return x / y, nil
		},
		Grad: func(b *Builder, n, dy *Node) (dx, dz *Node) {
			dx = b.Binary(Div, dy, n.Args[1])
			return dx, b.Unary(Neg, b.Binary(Mul, dx, n))
		},
		Form: Form{Sign: "÷", Bind: BindProduct, Left: BindProduct, Right: BindPower}},
	{Fn: Pow, Name: "pow", Doc: "x to the power y; of integers truncated", Of: Numbers, Fails: true, FLOPs: 30, Eval: power,
		EvalInt: powInt, EvalU64: func(x, y uint64) (uint64, error) { return raise(x, y), nil }, Grad: gradPow, XLo: 0.3, XHi: 2,
		Form: Form{Sign: "^", Bind: BindPower, Left: BindAtom, Right: BindAtom}},
	{Fn: Max, Name: "max", Doc: "the greater; NaN if either is", Of: Numbers, Commutes: true, FLOPs: 1, Bound: Bound{Terms: Exact},
		Eval:    func(x, y float64) float64 { return max(x, y) },
		EvalInt: func(x, y int64) (int64, error) { return max(x, y), nil },
		EvalU64: func(x, y uint64) (uint64, error) { return max(x, y), nil },
		Grad:    func(b *Builder, n, dy *Node) (dx, dz *Node) { return gradExtreme(b, Gt, n, dy) },
		Form:    Form{Sign: "max"}},
	{Fn: Min, Name: "min", Doc: "the lesser; NaN if either is", Of: Numbers, Commutes: true, FLOPs: 1, Bound: Bound{Terms: Exact},
		Eval:    func(x, y float64) float64 { return min(x, y) },
		EvalInt: func(x, y int64) (int64, error) { return min(x, y), nil },
		EvalU64: func(x, y uint64) (uint64, error) { return min(x, y), nil },
		Grad:    func(b *Builder, n, dy *Node) (dx, dz *Node) { return gradExtreme(b, Lt, n, dy) },
		Form:    Form{Sign: "min"}},
	{Fn: Rem, Name: "rem", Doc: "the remainder of x/y truncated, with the sign of x", Of: Numbers, Fails: true, FLOPs: 20,
		Eval: math.Mod, Bound: Bound{Jumps: true}, XLo: 2.2, XHi: 2.8, YLo: 1.5, YHi: 2,
		EvalInt: remainder[int64], EvalU64: remainder[uint64], Grad: gradRemainder, Form: Form{Sign: "rem"}},
	{Fn: Mod, Name: "mod", Doc: "the remainder of x/y rounded down, with the sign of y", Of: Numbers, Fails: true, FLOPs: 21,
		Eval: modulo, Bound: Bound{Jumps: true}, XLo: 2.2, XHi: 2.8, YLo: -2, YHi: -1.5,
		EvalInt: func(x, y int64) (int64, error) {
			r, err := remainder(x, y)
			if r != 0 && (r < 0) != (y < 0) {
				r += y
			}
			return r, err
		},
		EvalU64: remainder[uint64], Grad: gradRemainder, Form: Form{Sign: "mod"}},
}

func remainder[T int64 | uint64](x, y T) (T, error) {
	if y == 0 {
		return 0, errDivision
	}
	return x % y, nil
}

// modulo is x − y·⌊x/y⌋; a remainder of 0 has the sign of y.
func modulo(x, y float64) float64 {
	r := math.Mod(x, y)
	switch {
	case r == 0:
		return math.Copysign(0, y)
	case (r < 0) != (y < 0):
		return r + y
	}
	return r
}

// gradRemainder gives dy, and −dy·q with the whole number q = (x − n)/y. The jumps have no gradient.
func gradRemainder(b *Builder, n, dy *Node) (dx, dz *Node) {
	x, y := n.Args[0], n.Args[1]
	q := b.Unary(Round, b.Binary(Div, b.Binary(Sub, x, n), y))
	return dy, b.Unary(Neg, b.Binary(Mul, dy, q))
}

// powInt is x to the power y, truncated where y is negative.
func powInt(x, y int64) (int64, error) {
	if y < 0 {
		if x == 0 {
			return 0, errPower
		}
		if x != 1 && x != -1 {
			return 0, nil
		}
		y = -(y % 2) // a power of ±1 depends only on the parity of the exponent
	}
	return raise(x, y), nil
}

// raise is x to the power y ≥ 0.
func raise[T int64 | uint64](x, y T) T {
	r := T(1)
	for ; y > 0; y >>= 1 {
		if y&1 == 1 {
			r *= x
		}
		x *= x
	}
	return r
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
func gradExtreme(b *Builder, wins BinaryFn, n, dy *Node) (dx, dz *Node) {
	x, y := n.Args[0], n.Args[1]
	zero := b.Scalar(dy.Type.DType, 0)
	tied := b.Add(Select{}, b.Binary(Eq, x, y), b.BinaryScalar(Mul, dy, 0.5), zero)
	dx = b.Add(Select{}, b.Binary(wins, x, y), dy, tied)
	dz = b.Add(Select{}, b.Binary(wins, y, x), dy, tied)
	return dx, dz
}
