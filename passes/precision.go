package passes

import (
	"fmt"
	"slices"

	"fusec/graph"
	"fusec/passes/narrow"
)

// Precision names what contractions may be rounded to. It is the caller's choice: nothing is rounded unasked.
type Precision uint8

// The precisions. Sums are in f32 in each of them.
const (
	F32  Precision = iota // as accurate as f32, the default
	TF32                  // operands of products rounded to 10 bits after the point by the target
	BF16                  // operands of products, and what they give to later launches, in bf16
	F16                   // the same in f16, whose small numbers end at 6e-8: gradients want a loss scale
)

var precisions = [...]string{"f32", "tf32", "bf16", "f16"}

// String gives the name: f32, tf32, bf16 or f16.
func (p Precision) String() string {
	if int(p) < len(precisions) {
		return precisions[p]
	}
	return fmt.Sprintf("precision %d", uint8(p))
}

// ParsePrecision is the inverse of [Precision.String].
func ParsePrecision(s string) (Precision, error) {
	if i := slices.Index(precisions[:], s); i >= 0 {
		return Precision(i), nil
	}
	return F32, fmt.Errorf("precision %q is not known: want f32, tf32, bf16 or f16", s)
}

// half is the 16-bit type that operands are rounded to; Invalid if they stay as they are.
func (p Precision) half() graph.DType {
	switch p {
	case BF16:
		return graph.BF16
	case F16:
		return graph.F16
	}
	return graph.Invalid
}

// precisionPass is the pass precision; see [narrow.Operands].
func precisionPass(c *Context) error {
	if c.precision == TF32 {
		c.Note(nil, "products of f32 round their operands to tf32 on the target; no values are cast")
	}
	return narrow.Operands(c.Context, c.precision.half(), c.leastHalf)
}
