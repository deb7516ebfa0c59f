package passes

import (
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/fuse"
	"fusec/passes/layout"
)

// decompose rebuilds convolutions, their gradients, pools and recurrences that the target has no kernel for from simpler
// operations: those of another layout from those of NCHW between transposes, gradients of convolutions from products of
// patches, recurrences from their steps. The
// simpler ones take the place of the operation, so that the order in which values are made stays as it was. What the target
// computes in NHWC is left to the pass layout, unless that is left out.
//
// A batch norm in training is taken apart as well where the target computes mean and variance of columns in one pass: its gradient
// needs the same statistics, which become one value with those of the norm, and what makes the result joins what follows it.
func decompose(c *Context) error {
	g := c.Graph
	with := map[*graph.Node]*graph.Node{}
	all := map[*graph.Node][]*graph.Node{} // the results of an operation with several
	b := graph.Extend(g)
	var order []*graph.Node
	var visit func(nodes []*graph.Node)
	visit = func(nodes []*graph.Node) {
		for _, n := range nodes {
			if r, ok := n.Op.(graph.Result); ok && all[n.Args[0]] != nil {
				with[n] = all[n.Args[0]][r.Index]
				c.Became(n, with[n])
				continue
			}
			apart := opensNorm(c, n)
			if !apart && (graph.InfoOf(n.Op).Lower == nil || c.Accepts(n.Op, n.Args...) == nil ||
				!c.cfg.Disable["layout"] && layout.Accepts(c.Context, n)) {
				order = append(order, n)
				continue
			}
			first := len(g.Nodes)
			results := graph.Lower(b, n)
			if _, ok := n.Op.(graph.Dequantize); ok && results != nil && with[n.Args[0]] != nil { // see what quantised it
				args := append([]*graph.Node{with[n.Args[0]]}, n.Args[1:]...)
				results = graph.InfoOf(n.Op).Lower(b.From(n), n.Op, args)
			}
			if apart {
				results = graph.InfoOf(n.Op).Decompose(b.From(n), n.Op, n.Args)
			}
			if results == nil || b.Err() != nil {
				order = append(order, n)
				continue
			}
			with[n], all[n] = results[0], results
			c.Became(n, results[0])
			c.Match("decompose", trace.Reassociated, "", results[0], n)
			visit(slices.Clone(g.Nodes[first:]))
		}
	}
	visit(slices.Clone(g.Nodes))
	if err := b.Err(); err != nil {
		return err
	}
	if len(with) == 0 {
		return nil
	}
	g.Nodes = order
	g.Replace(with)
	return g.Tidy()
}

// opensNorm reports whether n is a batch norm in training that is better computed as its parts.
func opensNorm(c *Context, n *graph.Node) bool {
	op, ok := n.Op.(graph.BatchNorm)
	return ok && op.Train && fuse.TakesMoments(c.Context) && !c.cfg.Disable[trace.FusePass]
}
