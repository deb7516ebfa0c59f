package graph

// The functions of truth values.
const (
	Not UnaryFn = endActivation + iota
	endUnaryLogic
)

// The functions of two truth values.
const (
	And BinaryFn = endArithmetic + iota
	Or
	endLogic
)

var unaryLogic = []UnaryInfo{
	{Fn: Not, Name: "not", Doc: "true where x is false", Of: Bools, FLOPs: 1, Eval: func(x float64) float64 { return b2f(x == 0) },
		EvalInt: func(x int64) int64 { return 1 - x }},
}

var logic = []BinaryInfo{
	{Fn: And, Name: "and", Doc: "true where both are", Of: Bools, Commutes: true, FLOPs: 1,
		Eval:    func(x, y float64) float64 { return b2f(x != 0 && y != 0) },
		EvalInt: func(x, y int64) (int64, error) { return x & y, nil },
		Form:    compared("and")},
	{Fn: Or, Name: "or", Doc: "true where one is", Of: Bools, Commutes: true, FLOPs: 1,
		Eval:    func(x, y float64) float64 { return b2f(x != 0 || y != 0) },
		EvalInt: func(x, y int64) (int64, error) { return x | y, nil },
		Form:    compared("or")},
}
