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
	{Fn: Log, Name: "log", Doc: "the natural logarithm", Of: Floats, FLOPs: 16, Eval: math.Log, Lo: 0.3, Hi: 2,
		Grad: func(d derivative) *Node { return d.div(d.dy, d.x) }},
	{Fn: Log1p, Name: "log1p", Doc: "log(1 + x)", Of: Floats, FLOPs: 18, Eval: math.Log1p, Lo: -0.7, Hi: 2,
		Grad: func(d derivative) *Node { return d.div(d.dy, d.plus(d.x, 1)) }},
	{Fn: Log2, Name: "log2", Doc: "the logarithm to base 2", Of: Floats, FLOPs: 17, Eval: math.Log2, Lo: 0.3, Hi: 2,
		Grad: func(d derivative) *Node { return d.div(d.dy, d.times(d.x, math.Ln2)) }},
}
