package graph

import "math"

// The functions of truth values.
const (
	Not UnaryFn = endActivation + iota
	endUnaryLogic
)

// The functions of two truth values, or of the bits of two integers.
const (
	And BinaryFn = endArithmetic + iota
	Or
	Xor
	Shl // a number of bits that is negative, or not less than there are, shifts all of them out
	Shr // of signed integers with the sign; see Shl
	endLogic
)

var unaryLogic = []UnaryInfo{
	{Fn: Not, Name: "not", Doc: "true where x is false", Of: Bools, Involution: true, FLOPs: 1,
		Eval:    func(x float64) float64 { return b2f(x == 0) },
		EvalInt: func(x int64) int64 { return 1 - x }},
}

var logic = []BinaryInfo{
	{Fn: And, Name: "and", Doc: "true where both are; of integers bit by bit", Of: Bools | Integers, Commutes: true, FLOPs: 1,
		Eval:    func(x, y float64) float64 { return b2f(x != 0 && y != 0) },
		EvalInt: func(x, y int64) (int64, error) { return x & y, nil },
		Form:    compared("and")},
	{Fn: Or, Name: "or", Doc: "true where one is; of integers bit by bit", Of: Bools | Integers, Commutes: true, FLOPs: 1,
		Eval:    func(x, y float64) float64 { return b2f(x != 0 || y != 0) },
		EvalInt: func(x, y int64) (int64, error) { return x | y, nil },
		Form:    compared("or")},
	{Fn: Xor, Name: "xor", Doc: "true where they differ; of integers bit by bit", Of: Bools | Integers, Commutes: true, FLOPs: 1,
		Eval:    func(x, y float64) float64 { return b2f((x != 0) != (y != 0)) },
		EvalInt: func(x, y int64) (int64, error) { return x ^ y, nil },
		Form:    compared("xor")},
	{Fn: Shl, Name: "shl", Doc: "x shifted left by y bits", Of: Integers, FLOPs: 1, Form: Form{Sign: "shl"},
		Eval:    func(x, y float64) float64 { return math.Ldexp(x, int(y)) },
		EvalInt: func(x, y int64) (int64, error) { return x << uint64(y), nil }},
	{Fn: Shr, Name: "shr", Doc: "x shifted right by y bits", Of: Integers, FLOPs: 1, Form: Form{Sign: "shr"},
		Eval:    func(x, y float64) float64 { return math.Floor(math.Ldexp(x, -int(y))) },
		EvalInt: func(x, y int64) (int64, error) { return x >> uint64(y), nil },
		EvalU64: func(x, y uint64) (uint64, error) { return x >> y, nil }},
}
