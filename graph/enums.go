package graph

import (
	"fmt"
	"math"
)

// UnaryFn is a function of one variable.
type UnaryFn uint8

// The functions of one variable.
const (
	Neg UnaryFn = iota
	Abs
	Sign
	Ceil
	Floor
	Round // half to even
	Exp
	Expm1
	Log
	Log1p
	Log2
	Sqrt
	Rsqrt // 1/√x
	Recip // 1/x
	Square
	Cube
	Sin
	Cos
	Tanh
	Sigmoid
	Softplus // log(1+eˣ)
	Erf
	Relu
	LeakyRelu // x where x ≥ 0, else Alpha·x
	Elu       // x where x ≥ 0, else Alpha·(eˣ−1)
	GeluTanh  // 0.5x(1+tanh(√(2/π)(x+0.044715x³))), Hendrycks and Gimpel, arXiv 1606.08415
	GeluErf   // 0.5x(1+erf(x/√2))
	Silu      // x·sigmoid(x)
	Not       // of a Bool
)

// unaryFns gives each function's name, its value in float64 (which is its meaning) and its cost in FLOPs.
var unaryFns = [...]struct {
	name  string
	eval  func(x, alpha float64) float64
	flops int64
}{
	Neg:       {"neg", func(x, _ float64) float64 { return -x }, 1},
	Abs:       {"abs", func(x, _ float64) float64 { return math.Abs(x) }, 1},
	Sign:      {"sign", func(x, _ float64) float64 { return sign(x) }, 1},
	Ceil:      {"ceil", func(x, _ float64) float64 { return math.Ceil(x) }, 1},
	Floor:     {"floor", func(x, _ float64) float64 { return math.Floor(x) }, 1},
	Round:     {"round", func(x, _ float64) float64 { return math.RoundToEven(x) }, 1},
	Exp:       {"exp", func(x, _ float64) float64 { return math.Exp(x) }, 12},
	Expm1:     {"expm1", func(x, _ float64) float64 { return math.Expm1(x) }, 16},
	Log:       {"log", func(x, _ float64) float64 { return math.Log(x) }, 16},
	Log1p:     {"log1p", func(x, _ float64) float64 { return math.Log1p(x) }, 18},
	Log2:      {"log2", func(x, _ float64) float64 { return math.Log2(x) }, 17},
	Sqrt:      {"sqrt", func(x, _ float64) float64 { return math.Sqrt(x) }, 1},
	Rsqrt:     {"rsqrt", func(x, _ float64) float64 { return 1 / math.Sqrt(x) }, 2},
	Recip:     {"recip", func(x, _ float64) float64 { return 1 / x }, 1},
	Square:    {"square", func(x, _ float64) float64 { return x * x }, 1},
	Cube:      {"cube", func(x, _ float64) float64 { return x * x * x }, 2},
	Sin:       {"sin", func(x, _ float64) float64 { return math.Sin(x) }, 14},
	Cos:       {"cos", func(x, _ float64) float64 { return math.Cos(x) }, 14},
	Tanh:      {"tanh", func(x, _ float64) float64 { return math.Tanh(x) }, 16},
	Sigmoid:   {"sigmoid", func(x, _ float64) float64 { return sigmoid(x) }, 15},
	Softplus:  {"softplus", func(x, _ float64) float64 { return softplus(x) }, 30},
	Erf:       {"erf", func(x, _ float64) float64 { return math.Erf(x) }, 24},
	Relu:      {"relu", func(x, _ float64) float64 { return leaky(x, 0) }, 1},
	LeakyRelu: {"leaky_relu", leaky, 2},
	Elu:       {"elu", elu, 17},
	GeluTanh:  {"gelu_tanh", func(x, _ float64) float64 { return geluTanh(x) }, 22},
	GeluErf:   {"gelu_erf", func(x, _ float64) float64 { return geluErf(x) }, 27},
	Silu:      {"silu", func(x, _ float64) float64 { return silu(x) }, 16},
	Not:       {"not", func(x, _ float64) float64 { return b2f(x == 0) }, 1},
}

// String gives the function's name in the text form.
func (f UnaryFn) String() string { return unaryFns[f].name }

// Eval is the function's value; alpha is ignored by functions without a parameter.
func (f UnaryFn) Eval(x, alpha float64) float64 { return unaryFns[f].eval(x, alpha) }

