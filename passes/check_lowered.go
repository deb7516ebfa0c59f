package passes

import (
	"errors"
	"fmt"

	"fusec/graph"
)

// A Placer is a target that sends what it has no kernel for to another.
type Placer interface {
	FallbackAccepts(op graph.Op, args, results []graph.Type) error
}

// checkLowered makes sure that nothing is left that neither the target nor, if it has one, its fallback has a kernel
// for. A refusal names the node and the target's reason.
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
			if p, ok := c.Target.(Placer); ok && c.Ask(p.FallbackAccepts, n.Op, n.Args) == nil {
				c.Note(n, "runs on the processor: %v", err)
				continue
			}
			errs = append(errs, fmt.Errorf("%s: %w", n.Where(), err))
		}
	}
	return errors.Join(errs...)
}
