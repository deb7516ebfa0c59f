package vec

import (
	"math"

	"fusec/graph"
)

// reference has unary opcodes in float64, by other formulas than their rows where
// that is possible.
var reference = map[graph.UnaryFn]func(float64) float64{
	graph.Neg:     func(x float64) float64 { return -x },
	graph.Abs:     math.Abs,
	graph.Sign:    refSign,
	graph.Ceil:    math.Ceil,
	graph.Floor:   math.Floor,
	graph.Round:   math.RoundToEven,
	graph.Sin:     math.Sin,
	graph.Cos:     math.Cos,
	graph.Tan:     func(x float64) float64 { return math.Sin(x) / math.Cos(x) },
	graph.Asin:    math.Asin,
	graph.Acos:    func(x float64) float64 { return 2 * math.Asin(math.Sqrt((1-x)/2)) },
	graph.Atan:    math.Atan,
	graph.Sinh:    func(x float64) float64 { return (math.Expm1(x) - math.Expm1(-x)) / 2 },
	graph.Cosh:    math.Cosh,
	graph.Asinh:   math.Asinh,
	graph.Acosh:   func(x float64) float64 { return math.Asinh(math.Sqrt(x-1) * math.Sqrt(x+1)) },
	graph.Atanh:   math.Atanh,
	graph.Exp:     math.Exp,
	graph.Expm1:   math.Expm1,
	graph.Log:     math.Log,
	graph.Log2:    math.Log2,
	graph.Log1p:   math.Log1p,
	graph.Square:  func(x float64) float64 { return x * x },
	graph.Cube:    func(x float64) float64 { return x * x * x },
	graph.Sqrt:    math.Sqrt,
	graph.Rsqrt:   func(x float64) float64 { return 1 / math.Sqrt(x) },
	graph.Recip:   func(x float64) float64 { return 1 / x },
	graph.Tanh:    math.Tanh,
	graph.Sigmoid: func(x float64) float64 { return 1 / (1 + math.Exp(-x)) },
	graph.Softplus: func(x float64) float64 {
		if x > 40 {
			return x
		}
		return math.Log1p(math.Exp(x))
	},
	graph.Erf: math.Erf,
	graph.Relu: func(x float64) float64 {
		if x < 0 {
			return 0
		}
		return x
	},
	graph.GeluTanh: func(x float64) float64 {
		if x < -100 {
			return math.Copysign(0, -1)
		}
		return x / (1 + math.Exp(-2*math.Sqrt(2/math.Pi)*(x+0.044715*math.Pow(x, 3))))
	},
	graph.GeluErf: func(x float64) float64 {
		if x < -100 {
			return math.Copysign(0, -1)
		}
		return x * math.Erfc(-x*math.Sqrt(0.5)) / 2
	},
	graph.GeluTanhSlope: func(x float64) float64 {
		if math.Abs(x) > 100 {
			return max(math.Copysign(1, x), 0)
		}
		k := 2 * math.Sqrt(2/math.Pi)
		s := 1 / (1 + math.Exp(-k*(x+0.044715*math.Pow(x, 3))))
		return s + x*s*(1-s)*k*(1+3*0.044715*x*x)
	},
	graph.GeluErfSlope: func(x float64) float64 {
		if math.Abs(x) > 100 {
			return max(math.Copysign(1, x), 0)
		}
		return math.Erfc(-x*math.Sqrt(0.5))/2 + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
	},
	graph.Silu: func(x float64) float64 {
		if x < -1000 {
			return math.Copysign(0, -1)
		}
		return x / (1 + math.Exp(-x))
	},
	graph.Not: func(x float64) float64 {
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
