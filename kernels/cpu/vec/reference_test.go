package vec

import "math"

// reference has each unary opcode in float64, by the formula of its definition
// where that does not cancel.
var reference = [numUnary]func(float64) float64{
	Neg:     func(x float64) float64 { return -x },
	Abs:     math.Abs,
	Sign:    refSign,
	Ceil:    math.Ceil,
	Floor:   math.Floor,
	Round:   math.RoundToEven,
	Trunc:   math.Trunc,
	Sin:     math.Sin,
	Cos:     math.Cos,
	Exp:     math.Exp,
	Exp2:    math.Exp2,
	Expm1:   math.Expm1,
	Log:     math.Log,
	Log2:    math.Log2,
	Log1p:   math.Log1p,
	Square:  func(x float64) float64 { return x * x },
	Cube:    func(x float64) float64 { return x * x * x },
	Sqrt:    math.Sqrt,
	Rsqrt:   func(x float64) float64 { return 1 / math.Sqrt(x) },
	Recip:   func(x float64) float64 { return 1 / x },
	Tanh:    math.Tanh,
	Sigmoid: func(x float64) float64 { return 1 / (1 + math.Exp(-x)) },
	Softplus: func(x float64) float64 {
		if x > 40 {
			return x
		}
		return math.Log1p(math.Exp(x))
	},
	Erf: math.Erf,
	ReLU: func(x float64) float64 {
		if x < 0 {
			return 0
		}
		return x
	},
	GELUTanh: func(x float64) float64 {
		if x < -100 {
			return math.Copysign(0, -1)
		}
		return x / (1 + math.Exp(-2*math.Sqrt(2/math.Pi)*(x+0.044715*math.Pow(x, 3))))
	},
	GELUErf: func(x float64) float64 {
		if x < -100 {
			return math.Copysign(0, -1)
		}
		return x * math.Erfc(-x*math.Sqrt(0.5)) / 2
	},
	SiLU: func(x float64) float64 {
		if x < -1000 {
			return math.Copysign(0, -1)
		}
		return x / (1 + math.Exp(-x))
	},
	Not: func(x float64) float64 {
		if x == 0 {
			return 1
		}
		return 0
	},
}

func refSign(x float64) float64 {
	switch {
	case x > 0:
		return 1
	case x < 0:
		return -1
	}
	return x
}
