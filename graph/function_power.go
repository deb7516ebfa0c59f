package graph

import "math"

// The powers of x.
const (
	Sqrt UnaryFn = endExp + iota
	Rsqrt
	Recip
	Square
	Cube
	endPower
)

var powers = []UnaryInfo{
	{Fn: Sqrt, Name: "sqrt", Doc: "√x", Of: Floats, FLOPs: 1, Eval: math.Sqrt, Lo: 0.3, Hi: 2,
		Grad: func(d derivative) *Node { return d.div(d.dy, d.times(d.y, 2)) }},
	{Fn: Rsqrt, Name: "rsqrt", Doc: "1/√x", Of: Floats, FLOPs: 2, Eval: func(x float64) float64 { return 1 / math.Sqrt(x) },
		Lo: 0.3, Hi: 2,
		Grad: func(d derivative) *Node { return d.mul(d.dy, d.times(d.of(Cube, d.y), -0.5)) }},
	{Fn: Recip, Name: "recip", Doc: "1/x", Of: Floats, FLOPs: 1, Eval: func(x float64) float64 { return 1 / x },
		Lo: 0.3, Hi: 2, Bound: Bound{Pole: true}, Form: Form{Sign: "1 ÷ ", Bind: BindProduct, Right: BindPower},
		Grad: func(d derivative) *Node { return d.of(Neg, d.mul(d.dy, d.of(Square, d.y))) }},
	{Fn: Square, Name: "square", Doc: "x²", Of: Numbers, FLOPs: 1, Bound: Bound{Overflows: true},
		Eval: func(x float64) float64 { return x * x }, EvalInt: func(x int64) int64 { return x * x },
		Grad: func(d derivative) *Node { return d.mul(d.dy, d.times(d.x, 2)) },
		Form: Form{After: "²", Bind: BindPower, Right: BindAtom}},
	{Fn: Cube, Name: "cube", Doc: "x³", Of: Numbers, FLOPs: 2, Bound: Bound{Overflows: true},
		Eval: func(x float64) float64 { return x * x * x }, EvalInt: func(x int64) int64 { return x * x * x },
		Grad: func(d derivative) *Node { return d.mul(d.dy, d.times(d.of(Square, d.x), 3)) }},
}