func b2f(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func sign(x float64) float64 {
	switch {
	case x > 0:
		return 1
	case x < 0:
		return -1
	}
	return x // ±0 and NaN
}

func sigmoid(x float64) float64 {
	if x >= 0 {
		return 1 / (1 + math.Exp(-x))
	}
	e := math.Exp(x)
	return e / (1 + e)
}

func softplus(x float64) float64 {
	if math.IsNaN(x) {
		return x
	}
	return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x)))
}

func leaky(x, a float64) float64 {
	if x < 0 {
		if a == 0 {
			return 0
		}
		return a * x
	}
	return x
}

func elu(x, a float64) float64 {
	if x < 0 {
		return a * math.Expm1(x)
	}
	return x
}

// The gated activations are 0 at −Inf, their limit, where the formula as written is −Inf·0.
func geluTanh(x float64) float64 {
	if math.IsInf(x, -1) {
		return 0
	}
	return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
}

func geluErf(x float64) float64 {
	if math.IsInf(x, -1) {
		return 0
	}
	return 0.5 * x * math.Erfc(-x/math.Sqrt2)
}

func silu(x float64) float64 {
	if math.IsInf(x, -1) {
		return 0
	}
	return x * sigmoid(x)
}

// Slope is the derivative of a function at a kink, in terms of those beside it.
type Slope uint8

// The slopes. Frameworks differ: PyTorch and ONNX Runtime take that of the left side, Gorgonia's Rectify and LeakyRelu,
// which test x ≥ 0, that of the right, and a maximum that shares its gradient among equal operands the mean.
const (
	LeftSlope Slope = iota
	RightSlope
	MeanSlope
)

var slopes = [...]string{"left", "right", "mean"}

// String gives the slope's name in the text form.
func (s Slope) String() string { return slopes[s] }

// BinaryFn is a function of two variables.
type BinaryFn uint8

// The functions of two variables. From Lt on they give Bool.
const (
	Add BinaryFn = iota
	Sub
	Mul
	Div // of integers: truncated; by zero: an error at run time
	Pow
	Max // NaN if either is
	Min // NaN if either is
	And // of Bools
	Or  // of Bools
	Lt
	Gt
	Le
	Ge
	Eq
	Ne
)

var binaryFns = [...]struct {
	name, sign string
	eval       func(x, y float64) float64
	flops      int64
}{
	Add: {"add", "+", func(x, y float64) float64 { return x + y }, 1},
	Sub: {"sub", "−", func(x, y float64) float64 { return x - y }, 1},
	Mul: {"mul", "⊙", func(x, y float64) float64 { return x * y }, 1},
	Div: {"div", "÷", func(x, y float64) float64 { return x / y }, 1},
	Pow: {"pow", "^", math.Pow, 30},
	Max: {"max", "max", func(x, y float64) float64 { return max(x, y) }, 1},
	Min: {"min", "min", func(x, y float64) float64 { return min(x, y) }, 1},
	And: {"and", "∧", func(x, y float64) float64 { return b2f(x != 0 && y != 0) }, 1},
	Or:  {"or", "∨", func(x, y float64) float64 { return b2f(x != 0 || y != 0) }, 1},
	Lt:  {"lt", "<", func(x, y float64) float64 { return b2f(x < y) }, 1},
	Gt:  {"gt", ">", func(x, y float64) float64 { return b2f(x > y) }, 1},
	Le:  {"le", "≤", func(x, y float64) float64 { return b2f(x <= y) }, 1},
	Ge:  {"ge", "≥", func(x, y float64) float64 { return b2f(x >= y) }, 1},
	Eq:  {"eq", "=", func(x, y float64) float64 { return b2f(x == y) }, 1},
	Ne:  {"ne", "≠", func(x, y float64) float64 { return b2f(x != y) }, 1},
}

// String gives the function's name in the text form.
func (f BinaryFn) String() string { return binaryFns[f].name }

// Sign is the mathematical sign, for drawings.
func (f BinaryFn) Sign() string { return binaryFns[f].sign }

// Eval is the function's value; true is 1.
func (f BinaryFn) Eval(x, y float64) float64 { return binaryFns[f].eval(x, y) }

// Compares reports whether f gives Bool from numbers.
func (f BinaryFn) Compares() bool { return f >= Lt }

