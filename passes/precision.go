package passes

import (
	"fusec/graph/precision"
	"fusec/passes/narrow"
	"fusec/passes/panels"
)

// precisionPass is the pass precision; see [narrow.Operands], and [panels.Halve] and [panels.Stream] for targets that read
// weights in panels.
func precisionPass(c *Context) error {
	if c.cfg.Precision == precision.TF32 {
		c.Note(nil, "products of f32 round their operands to tf32 on the target; no values are cast")
	}
	if _, packs := c.Target.(panels.Packer); packs {
		return panels.Halve(c.Context, c.cfg.Precision.Half(), c.cfg.leastHalf)
	}
	if err := panels.Stream(c.Context, c.cfg.Precision.Half(), c.cfg.leastHalf, narrow.Routing(c.Graph)); err != nil {
		return err
	}
	return narrow.Operands(c.Context, c.cfg.Precision.Half(), c.cfg.leastHalf)
}
