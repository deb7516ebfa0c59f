package passes_test

import (
	"fmt"
	"runtime"
	"testing"

	"fusec/graph"
	"fusec/passes"
)

// allocated is how many bytes passes allocate for each node of a graph.
func allocated(t *testing.T, g *graph.Graph, cfg passes.Config) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, _, err := passes.Run(g, cfg); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	return float64(after.TotalAlloc-before.TotalAlloc) / float64(len(g.Nodes))
}

// TestAttentionSearchIsLinear has products that follow from ever more elementwise work and from no softmax.
func TestAttentionSearchIsLinear(t *testing.T) {
	perNode := func(steps int) float64 {
		b := graph.NewBuilder("steps")
		h, w := b.Input("h", graph.TypeOf(graph.F32, 4, 4)), b.Param("w", graph.TypeOf(graph.F32, 4, 4))
		for range steps {
			h = b.Unary(graph.Tanh, b.Binary(graph.Add, h, b.MatMul(h, w, false, false)))
		}
		b.Output("h", h)
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		return allocated(t, g, passes.Config{Stop: "fuse-attention"})
	}
	perNode(10) // what is made once
	if few, many := perNode(100), perNode(1600); many > 1.5*few {
		t.Errorf("%.0f bytes a node of 100 steps, %.0f of 1600", few, many)
	}
}

// TestManyOrigins: a match lists all nodes that it stands for while they are few; where many equal nodes become one, each of
// their matches lists what it covered.
func TestManyOrigins(t *testing.T) {
	equals := func(n int) *graph.Graph {
		b := graph.NewBuilder("equal")
		x := b.Input("x", graph.TypeOf(graph.F32, 4))
		for i := range n {
			h := b.Unary(graph.Tanh, x)
			h.Origin = []graph.Origin{{Name: fmt.Sprint("h", i), Pos: fmt.Sprintf("model.go:%d", i)}}
			b.Output(fmt.Sprint("y", i), h)
		}
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	for _, n := range []int{10, 60, 80, 300} {
		g, tr, err := passes.Run(equals(n), passes.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if stands := len(g.Outputs[0].Node.Origin); stands != n {
			t.Errorf("what %d equal nodes have become stands for %d", n, stands)
		}
		all, most := 0, 0
		for _, s := range tr.Stages {
			for _, m := range s.Matches {
				all += len(m.Origin)
				most = max(most, len(m.Origin))
			}
		}
		if n <= 60 && most != n || n > 60 && most > 65 || all > 64*n {
			t.Errorf("%d equal nodes: a match lists up to %d origins, and all matches %d", n, most, all)
		}
	}
	perNode := func(n int) float64 { return allocated(t, equals(n), passes.Config{}) }
	perNode(10)
	if few, many := perNode(150), perNode(600); many > 1.5*few {
		t.Errorf("%.0f bytes a node of 150, %.0f of 600", few, many)
	}
}