// Commutes reports whether f(x,y) = f(y,x).
func (f BinaryFn) Commutes() bool {
	switch f {
	case Add, Mul, Max, Min, And, Or, Eq, Ne:
		return true
	}
	return false
}

// ReduceFn is how a Reduce combines elements.
type ReduceFn uint8

// The reductions. Of no elements: Sum 0, Mean NaN, Prod 1, MaxOf −Inf, MinOf +Inf.
const (
	Sum ReduceFn = iota
	Mean
	Prod
	MaxOf
	MinOf
)

var reduceFns = [...]string{"sum", "mean", "prod", "max", "min"}

// String gives the reduction's name in the text form.
func (f ReduceFn) String() string { return reduceFns[f] }

// PoolFn is what a Pool takes of each window.
type PoolFn uint8

// The pools.
const (
	MaxPool PoolFn = iota
	AvgPool
)

var poolFns = [...]string{"max", "avg"}

// String gives the pool's name in the text form.
func (f PoolFn) String() string { return poolFns[f] }

// Dist is a distribution to draw from.
type Dist uint8

// The distributions.
const (
	Uniform Dist = iota
	Normal
	Bernoulli
)

var dists = [...]string{"uniform", "normal", "bernoulli"}

// String gives the distribution's name in the text form.
func (d Dist) String() string { return dists[d] }

// Anchor is the expensive part of a Fusion.
type Anchor uint8

// The anchors.
const (
	AnchorNone      Anchor = iota // elementwise work only
	AnchorMatMul                  // slot: out; a and b for views
	AnchorConv                    // slot: out; in for views
	AnchorRow                     // reductions in a chain over one row, the input re-readable
	AnchorAttention               // slots: q, k, v, out, for views
	AnchorMoE                     // slots: the operands and results, for views
)

var anchors = [...]string{"none", "matmul", "conv", "row", "attention", "moe"}

// String gives the anchor's name in the text form.
func (a Anchor) String() string { return anchors[a] }

// Kind says what a Fusion is to the user.
type Kind uint8

// The kinds.
const (
	KindElementwise Kind = iota
	KindLinear
	KindMatMul
	KindConv
	KindSoftmax
	KindNorm
	KindReduce
	KindAttention
	KindMoE
)

var kinds = [...]string{"elementwise", "linear", "matmul", "conv", "softmax", "norm", "reduce", "attention", "moe"}

// String gives the kind's name, as reports and drawings show it.
func (k Kind) String() string { return kinds[k] }

// parseEnum finds a name in a list of names of an attribute's type.
func parseEnum[T ~uint8](s string, names func(T) string, n int) (T, error) {
	for i := range n {
		if names(T(i)) == s {
			return T(i), nil
		}
	}
	var want string
	for i := range n {
		if i > 0 {
			want += ", "
		}
		want += names(T(i))
	}
	return 0, fmt.Errorf("unknown name %q (want one of %s)", s, want)
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *UnaryFn) UnmarshalText(b []byte) (err error) {
	*f, err = parseEnum(string(b), UnaryFn.String, len(unaryFns))
	return
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Slope) UnmarshalText(b []byte) (err error) {
	*s, err = parseEnum(string(b), Slope.String, len(slopes))
	return
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *BinaryFn) UnmarshalText(b []byte) (err error) {
	*f, err = parseEnum(string(b), BinaryFn.String, len(binaryFns))
	return
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *ReduceFn) UnmarshalText(b []byte) (err error) {
	*f, err = parseEnum(string(b), ReduceFn.String, len(reduceFns))
	return
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *PoolFn) UnmarshalText(b []byte) (err error) {
	*f, err = parseEnum(string(b), PoolFn.String, len(poolFns))
	return
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Dist) UnmarshalText(b []byte) (err error) {
	*d, err = parseEnum(string(b), Dist.String, len(dists))
	return
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *Anchor) UnmarshalText(b []byte) (err error) {
	*a, err = parseEnum(string(b), Anchor.String, len(anchors))
	return
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *Kind) UnmarshalText(b []byte) (err error) {
	*k, err = parseEnum(string(b), Kind.String, len(kinds))
	return
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *DType) UnmarshalText(b []byte) (err error) {
	*d, err = ParseDType(string(b))
	return
}
