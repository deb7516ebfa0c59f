package rewrite

import (
	"fmt"
	"slices"

	"fusec/graph"
	"fusec/passes/pattern"
)

// Cover is what a search from users to operands has covered. It is a value: a search that failed leaves no trace in its
// copy. A node that is covered must have no readers outside, since the fusion does not keep its value in memory.
type Cover struct {
	Uses    *graph.Uses
	Covered []*graph.Node
}

// Alone returns an error unless reader is all that reads n. The error calls n's value what, with the verb are.
func (c *Cover) Alone(n, reader *graph.Node, what, are string) error {
	if c.Uses.Escapes(n) {
		return c.Stop(n, "%s, %s, %s also handed out as an output", what, pattern.Describe(n), are)
	}
	for _, r := range c.Uses.Readers(n) {
		if r != reader {
			return c.Stop(n, "%s, %s, %s also read by %s", what, pattern.Describe(n), are, pattern.Named(r))
		}
	}
	if len(c.Uses.Readers(n)) > 1 {
		return c.Stop(n, "%s, %s, %s read twice by %s", what, pattern.Describe(n), are, pattern.Named(reader))
	}
	return nil
}

// Add covers n.
func (c *Cover) Add(n *graph.Node) { c.Covered = append(slices.Clip(c.Covered), n) }

// Stop is the error that a search stopped at a node, and why.
func (c *Cover) Stop(at *graph.Node, format string, args ...any) error {
	return &Stopped{at, fmt.Sprintf(format, args...), slices.Clone(c.Covered)}
}

// Stopped is the first condition that failed.
type Stopped struct {
	At      *graph.Node
	Reason  string
	Covered []*graph.Node
}

// Error implements error.
func (s *Stopped) Error() string { return s.At.Where() + ": " + s.Reason }
