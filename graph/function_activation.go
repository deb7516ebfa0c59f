package graph

import "math"

// The activations, and what they are made of.
const (
	Tanh UnaryFn = endWave + iota
	Sigmoid
	Softplus // log(1+eˣ)
	Erf
	Relu
	LeakyRelu     // x where x ≥ 0, else Alpha·x
	Elu           // x where x ≥ 0, else Alpha·(eˣ−1)
	GeluTanh      // 0.5x(1+tanh(√(2/π)(x+0.044715x³))), Hendrycks and Gimpel, arXiv 1606.08415
	GeluTanhSlope // s+x·s(1−s)·(2u)′ with s=σ(2u), u=√(2/π)(x+0.044715x³)
	GeluErf       // 0.5x(1+erf(x/√2))
	GeluErfSlope  // Φ(x)+x·φ(x), with the normal distribution's Φ and φ
	Silu          // x·sigmoid(x)
	endActivation
)

var activations = []UnaryInfo{
	{Fn: Tanh, Name: "tanh", Doc: "the hyperbolic tangent", Of: Floats, FLOPs: 16, Eval: math.Tanh,
		Grad: func(d derivative) *Node { return d.mul(d.dy, d.oneMinus(d.of(Square, d.y))) }},
	{Fn: Sigmoid, Name: "sigmoid", Doc: "1/(1 + e⁻ˣ)", Of: Floats, FLOPs: 15, Eval: sigmoid,
		Grad: func(d derivative) *Node { return d.mul(d.dy, d.mul(d.y, d.oneMinus(d.y))) }},
	{Fn: Softplus, Name: "softplus", Doc: "log(1 + eˣ)", Of: Floats, FLOPs: 30, Eval: softplus,
		Grad: func(d derivative) *Node { return d.mul(d.dy, d.of(Sigmoid, d.x)) }},
	{Fn: Erf, Name: "erf", Doc: "the error function", Of: Floats, FLOPs: 24, Eval: math.Erf,
		Grad: func(d derivative) *Node {
			return d.mul(d.dy, d.times(d.of(Exp, d.of(Neg, d.of(Square, d.x))), 2/math.Sqrt(math.Pi)))
		}},
	{Fn: Relu, Name: "relu", Doc: "x where x ≥ 0, else 0", Of: Numbers, Idempotent: true, FLOPs: 1, Kink: true,
		Bound:   Bound{Terms: Exact},
		Eval:    func(x float64) float64 { return leaky(x, 0) },
		EvalInt: func(x int64) int64 { return max(x, 0) }, EvalU64: func(x uint64) uint64 { return x },
		Grad: func(d derivative) *Node {
			if d.op.AtZero == LeftSlope {
				d.x = d.y // y > 0 where x > 0, and so x need not be stored
			}
			return d.where(d.dy, d.Scalar(d.dy.Type.DType, 0))
		}},
	{Fn: LeakyRelu, Name: "leaky_relu", Doc: "x where x ≥ 0, else alpha·x", Of: Floats, FLOPs: 2, Kink: true, EvalAlpha: leaky,
		Grad: func(d derivative) *Node { return d.where(d.dy, d.times(d.dy, d.op.Alpha)) }},
	{Fn: Elu, Name: "elu", Doc: "x where x ≥ 0, else alpha·(eˣ − 1)", Of: Floats, FLOPs: 17, Kink: true,
		EvalAlpha: func(x, alpha float64) float64 {
			if x < 0 {
				return alpha * math.Expm1(x)
			}
			return x
		},
		Grad: func(d derivative) *Node {
			// The exponent is cut off at 0: where x > 0 it is not used, but its overflow would make the second derivative NaN.
			e := d.of(Exp, d.BinaryScalar(Min, d.x, 0))
			return d.where(d.dy, d.mul(d.dy, d.times(e, d.op.Alpha)))
		}},
	{Fn: GeluTanh, Name: "gelu_tanh", Doc: "0.5x(1 + tanh(√(2/π)(x + 0.044715x³)))", Of: Floats, FLOPs: 22,
		Bound: Bound{Terms: OfArguments},
		Eval: func(x float64) float64 { // x·sigmoid(2u), which does not cancel as 1 + tanh u does
			return gated(x, sigmoid(geluRate*(x+0.044715*x*x*x)))
		},
		Grad: func(d derivative) *Node { return d.mul(d.dy, d.of(GeluTanhSlope, d.x)) }},
	{Fn: GeluTanhSlope, Name: "gelu_tanh_slope", Doc: "σ(2u) + x·σ′(2u)·(2u)′ with u = √(2/π)(x + 0.044715x³), the slope of gelu_tanh",
		Of: Floats, FLOPs: 24, Bound: Bound{Terms: OfBoth},
		Eval: func(x float64) float64 {
			s := sigmoid(geluRate * (x + 0.044715*x*x*x))
			if s*(1-s) == 0 {
				return s
			}
			return s + x*s*(1-s)*geluRate*(1+3*0.044715*x*x)
		},
		Grad: func(d derivative) *Node { // s(1−s)·(2a + x·((1−2s)·a² + a′)) with a = (2u)′
			sq := d.of(Square, d.x)
			s := d.of(Sigmoid, d.mul(d.x, d.plus(d.times(sq, geluRate*0.044715), geluRate)))
			a := d.plus(d.times(sq, 3*geluRate*0.044715), geluRate)
			bend := d.add(d.mul(d.oneMinus(d.times(s, 2)), d.of(Square, a)), d.times(d.x, 6*geluRate*0.044715))
			return d.mul(d.dy, d.mul(d.mul(s, d.oneMinus(s)), d.add(d.times(a, 2), d.mul(d.x, bend))))
		}},
	{Fn: GeluErf, Name: "gelu_erf", Doc: "0.5x(1 + erf(x/√2))", Of: Floats, FLOPs: 27, Bound: Bound{Terms: OfArguments},
		Eval: func(x float64) float64 { return gated(x, 0.5*math.Erfc(-x/math.Sqrt2)) },
		Grad: func(d derivative) *Node { return d.mul(d.dy, d.of(GeluErfSlope, d.x)) }},
	{Fn: GeluErfSlope, Name: "gelu_erf_slope", Doc: "Φ(x) + x·φ(x), the slope of gelu_erf", Of: Floats, FLOPs: 27,
		Bound: Bound{Terms: OfBoth},
		Eval: func(x float64) float64 {
			return 0.5*math.Erfc(-x/math.Sqrt2) + gated(x, math.Exp(-0.5*x*x)/math.Sqrt(2*math.Pi))
		},
		Grad: func(d derivative) *Node { // φ(x)·(2 − x²)
			sq := d.of(Square, d.x)
			density := d.times(d.of(Exp, d.times(sq, -0.5)), 1/math.Sqrt(2*math.Pi))
			return d.mul(d.dy, d.mul(density, d.plus(d.times(sq, -1), 2)))
		}},
	{Fn: Silu, Name: "silu", Doc: "x·sigmoid(x)", Of: Floats, FLOPs: 16, Bound: Bound{Gated: true},
		Eval: func(x float64) float64 { return gated(x, sigmoid(x)) },
		Grad: func(d derivative) *Node {
			// s + y·(1−s), with s the sigmoid
			s := d.of(Sigmoid, d.x)
			return d.mul(d.dy, d.add(s, d.mul(d.y, d.oneMinus(s))))
		}},
}

// geluRate is 2√(2/π), the slope of 2u at 0 for the u of gelu_tanh.
const geluRate = 2 * math.Sqrt2 * math.SqrtPi / math.Pi

// sigmoid is computed with whichever of eˣ and e⁻ˣ is below 1.
func sigmoid(x float64) float64 {
	if x >= 0 {
		return 1 / (1 + math.Exp(-x))
	}
	e := math.Exp(x)
	return e / (1 + e)
}

// softplus is max(x, 0) + log(1 + e⁻|ˣ|).
func softplus(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }

// leaky is a·x where x is negative. −Inf by 0 is 0, the limit.
func leaky(x, a float64) float64 {
	if x < 0 {
		if a == 0 {
			return 0
		}
		return a * x
	}
	return x
}

// gated is x·g, and 0 where the gate g is 0, for any x: −Inf gives 0, the limit.
func gated(x, g float64) float64 {
	if g == 0 {
		return math.Copysign(0, x)
	}
	return x * g
}
