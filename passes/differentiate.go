package passes

import (
	"fmt"
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
)

// differentiate answers the requests that strip-grad left:
//
//	x ─ forward ─ cost ─┐                    x ─ forward ─ cost
//	│                   │                    │      │
//	└─ gradient of cost by x ─ sgd           └─ backward ─ sgd
//
// Requests of one cost are answered together. A cost may itself depend on other gradients, as a gradient penalty does;
// those are answered first, and then differentiated again.
func differentiate(c *Context) error {
	g := c.Graph
	copies := map[*graph.Node]bool{}
	for {
		wrt := nextRequests(g)
		if len(wrt) == 0 {
			break
		}
		cost := wrt[0].Args[0]
		of := make([]*graph.Node, len(wrt))
		for i, r := range wrt {
			of[i] = r.Args[1]
			if _, ok := of[i].Op.(graph.Copy); ok {
				copies[of[i]] = true
			}
		}
		ds, err := answer(g, cost, wrt[0].Args[2:], of)
		if err != nil {
			return fmt.Errorf("the gradient of %s: %w", cost.Where(), err)
		}
		with := map[*graph.Node]*graph.Node{}
		for i, r := range wrt {
			d := ds[i]
			if d.Name == "" && !graph.IsSource(d.Op) {
				d.Name = r.Name
			}
			with[r] = d
			c.Match("gradient", trace.Reassociated, "gradient", d, r)
		}
		g.Replace(with)
		if err := g.Tidy(); err != nil {
			return err
		}
	}
	if len(copies) == 0 {
		return nil
	}
	with := map[*graph.Node]*graph.Node{}
	for k := range copies {
		with[k] = k.Args[0]
	}
	g.Replace(with)
	return g.Tidy()
}

// answers says why differentiate is needed: strip-grad leaves requests for gradients.
func (cfg Config) answers() string {
	for _, r := range cfg.Gradients {
		if r.Cost != nil && !cfg.Disable["strip-grad"] {
			return fmt.Sprintf("strip-grad makes a request of the gradient of %v by %v, which it answers", r.Cost, r.Of)
		}
	}
	return cfg.requests()
}

// answer makes the gradients of a cost, weighted by a seed if there is one.
func answer(g *graph.Graph, cost *graph.Node, seed, of []*graph.Node) ([]*graph.Node, error) {
	if len(seed) == 0 {
		return graph.Gradients(g, cost, of)
	}
	return graph.VJP(g, []*graph.Node{cost}, seed, of)
}

// nextRequests lists the requests of one cost and seed, the first whose computation holds no further request.
func nextRequests(g *graph.Graph) []*graph.Node {
	var rs []*graph.Node
	for _, n := range g.Nodes {
		// Nodes are in topological order, so nothing before the first request depends on one.
		if isRequest(n) && (len(rs) == 0 || n.Args[0] == rs[0].Args[0] && slices.Equal(n.Args[2:], rs[0].Args[2:])) {
			rs = append(rs, n)
		}
	}
	return rs
}
