package weights

import (
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

// A Scaler is a target whose convolutions read filters that change from run to run about as fast as frozen ones.
type Scaler interface {
	// ScalesFilters reports whether op, of images of type x whose channels are scaled, is faster if its filters of type w are scaled
	// in their place.
	ScalesFilters(op graph.Conv2D, x, w graph.Type) bool
}

// scaleFilters moves the scales of an image's channels, such as the gates of squeeze-and-excitation (J. Hu et al.,
// "Squeeze-and-Excitation Networks", arXiv 1709.01507), to the frozen filters that read the image, where those are fewer:
//
//	x, s ─► × ─► conv2d ─►            x ──────────► conv2d ─►
//	         w ────┘           to     w, s ─► × ─────┘
func scaleFilters(c *rewrite.Context) error {
	t, ok := c.Target.(Scaler)
	g := c.Graph
	if !ok || !graph.Has[graph.Conv2D](g) {
		return nil
	}
	f := folder{c: c, b: graph.Extend(g), frozen: graph.Frozen(g, true), uses: g.Uses(), with: map[*graph.Node]*graph.Node{}}
	for _, n := range slices.Clone(g.Nodes) {
		op, ok := n.Op.(graph.Conv2D)
		if !ok || op.Layout != graph.NCHW || op.Groups != 1 || !f.frozen.Get(n.Args[1]) {
			continue
		}
		scaled, w := n.Args[0], n.Args[1]
		x, s := f.scaled(scaled)
		if s == nil || w.Type.DType != x.Type.DType || !t.ScalesFilters(op, x.Type, w.Type) {
			continue
		}
		f.b.From(scaled, n)
		y := f.b.Add(op, x, f.b.Binary(graph.Mul, w, f.spread(s, w.Type.Shape, 1)))
		if f.b.Err() != nil {
			break
		}
		y.Name = n.Name
		f.with[n] = y
		f.c.Match("fold-weights", trace.Reassociated, graph.KindOf(n.Op).String(), y, scaled, n)
	}
	if err := f.b.Err(); err != nil || len(f.with) == 0 {
		return err
	}
	g.Replace(f.with)
	return g.Tidy()
}

// scaled reads n, that one convolution reads, as a product of one image, whose channels are multiplied by a vector s of one number
// for each. What follows from frozen values is no scale. s is nil if n is none.
func (f *folder) scaled(n *graph.Node) (x, s *graph.Node) {
	op, ok := n.Op.(graph.Binary)
	if shape := n.Type.Shape; !ok || op.Fn != graph.Mul || !f.uses.One(n) || shape.Rank() != 4 || shape.At(0) != 1 {
		return nil, nil
	}
	for i, v := range n.Args {
		if v == n.Args[1-i] || f.frozen.Get(v) {
			continue
		}
		if _, ok := v.Op.(graph.Broadcast); !ok {
			continue
		}
		if s = channels(v, n.Type.Shape, 1); s != nil && s.Type.Shape.Elems() == n.Type.Shape.At(1) {
			return n.Args[1-i], f.b.Reshape(s, n.Type.Shape.At(1))
		}
	}
	return nil, nil
}
