// Package norms has the products that read an RMS norm make it:
//
//	x, gamma ─► Fusion{rms_norm} ─► Fusion{matmul} ─►    to    x, gamma, w ─► Fusion{rms_norm, matmul} ─►
//	                             w ─┘
//
// so that the norm is no launch. It asks the target where it has such kernels: those of products of few rows, where each block
// reads all of a row anyway. A norm that anything else reads stays.
package norms

import (
	"fmt"
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

// A Normer is a target that has kernels for products which norm their rows.
type Normer interface {
	// NormsProduct reports, as an error that carries the reason, that there is no kernel for f, a fusion of a norm and a product.
	NormsProduct(f graph.Fusion, args, results []graph.Type) error
}

// Run is the pass.
func Run(c *rewrite.Context) error {
	target, ok := c.Target.(Normer)
	if !ok {
		return nil
	}
	g := c.Graph
	uses, with := c.Uses(), map[*graph.Node]*graph.Node{}
	b := graph.Extend(g)
	for _, n := range g.Nodes {
		if f, ok := n.Op.(graph.Fusion); !ok || !norms(f) || uses.Escapes(n) {
			continue
		}
		readers := uses.Readers(n)
		made := make([]*graph.Node, len(readers)) // not in the graph yet
		var apart *graph.Node
		var why error
		for i, r := range readers {
			if made[i], why = joined(target, n, r); why != nil {
				apart = r
			}
		}
		joins := func(m *graph.Node) bool { return m != nil }
		if apart != nil {
			if slices.ContainsFunc(made, joins) {
				c.Miss(n.Op.(graph.Fusion).Kind.String(), apart, why.Error(), []*graph.Node{n})
			}
			continue
		}
		for i, r := range readers {
			m := b.From(n, r).Add(made[i].Op, made[i].Args...)
			m.Name = r.Name
			with[r] = m
			c.Became(r, m)
			c.Became(n, m)
			c.Match("fuse-norms", trace.Reassociated, made[i].Op.(graph.Fusion).Kind.String(), m, n, r)
		}
	}
	if err := b.Err(); err != nil || len(with) == 0 {
		return err
	}
	g.Replace(with)
	return g.Tidy()
}

// norms reports whether a fusion is one RMSNorm, perhaps cast, and nothing else.
func norms(f graph.Fusion) bool {
	if f.Anchor != graph.AnchorRow || len(f.Body.Outputs) != 1 {
		return false
	}
	for _, n := range f.Body.Nodes {
		switch n.Op.(type) {
		case graph.Input, graph.RMSNorm, graph.Cast:
		default:
			return false
		}
	}
	return true
}

// joined is a launch of norm n and its reader r, if that is a product which reads it as its first operand alone, and the target has
// a kernel.
func joined(target Normer, n, r *graph.Node) (*graph.Node, error) {
	f, ok := r.Op.(graph.Fusion)
	at := slices.Index(r.Args, n)
	if !ok || f.Anchor != graph.AnchorMatMul || slices.Contains(r.Args[at+1:], n) {
		return nil, fmt.Errorf("it is no product with one operand that is normed")
	}
	in := inputs(f.Body)[at]
	if product := f.Anchored(); product.Args[0] != in || !f.Body.Uses().One(in) {
		return nil, fmt.Errorf("what is normed is not the first operand of a product, as it is")
	}
	m := join(n, r)
	types := graph.Types(m.Args)
	results, err := graph.InfoOf(m.Op).Infer(m.Op, types)
	if err == nil {
		err = target.NormsProduct(m.Op.(graph.Fusion), types, results)
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// inputs are a body's, in order.
func inputs(g *graph.Graph) (list []*graph.Node) {
	for _, n := range g.Nodes {
		if _, ok := n.Op.(graph.Input); ok {
			list = append(list, n)
		}
	}
	return list
}

// join is a launch of norm n and product r.
func join(n, r *graph.Node) *graph.Node {
	body := graph.New("")
	b := graph.Extend(body)
	var args []*graph.Node
	inside := map[*graph.Node]*graph.Node{}
	for _, a := range slices.Concat(n.Args, r.Args) {
		if a != n && inside[a] == nil {
			inside[a] = b.Add(graph.Input{Type: a.Type})
			inside[a].Like(a)
			args = append(args, a)
		}
	}
	inline := func(of *graph.Node) []*graph.Node {
		in := make([]*graph.Node, len(of.Args))
		for i, a := range of.Args {
			in[i] = inside[a]
		}
		return b.Inline(of.Op.(graph.Fusion).Body, in)
	}
	inside[n] = inline(n)[0]
	for i, y := range inline(r) {
		b.Output(fmt.Sprint(i), y)
	}
	f := r.Op.(graph.Fusion)
	f.Body = body
	return &graph.Node{Op: f, Args: args}
}
