package dot

import (
	"time"

	"fusec/graph"
	"fusec/graph/trace"
)

// summary counts a graph.
type summary struct {
	nodes int // without sources, constants and Results
	trace.Work
}

// summarise counts g, and takes launches and costs from the program if there is one.
func summarise(g *graph.Graph, p *trace.Program) summary {
	s := summary{Work: trace.Unfused(g)}
	if p != nil {
		s.Work = p.Work()
	}
	for _, n := range g.Nodes {
		if trace.IsOperation(n.Op) {
			s.nodes++
		}
	}
	return s
}

// measured is the sum of the launches' measured times.
func measured(p *trace.Program) time.Duration {
	var t time.Duration
	for _, l := range p.Launches {
		t += l.Measured
	}
	return t
}
