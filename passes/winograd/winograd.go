// Package winograd allows Winograd's algorithm for convolutions with frozen filters of 3×3, where the target says that it is
// faster:
//
//	x, w ─► conv2d ─►   to   x, w ─► conv2d[winograd=4] ─►
//
// The values are the same, but they are rounded otherwise; see [graph.Winograd] for the bound.
package winograd

import (
	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

// A Chooser is a target that has kernels for Winograd's algorithm.
type Chooser interface {
	// WinogradTile is the m of the algorithm F(m×m, 3×3) that is faster than any other for op, if the filters are frozen, or 0.
	WinogradTile(op graph.Conv2D, args []graph.Type, result graph.Type) int
}

// Run is the pass.
func Run(c *rewrite.Context) error {
	target, ok := c.Target.(Chooser)
	if !ok {
		return nil
	}
	g := c.Graph
	b, frozen, with := graph.Extend(g), graph.Frozen(g, c.Frozen), map[*graph.Node]*graph.Node{}
	for _, n := range g.Nodes {
		op, ok := n.Op.(graph.Conv2D)
		if !ok || op.Winograd != 0 || !frozen.Get(n.Args[1]) || frozen.Get(n) {
			continue
		}
		if op.Winograd = target.WinogradTile(op, []graph.Type{n.Args[0].Type, n.Args[1].Type}, n.Type); op.Winograd == 0 {
			continue
		}
		m := b.From(n).Add(op, n.Args...)
		m.Name = n.Name
		with[n] = m
		c.Match("winograd", trace.Transformed, graph.KindOf(op).String(), m, n)
	}
	if err := b.Err(); err != nil || len(with) == 0 {
		return err
	}
	g.Replace(with)
	return g.Tidy()
}
