package passes

import (
	"errors"
	"fmt"

	"fusec/graph"
)

// checkLowered makes sure that nothing is left that the target has no kernel for. A refusal names the node and the
// target's reason.
func checkLowered(c *Context) error {
	var errs []error
	for _, n := range c.Graph.Nodes {
		switch graph.ClassOf(n.Op) {
		case graph.ClassSource, graph.ClassView:
			continue
		}
		if _, ok := n.Op.(graph.Result); ok {
			continue
		}
		if err := c.Accepts(n.Op, n.Args...); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", n.Where(), err))
		}
	}
	return errors.Join(errs...)
}
