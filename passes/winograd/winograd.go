// Package winograd allows Winograd's algorithm for convolutions with filters of 3×3, and for the gradients for their images, where
// the target says that it is faster:
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
	// WinogradTile is the m of the algorithm F(m×m, 3×3) that is faster than any other for op, or 0. Filters that are not frozen
	// are transformed in each run. Those of the transpose of a convolution are turned; see [graph.Conv2DTranspose.Forward].
	WinogradTile(op graph.Conv2D, args []graph.Type, result graph.Type, frozen, turned bool) int
}

// Run is the pass.
func Run(c *rewrite.Context) error {
	target, ok := c.Target.(Chooser)
	if !ok || !graph.Has[graph.ImageOp](c.Graph) {
		return nil
	}
	g := c.Graph
	b, frozen, with := graph.Extend(g), c.FrozenNodes(), map[*graph.Node]*graph.Node{}
	for _, n := range g.Nodes {
		if frozen.Get(n) {
			continue
		}
		var to graph.Op
		switch op := n.Op.(type) {
		case graph.Conv2D:
			if op.Winograd != 0 {
				continue
			}
			args := []graph.Type{n.Args[0].Type, n.Args[1].Type}
			op.Winograd = target.WinogradTile(op, args, n.Type, frozen.Get(n.Args[1]), false)
			if to = op; op.Winograd == 0 {
				continue
			}
		case graph.Conv2DTranspose:
			w := n.Args[1].Type
			o, channels, kh, kw := op.Layout.FilterDims(w.Shape)
			forward, ok := op.Forward(kh, kw)
			if !ok || op.Winograd != 0 {
				continue
			}
			args := []graph.Type{n.Args[0].Type, w.Reshaped(op.Layout.Filters(channels, o, kh, kw))}
			op.Winograd = target.WinogradTile(forward, args, n.Type, frozen.Get(n.Args[1]), true)
			if to = op; op.Winograd == 0 {
				continue
			}
		default:
			continue
		}
		m := b.From(n).Add(to, n.Args...)
		m.Name = n.Name
		with[n] = m
		c.Match("winograd", trace.Transformed, graph.KindOf(to).String(), m, n)
	}
	if err := b.Err(); err != nil || len(with) == 0 {
		return err
	}
	g.Replace(with)
	return g.Tidy()
}
