package vec

import "math"

// unaryFuncs has the scalar form of each unary opcode.
var unaryFuncs = [numUnary]func(float64) float64{
	Neg:      func(x float64) float64 { return -x },
	Abs:      math.Abs,
	Sign:     sign,
	Ceil:     math.Ceil,
	Floor:    math.Floor,
	Round:    math.RoundToEven,
	Trunc:    math.Trunc,
	Sin:      math.Sin,
	Cos:      math.Cos,
	Exp:      math.Exp,
	Exp2:     math.Exp2,
	Expm1:    math.Expm1,
	Log:      math.Log,
	Log2:     math.Log2,
	Log1p:    math.Log1p,
	Square:   func(x float64) float64 { return x * x },
	Cube:     func(x float64) float64 { return x * x * x },
	Sqrt:     math.Sqrt,
	Rsqrt:    func(x float64) float64 { return 1 / math.Sqrt(x) },
	Recip:    func(x float64) float64 { return 1 / x },
	Tanh:     math.Tanh,
	Sigmoid:  sigmoid,
	Softplus: softplus,
	Erf:      math.Erf,
	ReLU:     func(x float64) float64 { return unlessNegative(x) },
	GELUTanh: geluTanh,
	GELUErf:  geluErf,
	SiLU:     silu,
	Not:      func(x float64) float64 { return one01[float64](x == 0) },
}

// sign is ±1 by the sign of x; ±0 and NaN stay.
func sign(x float64) float64 {
	if x == 0 || x != x {
		return x
	}
	return math.Copysign(1, x)
}

// sigmoid is 1/(1 + e^−x), by whichever of e^x and e^−x is below 1.
func sigmoid(x float64) float64 {
	if x < 0 {
		e := math.Exp(x)
		return e / (1 + e)
	}
	return 1 / (1 + math.Exp(-x))
}

// softplus is ln(1 + e^x) = max(x, 0) + ln(1 + e^−|x|).
func softplus(x float64) float64 {
	return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x)))
}

// gated is x·g, and 0 where the gate g is shut whatever x is.
func gated(x, g float64) float64 {
	if g == 0 {
		return math.Copysign(0, x)
	}
	return x * g
}

// silu is x·sigmoid(x).
func silu(x float64) float64 { return gated(x, sigmoid(x)) }

// geluTanh is ½x(1 + tanh u) = x·sigmoid(2u), which does not cancel.
func geluTanh(x float64) float64 {
	const first = 2 * math.Sqrt2 / 1.77245385090551602729816748334 // 2√(2/π)
	return gated(x, sigmoid(first*(x+0.044715*x*x*x)))
}

// geluErf is x·Φ(x), with Φ(x) = ½·erfc(−x/√2), which does not cancel.
func geluErf(x float64) float64 { return gated(x, 0.5*math.Erfc(-x/math.Sqrt2)) }

func leakyReLU[T Float](x, s T) T {
	if x >= 0 {
		return x
	}
	return x * s
}

func elu[T Float](x, s T) T {
	if x > 0 {
		return x
	}
	return T(float64(s) * math.Expm1(float64(x)))
}

// unlessNegative is 0 for negative x, else x: −0 and NaN stay.
func unlessNegative[T Float](x T) T {
	if x < 0 {
		return 0
	}
	return x
}

func neg[T Float](dst, x []T) {
	dst, x = cut1(dst, x)
	for i, v := range x {
		dst[i] = -v
	}
}

func square[T Float](dst, x []T) {
	dst, x = cut1(dst, x)
	for i, v := range x {
		dst[i] = v * v
	}
}

func cube[T Float](dst, x []T) {
	dst, x = cut1(dst, x)
	for i, v := range x {
		dst[i] = T(v*v) * v
	}
}

func recip[T Float](dst, x []T) {
	dst, x = cut1(dst, x)
	for i, v := range x {
		dst[i] = 1 / v
	}
}

func relu[T Float](dst, x []T) {
	dst, x = cut1(dst, x)
	for i, v := range x {
		dst[i] = unlessNegative(v)
	}
}
