package passes

import (
	"fusec/graph/precision"
	"fusec/passes/narrow"
)

// Precision names what contractions may round to; see package [fusec/graph/precision].
type Precision = precision.Precision

// The precisions.
const (
	F32  = precision.F32
	TF32 = precision.TF32
	BF16 = precision.BF16
	F16  = precision.F16
)

// precisionPass is the pass precision; see [narrow.Operands].
func precisionPass(c *Context) error {
	if c.precision == TF32 {
		c.Note(nil, "products of f32 round their operands to tf32 on the target; no values are cast")
	}
	return narrow.Operands(c.Context, c.precision.Half(), c.leastHalf)
}
