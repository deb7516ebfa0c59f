package graph

import "math"

// The functions of the sign, and those that round.
const (
	Neg UnaryFn = iota
	Abs
	Sign
	Ceil
	Floor
	Round // half to even
	endSign
)

var signs = []UnaryInfo{
	{Fn: Neg, Name: "neg", Doc: "−x", Of: Numbers, Involution: true, FLOPs: 1, Bound: Bound{Terms: Exact},
		Eval: func(x float64) float64 { return -x }, EvalInt: func(x int64) int64 { return -x },
		Grad: func(d derivative) *Node { return d.of(Neg, d.dy) },
		Form: Form{Sign: "−", Bind: BindSum, Right: BindProduct}},
	{Fn: Abs, Name: "abs", Doc: "|x|", Of: Numbers, Idempotent: true, FLOPs: 1,
		Bound: Bound{Terms: Exact},
		Eval:  math.Abs, EvalInt: func(x int64) int64 { return max(x, -x) }, EvalU64: func(x uint64) uint64 { return x },
		Grad: func(d derivative) *Node { return d.mul(d.dy, d.of(Sign, d.x)) }},
	{Fn: Sign, Name: "sign", Doc: "−1, 0 or 1, the sign of x", Of: Numbers, Idempotent: true, FLOPs: 1,
		Bound: Bound{Terms: Exact},
		Eval: func(x float64) float64 {
			switch {
			case x > 0:
				return 1
			case x < 0:
				return -1
			}
			return x // ±0 and NaN
		},
		EvalInt: func(x int64) int64 { return truth(x > 0) - truth(x < 0) },
		EvalU64: func(x uint64) uint64 { return min(x, 1) }, Flat: true},
	{Fn: Ceil, Name: "ceil", Doc: "the least integer not below x", Of: Floats, Idempotent: true, FLOPs: 1,
		Bound: Bound{Terms: Exact},
		Eval:  math.Ceil, Flat: true},
	{Fn: Floor, Name: "floor", Doc: "the greatest integer not above x", Of: Floats, Idempotent: true, FLOPs: 1,
		Bound: Bound{Terms: Exact},
		Eval:  math.Floor, Flat: true},
	{Fn: Round, Name: "round", Doc: "the nearest integer; the even one of two", Of: Floats, Idempotent: true, FLOPs: 1,
		Bound: Bound{Terms: Exact},
		Eval:  math.RoundToEven, Flat: true},
}
