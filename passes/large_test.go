package passes

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"fusec/graph"
)

// TestFollowsFrom walks random graphs: what fuse-attention notes on its way is what a search from each node finds.
func TestFollowsFrom(t *testing.T) {
	found := map[bool]int{}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 8))
		b := graph.NewBuilder("random")
		nodes := []*graph.Node{b.Input("x", graph.TypeOf(graph.F32, 4, 4)), b.Input("y", graph.TypeOf(graph.F32, 4, 4))}
		pick := func() *graph.Node { return nodes[max(0, len(nodes)-1-r.IntN(6))] }
		for range 20 {
			x, y := pick(), pick()
			var n *graph.Node
			switch r.IntN(8) {
			case 0:
				n = b.Add(graph.Softmax{Axis: 1}, x)
			case 1:
				n = b.MatMul(x, y, false, false)
			case 2:
				n = b.Broadcast(b.Reduce(graph.Sum, x, true, 1), graph.ShapeOf(4, 4))
			case 3:
				n = b.Reshape(b.Reshape(x, 16), 4, 4)
			case 4:
				n = b.Transpose(x, 1, 0)
			case 5:
				n = b.Unary(graph.Exp, x)
			default:
				n = b.Binary(graph.Add, x, y)
			}
			nodes = append(nodes, n)
		}
		b.Output("z", nodes[len(nodes)-1])
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		softmaxed := map[*graph.Node]bool{}
		for _, n := range g.Nodes {
			softmaxed[n] = followsFrom(n, isSoftmax, func(a *graph.Node) bool { return softmaxed[a] })
			want := softmaxUnder(n) != nil
			if softmaxed[n] != want {
				t.Fatalf("seed %d: %s: noted %v, the search gives %v in\n%s", seed, n.Describe(), softmaxed[n], want, graph.Print(g))
			}
			found[want]++
		}
	}
	if found[true] < 500 || found[false] < 500 {
		t.Errorf("a softmax is found from %d nodes and not from %d: the graphs try too little", found[true], found[false])
	}
}

// allocated is how many bytes passes allocate for each node of a graph.
func allocated(t *testing.T, g *graph.Graph, cfg Config) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, _, err := Run(g, cfg); err != nil {
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
		return allocated(t, g, Config{Stop: "fuse-attention"})
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
		g, tr, err := Run(equals(n), Config{})
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
	perNode := func(n int) float64 { return allocated(t, equals(n), Config{}) }
	perNode(10)
	if few, many := perNode(150), perNode(600); many > 1.5*few {
		t.Errorf("%.0f bytes a node of 150, %.0f of 600", few, many)
	}
}
