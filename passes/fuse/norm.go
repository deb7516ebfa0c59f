package fuse

import (
	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

// OpenNorms writes batch normalisation in evaluation as what it then is, an affine function of each channel,
//
//	x ─┐                                        x ─ ⊙ ─ + ─►
//	gamma, beta, mean, variance ─ batch_norm ─►     scale ┘   └ shift
//
// with scale = gamma ÷ √(variance + eps) and shift = beta − mean ⊙ scale, of one element for each channel, so that it can
// join the launch that makes x.
func OpenNorms(c *rewrite.Context) error {
	opened := map[*graph.Node]*graph.Node{} // the norm that a sum was
	return arrange(c, func(n *graph.Node) *graph.Node {
		switch op := n.Op.(type) {
		case graph.BatchNorm:
			if op.Train {
				return nil
			}
			k := scaleAndShift(graph.Extend(c.Graph).From(n), n)
			opened[k] = n
			c.Match(trace.OpenPass, trace.Reassociated, "", k, n)
			return k
		case graph.Result:
			if norm := opened[n.Args[0]]; norm != nil && op.Index > 0 {
				return norm.Args[2+op.Index] // the statistics stay as they are
			}
		}
		return nil
	})
}

// scaleAndShift is a batch normalisation in evaluation as x ⊙ scale + shift.
func scaleAndShift(b *graph.Builder, n *graph.Node) *graph.Node {
	x, gamma, beta, mean, variance := n.Args[0], n.Args[1], n.Args[2], n.Args[3], n.Args[4]
	s := x.Type.Shape
	dims := []int{s.At(1)}
	for range s.Rank() - 2 {
		dims = append(dims, 1)
	}
	channels := func(v *graph.Node) *graph.Node { return b.Broadcast(b.Reshape(v, dims...), s) }
	eps := n.Op.(graph.BatchNorm).Eps
	scale := b.Binary(graph.Mul, gamma, b.Unary(graph.Rsqrt, b.BinaryScalar(graph.Add, variance, eps)))
	shift := b.Binary(graph.Sub, beta, b.Binary(graph.Mul, mean, scale))
	return b.Binary(graph.Add, b.Binary(graph.Mul, x, channels(scale)), channels(shift))
}
