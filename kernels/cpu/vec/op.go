package vec

// Reduction is an opcode that makes one number of a slice.
type Reduction uint8

// The reductions. Sums of float32 are within 1e-6·Σ|terms| at any length.
const (
	SumOf        Reduction = iota // Σ x, 0 of nothing
	SumSquaresOf                  // Σ x², 0 of nothing
	ProdOf                        // Π x, 1 of nothing
	MaxOf                         // the greatest, NaN if there is one, −Inf of nothing
	MinOf                         // the least, NaN if there is one, +Inf of nothing
	numReduction
)

var reductionNames = [numReduction]string{
	SumOf: "sum", SumSquaresOf: "sum_squares", ProdOf: "prod", MaxOf: "max", MinOf: "min",
}

// String returns the opcode's name in programs and reports.
func (op Reduction) String() string { return reductionNames[op] }
