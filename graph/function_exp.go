package graph

import "math"

// The exponential functions and logarithms.
const (
	Exp UnaryFn = endSign + iota
	Expm1
	Log
	Log1p
	Log2
	endExp
)

var exponentials = []UnaryInfo{
	{Fn: Exp, Name: "exp", Doc: "eˣ", Of: Floats, FLOPs: 12, Bound: Bound{Overflows: true}, Eval: math.Exp,
		Grad: func(d derivative) *Node { return d.mul(d.dy, d.y) }},
	{Fn: Expm1, Name: "expm1", Doc: "eˣ − 1", Of: Floats, FLOPs: 16, Bound: Bound{Overflows: true}, Eval: math.Expm1,
		Grad: func(d derivative) *Node { return d.mul(d.dy, d.plus(d.y, 1)) }},
	{Fn: Log, Name: "log", Doc: "the natural logarithm", Of: Floats, FLOPs: 16, Eval: logarithm, Lo: 0.3, Hi: 2,
		Grad: func(d derivative) *Node { return d.div(d.dy, d.x) }},
	{Fn: Log1p, Name: "log1p", Doc: "log(1 + x)", Of: Floats, FLOPs: 18, Eval: math.Log1p, Lo: -0.7, Hi: 2,
		Grad: func(d derivative) *Node { return d.div(d.dy, d.plus(d.x, 1)) }},
	{Fn: Log2, Name: "log2", Doc: "the logarithm to base 2", Of: Floats, FLOPs: 17, Eval: math.Log2, Lo: 0.3, Hi: 2,
		Grad: func(d derivative) *Node { return d.div(d.dy, d.times(d.x, math.Ln2)) }},
}

// logarithm is the natural logarithm. math.Log is wrong for subnormal numbers on amd64, because it treats them as
// normal.
func logarithm(x float64) float64 {
	if 0 < x && x < smallestNormal {
		return math.Log(x*0x1p52) - 52*math.Ln2
	}
	return math.Log(x)
}

// power is x to the power y. math.Pow uses math.Log, and is wrong for subnormal x, too.
func power(x, y float64) float64 {
	if x != 0 && math.Abs(x) < smallestNormal {
		return math.Pow(x*0x1p52, y) * math.Exp2(-52*y)
	}
	return math.Pow(x, y)
}

// smallestNormal is the smallest float64 that is not subnormal.
const smallestNormal = 0x1p-1022
