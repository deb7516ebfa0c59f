package passes

import (
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
)

// A Widener is a target that computes in f32 what it refuses with operands of some types.
type Widener interface {
	Widens(d graph.DType) bool
}

// widen has operations that the target refuses with operands of 16 bits read them in f32:
//
//	x bf16 ─► matmul ─►           x bf16 ─► cast f32 ─► matmul ─►
//	w bf16 ───┘            to     w bf16 ─► cast f32 ───┘
//
// Contractions have results and sums of f32 in both. The largest elements that a pool finds are cast back, and stay what they are.
// A cast is made once for all operations that read the value.
func widen(c *Context) error {
	target, ok := c.Target.(Widener)
	if !ok {
		return nil
	}
	b := graph.Extend(c.Graph)
	casts, with := map[*graph.Node]*graph.Node{}, map[*graph.Node]*graph.Node{}
	narrow := func(a *graph.Node) bool { return target.Widens(a.Type.DType) }
	for _, n := range slices.Clone(c.Graph.Nodes) {
		if !slices.ContainsFunc(n.Args, narrow) || c.Accepts(n.Op, n.Args...) == nil {
			continue
		}
		args := slices.Clone(n.Args)
		for i, a := range args {
			if !narrow(a) {
				continue
			}
			if casts[a] == nil {
				casts[a] = b.From(a).CastTo(graph.F32, a)
			}
			args[i] = casts[a]
		}
		switch results, err := graph.ResultTypes(n.Op, args); {
		case err != nil:
			continue // it is refused by its name
		case results[0] == n.Type:
			n.Args = args
			c.Match("widen", trace.Exact, "", n, n)
		case len(results) == 1:
			with[n] = b.From(n).CastTo(n.Type.DType, b.Add(n.Op, args...))
			with[n].Name = n.Name
			c.Match("widen", trace.Exact, "", with[n], n)
		}
	}
	if err := b.Err(); err != nil || len(casts) == 0 {
		return err
	}
	c.Graph.Replace(with)
	return c.Graph.Tidy()
}
