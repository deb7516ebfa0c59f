// Package pools makes one launch of a convolution and the pool that reads what it makes:
//
//	x, w ─► Fusion{conv2d, relu} ─► pool ─►    to    x, w ─► Fusion{conv2d, relu, pool} ─►
//
// so that the images between them, which are several times as large as the result, are never written. It asks the target where it
// has such a kernel, and where that takes less time. What anything else reads stays.
package pools

import (
	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

// A Pooler is a target that has kernels for convolutions with a pool.
type Pooler interface {
	// PoolsConvolution reports, as an error that carries the reason, that f, a fusion of a convolution and a pool, has no kernel,
	// or is slower than two launches.
	PoolsConvolution(f graph.Fusion, args []graph.Type, result graph.Type) error
}

// Run is the pass.
func Run(c *rewrite.Context) error {
	target, ok := c.Target.(Pooler)
	if !ok || !graph.Has[graph.Pool](c.Graph) {
		return nil
	}
	g := c.Graph
	uses, with := c.Uses(), map[*graph.Node]*graph.Node{}
	b := graph.Extend(g)
	for _, n := range g.Nodes {
		op, ok := n.Op.(graph.Pool)
		if !ok {
			continue
		}
		x := n.Args[0]
		f, ok := x.Op.(graph.Fusion)
		if !ok || f.Anchor != graph.AnchorConv || len(f.Body.Outputs) != 1 || !uses.One(x) || f.Body.Outputs[0].Node.Type != x.Type {
			continue
		}
		fused, err := pooled(f, op, n)
		if err != nil {
			return err
		}
		if err := target.PoolsConvolution(fused, graph.Types(x.Args), n.Type); err != nil {
			c.Miss(f.Kind.String(), n, err.Error(), []*graph.Node{x})
			continue
		}
		m := b.From(x, n).Add(fused, x.Args...)
		m.Name = n.Name
		with[n] = m
		c.Became(x, m)
		c.Became(n, m)
		c.Match("fuse-pools", trace.Exact, f.Kind.String(), m, x, n)
	}
	if err := b.Err(); err != nil || len(with) == 0 {
		return err
	}
	g.Replace(with)
	return g.Tidy()
}

// pooled is a fusion with pool n behind what it hands out.
func pooled(f graph.Fusion, op graph.Pool, n *graph.Node) (graph.Fusion, error) {
	body, _ := f.Body.Clone()
	b := graph.Extend(body)
	p := b.Add(op, body.Outputs[0].Node)
	p.Like(n)
	if err := b.Err(); err != nil {
		return f, err
	}
	body.Outputs[0].Node = p
	f.Body = body
	return f, nil
}
