package graph

import "math"

// The trigonometric functions, of radians.
const (
	Sin UnaryFn = endPower + iota
	Cos
	endWave
)

var waves = []UnaryInfo{
	{Fn: Sin, Name: "sin", Doc: "the sine", Of: Floats, FLOPs: 14, Bound: Bound{Wave: true}, Eval: math.Sin,
		Grad: func(d derivative) *Node { return d.mul(d.dy, d.of(Cos, d.x)) }},
	{Fn: Cos, Name: "cos", Doc: "the cosine", Of: Floats, FLOPs: 14, Bound: Bound{Wave: true}, Eval: math.Cos,
		Grad: func(d derivative) *Node { return d.of(Neg, d.mul(d.dy, d.of(Sin, d.x))) }},
}
