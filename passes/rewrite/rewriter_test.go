package rewrite_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/passes/passtest"
	"fusec/passes/rewrite"
)

// TestCircles checks that rules that undo each other end in an error.
func TestCircles(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) { b.Output("y", b.Unary(graph.Exp, b.Input("x", passtest.F64(2)))) })
	r := &rewrite.Rewriter{Context: &rewrite.Context{Graph: g}}
	r.Visit = func(n *graph.Node) (*graph.Node, error) {
		u, ok := n.Op.(graph.Unary)
		if !ok {
			return n, nil
		}
		return r.Builder(n).Unary(graph.Exp+graph.Log-u.Fn, n.Args[0]), nil
	}
	if err := r.Fixpoint(); err == nil || !strings.HasPrefix(err.Error(), "the rules do not settle") {
		t.Errorf("%v", err)
	}
}

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
			softmaxed[n] = rewrite.FollowsFrom(n, rewrite.IsSoftmax, func(a *graph.Node) bool { return softmaxed[a] })
			want := rewrite.SoftmaxUnder(n) != nil
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
