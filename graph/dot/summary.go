package dot

import (
	"time"

	"fusec/graph"
	"fusec/graph/trace"
)

// summary counts a graph.
type summary struct {
	nodes    int // without sources, constants and Results
	launches int
	flops    int64
	bytes    int64
}

// costsLaunch reports whether an operation needs a kernel: sources, views and Results do not.
func costsLaunch(op graph.Op) bool {
	_, result := op.(graph.Result)
	class := graph.ClassOf(op)
	return !result && class != graph.ClassSource && class != graph.ClassView
}

// summarise counts g, and takes launches and costs from the program if there is one.
func summarise(g *graph.Graph, p *trace.Program) summary {
	var s summary
	for _, n := range g.Nodes {
		s.nodes += operations(n)
		if p == nil && costsLaunch(n.Op) {
			c := graph.CostOf(n)
			s.launches++
			s.flops += c.FLOPs
			s.bytes += c.Bytes()
		}
	}
	if p != nil {
		s.launches = len(p.Launches)
		for _, l := range p.Launches {
			s.flops += l.FLOPs
			s.bytes += l.Bytes
		}
	}
	return s
}

// operations is 1 for an operation and 0 for a source, a constant or a Result.
func operations(n *graph.Node) int {
	if _, result := n.Op.(graph.Result); result || graph.ClassOf(n.Op) == graph.ClassSource {
		return 0
	}
	return 1
}

// measured is the sum of the launches' measured times.
func measured(p *trace.Program) time.Duration {
	var t time.Duration
	for _, l := range p.Launches {
		t += l.Measured
	}
	return t
}
