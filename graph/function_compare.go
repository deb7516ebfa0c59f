package graph

// The comparisons.
const (
	Lt BinaryFn = endLogic + iota
	Gt
	Le
	Ge
	Eq
	Ne
	endCompare
)

var comparisons = []BinaryInfo{
	{Fn: Lt, Name: "lt", Doc: "true where x < y", Of: Numbers, Compares: true, FLOPs: 1, Form: compared("<"),
		Eval:    func(x, y float64) float64 { return b2f(x < y) },
		EvalInt: func(x, y int64) (int64, error) { return truth(x < y), nil },
		EvalU64: func(x, y uint64) (uint64, error) { return uint64(truth(x < y)), nil }},
	{Fn: Gt, Name: "gt", Doc: "true where x > y", Of: Numbers, Compares: true, FLOPs: 1, Form: compared(">"),
		Eval:    func(x, y float64) float64 { return b2f(x > y) },
		EvalInt: func(x, y int64) (int64, error) { return truth(x > y), nil },
		EvalU64: func(x, y uint64) (uint64, error) { return uint64(truth(x > y)), nil }},
	{Fn: Le, Name: "le", Doc: "true where x ≤ y", Of: Numbers, Compares: true, FLOPs: 1, Form: compared("≤"),
		Eval:    func(x, y float64) float64 { return b2f(x <= y) },
		EvalInt: func(x, y int64) (int64, error) { return truth(x <= y), nil },
		EvalU64: func(x, y uint64) (uint64, error) { return uint64(truth(x <= y)), nil }},
	{Fn: Ge, Name: "ge", Doc: "true where x ≥ y", Of: Numbers, Compares: true, FLOPs: 1, Form: compared("≥"),
		Eval:    func(x, y float64) float64 { return b2f(x >= y) },
		EvalInt: func(x, y int64) (int64, error) { return truth(x >= y), nil },
		EvalU64: func(x, y uint64) (uint64, error) { return uint64(truth(x >= y)), nil }},
	{Fn: Eq, Name: "eq", Doc: "true where x = y", Of: Numbers | Bools, Compares: true, Commutes: true, FLOPs: 1, Form: compared("="),
		Eval:    func(x, y float64) float64 { return b2f(x == y) },
		EvalInt: func(x, y int64) (int64, error) { return truth(x == y), nil }},
	{Fn: Ne, Name: "ne", Doc: "true where x ≠ y", Of: Numbers | Bools, Compares: true, Commutes: true, FLOPs: 1, Form: compared("≠"),
		Eval:    func(x, y float64) float64 { return b2f(x != y) },
		EvalInt: func(x, y int64) (int64, error) { return truth(x != y), nil }},
}

func compared(sign string) Form {
	return Form{Sign: sign, Bind: BindCompare, Left: BindSum, Right: BindSum}
}
