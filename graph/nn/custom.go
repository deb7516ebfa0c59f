package nn

import (
	"fmt"

	"fusec/graph"

	"gorgonia.org/gorgonia"
)

// Custom applies a function that the program has registered by [graph.RegisterCustom], elementwise. Operands have one element
// type, Float32 or Float64, and one shape; some may be scalars. It fuses like the functions of this package.
func Custom(f graph.CustomFn, x ...*gorgonia.Node) (*gorgonia.Node, error) {
	operands := make([]operand, len(x))
	for i, n := range x {
		operands[i] = operand{fmt.Sprint("x", i), n}
	}
	return apply(single{graph.Custom{Fn: f}, f.String()}, operands...)
}
