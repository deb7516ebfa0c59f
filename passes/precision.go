package passes

import (
	"fusec/graph/precision"
	"fusec/passes/narrow"
)

// precisionPass is the pass precision; see [narrow.Operands].
func precisionPass(c *Context) error {
	if c.cfg.Precision == precision.TF32 {
		c.Note(nil, "products of f32 round their operands to tf32 on the target; no values are cast")
	}
	return narrow.Operands(c.Context, c.cfg.Precision.Half(), c.cfg.leastHalf)
}
