package graph

import "math"

// The trigonometric functions, of radians, the hyperbolic ones, and their inverses.
const (
	Sin UnaryFn = endPower + iota
	Cos
	Tan
	Asin
	Acos
	Atan
	Sinh
	Cosh
	Asinh
	Acosh
	Atanh
	endWave
)

var waves = []UnaryInfo{
	{Fn: Sin, Name: "sin", Doc: "the sine", Of: Floats, FLOPs: 14, Bound: Bound{Wave: true}, Eval: math.Sin,
		Grad: func(d derivative) *Node { return d.mul(d.dy, d.of(Cos, d.x)) }},
	{Fn: Cos, Name: "cos", Doc: "the cosine", Of: Floats, FLOPs: 14, Bound: Bound{Wave: true}, Eval: math.Cos,
		Grad: func(d derivative) *Node { return d.of(Neg, d.mul(d.dy, d.of(Sin, d.x))) }},
	{Fn: Tan, Name: "tan", Doc: "the tangent", Of: Floats, FLOPs: 15, Bound: Bound{Poles: true}, Eval: math.Tan, Lo: -1.2, Hi: 1.2,
		Grad: func(d derivative) *Node { return d.mul(d.dy, d.plus(d.of(Square, d.y), 1)) }},
	{Fn: Asin, Name: "asin", Doc: "the inverse of the sine, from −π/2 to π/2", Of: Floats, FLOPs: 14, Lo: -0.9, Hi: 0.9,
		Eval: func(x float64) float64 { return math.Atan2(x, math.Sqrt((1-x)*(1+x))) },
		Grad: func(d derivative) *Node { return d.mul(d.dy, d.of(Rsqrt, d.oneMinus(d.of(Square, d.x)))) }},
	{Fn: Acos, Name: "acos", Doc: "the inverse of the cosine, from 0 to π", Of: Floats, FLOPs: 16, Lo: -0.9, Hi: 0.9,
		Eval: func(x float64) float64 { return 2 * math.Atan2(math.Sqrt(1-x), math.Sqrt(1+x)) },
		Grad: func(d derivative) *Node { return d.of(Neg, d.mul(d.dy, d.of(Rsqrt, d.oneMinus(d.of(Square, d.x))))) }},
	{Fn: Atan, Name: "atan", Doc: "the inverse of the tangent, from −π/2 to π/2", Of: Floats, FLOPs: 14, Eval: math.Atan,
		Grad: func(d derivative) *Node { return d.div(d.dy, d.plus(d.of(Square, d.x), 1)) }},
	{Fn: Sinh, Name: "sinh", Doc: "(eˣ − e⁻ˣ)/2", Of: Floats, FLOPs: 18, Bound: Bound{Overflows: true}, Eval: math.Sinh,
		Grad: func(d derivative) *Node { return d.mul(d.dy, d.of(Cosh, d.x)) }},
	{Fn: Cosh, Name: "cosh", Doc: "(eˣ + e⁻ˣ)/2", Of: Floats, FLOPs: 15, Bound: Bound{Overflows: true}, Eval: math.Cosh,
		Grad: func(d derivative) *Node { return d.mul(d.dy, d.of(Sinh, d.x)) }},
	{Fn: Asinh, Name: "asinh", Doc: "the inverse of sinh", Of: Floats, FLOPs: 24, Eval: math.Asinh,
		Grad: func(d derivative) *Node { return d.mul(d.dy, d.of(Rsqrt, d.plus(d.of(Square, d.x), 1))) }},
	{Fn: Acosh, Name: "acosh", Doc: "the inverse of cosh, from 0 on", Of: Floats, FLOPs: 24, Eval: math.Acosh, Lo: 1.2, Hi: 3,
		Grad: func(d derivative) *Node { return d.mul(d.dy, d.of(Rsqrt, d.plus(d.of(Square, d.x), -1))) }},
	{Fn: Atanh, Name: "atanh", Doc: "the inverse of tanh", Of: Floats, FLOPs: 22, Eval: math.Atanh, Lo: -0.9, Hi: 0.9,
		Grad: func(d derivative) *Node { return d.div(d.dy, d.oneMinus(d.of(Square, d.x))) }},
}
