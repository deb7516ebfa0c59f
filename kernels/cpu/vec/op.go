package vec

import "fmt"

// Unary is an opcode of one operand: dst[i] = op(x[i]).
type Unary uint8

// The unary opcodes. Errors are bounds on those of the float32 assembly, in
// units in the last place of the result; where none is given the result is
// correctly rounded. Below −1 the two forms of GELU lose relative accuracy with
// growing |x|, since the error of the exponent is multiplied by it: up to 3e-6 of
// the result at −5, which is 1e-12 of x. Below −6, where |GELUErf(x)| < 6e-9, its
// error is at most 1e-12.
const (
	Neg      Unary = iota // −x
	Abs                   // |x|
	Sign                  // ±1; ±0 and NaN stay
	Ceil                  // ⌈x⌉
	Floor                 // ⌊x⌋
	Round                 // to the nearest integer, halves to even
	Trunc                 // toward zero
	Sin                   // sin x; 1.5 ulp
	Cos                   // cos x; 1.5 ulp
	Exp                   // e^x; 1 ulp
	Exp2                  // 2^x; 1 ulp
	Expm1                 // e^x − 1; 2 ulp
	Log                   // ln x; 1 ulp
	Log2                  // log₂ x; 1.5 ulp
	Log1p                 // ln(1 + x); 1.5 ulp
	Square                // x²
	Cube                  // x³; 1.5 ulp
	Sqrt                  // √x
	Rsqrt                 // 1/√x; 1.5 ulp
	Recip                 // 1/x
	Tanh                  // tanh x; 5 ulp, 3e-7 of the result
	Sigmoid               // 1/(1 + e^−x); 2.5 ulp
	Softplus              // ln(1 + e^x); 4 ulp
	Erf                   // erf x; 1 ulp
	ReLU                  // 0 for x < 0, else x: −0 and NaN stay
	GELUTanh              // ½x(1 + tanh(√(2/π)(x + 0.044715x³))); 3 ulp for x ≥ −1
	GELUErf               // x·Φ(x) = ½x(1 + erf(x/√2)); 4 ulp for x ≥ −1
	SiLU                  // x/(1 + e^−x); 2.5 ulp
	Not                   // 1 where x = 0, else 0
	numUnary
)

// UnaryScalar is an opcode of one operand and a parameter: dst[i] = op(x[i], s).
type UnaryScalar uint8

// The unary opcodes with a parameter s.
const (
	LeakyReLU UnaryScalar = iota // x where x ≥ 0, else s·x
	ELU                          // x where x > 0, else s·(e^x − 1); 3e-7 of the result
	numUnaryScalar
)

// Binary is an opcode of two operands, each a vector or a scalar.
type Binary uint8

// The binary opcodes.
const (
	Add Binary = iota // a + b
	Sub               // a − b
	Mul               // a·b
	Div               // a/b
	Pow               // a^b, as math.Pow: a call per element, but for the scalar powers 2, 3 and −1
	Min               // the built-in min: NaN if either is, −0 before +0
	Max               // the built-in max: NaN if either is, −0 before +0
	Lt                // a < b
	Le                // a ≤ b
	Gt                // a > b
	Ge                // a ≥ b
	Eq                // a = b
	Ne                // a ≠ b
	And               // a ≠ 0 and b ≠ 0
	Or                // a ≠ 0 or b ≠ 0
	numBinary
)

// Reduction is an opcode that makes one number of a slice.
type Reduction uint8

// The reductions. Sums of float32 are within 1e-6·Σ|terms| at any length.
const (
	SumOf        Reduction = iota // Σ x, 0 of nothing
	SumSquaresOf                  // Σ x², 0 of nothing
	SumAbsOf                      // Σ |x|, 0 of nothing
	ProdOf                        // Π x, 1 of nothing
	MaxOf                         // the greatest, NaN if there is one, −Inf of nothing
	MinOf                         // the least, NaN if there is one, +Inf of nothing
	numReduction
)

var unaryNames = [numUnary]string{
	Neg: "neg", Abs: "abs", Sign: "sign", Ceil: "ceil", Floor: "floor", Round: "round", Trunc: "trunc",
	Sin: "sin", Cos: "cos", Exp: "exp", Exp2: "exp2", Expm1: "expm1", Log: "log", Log2: "log2", Log1p: "log1p",
	Square: "square", Cube: "cube", Sqrt: "sqrt", Rsqrt: "rsqrt", Recip: "recip",
	Tanh: "tanh", Sigmoid: "sigmoid", Softplus: "softplus", Erf: "erf",
	ReLU: "relu", GELUTanh: "gelu_tanh", GELUErf: "gelu_erf", SiLU: "silu", Not: "not",
}

var unaryScalarNames = [numUnaryScalar]string{LeakyReLU: "leaky_relu", ELU: "elu"}

var binaryNames = [numBinary]string{
	Add: "add", Sub: "sub", Mul: "mul", Div: "div", Pow: "pow", Min: "min", Max: "max",
	Lt: "lt", Le: "le", Gt: "gt", Ge: "ge", Eq: "eq", Ne: "ne", And: "and", Or: "or",
}

var reductionNames = [numReduction]string{
	SumOf: "sum", SumSquaresOf: "sum_squares", SumAbsOf: "sum_abs", ProdOf: "prod", MaxOf: "max", MinOf: "min",
}

// String returns the opcode's name in programs and reports.
func (op Unary) String() string { return nameOf("Unary", unaryNames[:], int(op)) }

// String returns the opcode's name in programs and reports.
func (op UnaryScalar) String() string { return nameOf("UnaryScalar", unaryScalarNames[:], int(op)) }

// String returns the opcode's name in programs and reports.
func (op Binary) String() string { return nameOf("Binary", binaryNames[:], int(op)) }

// String returns the opcode's name in programs and reports.
func (op Reduction) String() string { return nameOf("Reduction", reductionNames[:], int(op)) }

func nameOf(kind string, names []string, op int) string {
	if op < len(names) {
		return names[op]
	}
	return fmt.Sprintf("%s(%d)", kind, op)
}
