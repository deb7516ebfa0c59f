package shard_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
)

// mixes is a graph of one random mixture of experts, with its gradients, and the values of its sources. Its tokens and its experts
// are split along the same axes, and tokens or hidden columns along others.
func mixes(t testing.TB, r *rand.Rand, mesh graph.Mesh) (*graph.Graph, map[string]*graph.Tensor) {
	t.Helper()
	pick := func(list ...int) int { return list[r.IntN(len(list))] }
	size := mesh.Size()
	op := graph.MoE{Experts: size * pick(1, 2), Activation: graph.Tanh, Gated: r.IntN(2) == 0, Bias: r.IntN(2) == 0, Stacked: true,
		Dense: r.IntN(3) == 0}
	op.TopK = pick(0, 1+r.IntN(op.Experts))
	lead := []int{size * pick(1, 2, 3, 5, 16)}
	axis := 0
	if r.IntN(2) == 0 { // a batch in front of the sequence that is split
		lead, axis = append([]int{pick(1, 2)}, lead...), 1
	}
	f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F64, dims...) }
	b := graph.NewBuilder("mixes")
	d := graph.MoEDims{Width: pick(1, 3), Hidden: mesh[0].Size * pick(1, 2), Result: pick(1, 4)}
	under := func(width int) graph.Type { return f(append(lead[:len(lead):len(lead)], width)...) }
	x, gates := b.Input("x", under(d.Width)), b.Input("gates", under(op.Experts))
	args, wrt := []*graph.Node{x, b.Unary(graph.Relu, gates)}, []*graph.Node{x, gates}
	axes, splits := mesh.All(), map[string]graph.Sharding{}
	if len(mesh) > 1 && r.IntN(2) == 0 {
		axes &^= 1
	}
	for _, w := range op.Weights() {
		n := b.Param(w.String(), f(op.WeightShape(d, w).Slice()...))
		s := graph.Replicated
		s.Split[0] = axes
		if rest := mesh.All() &^ axes; rest != 0 && !op.Bias && r.IntN(2) == 0 {
			s.Split[map[graph.MoEWeight]int{graph.MoEW1: 2, graph.MoEW3: 2, graph.MoEW2: 1}[w]] = rest
		}
		splits[n.Name] = s
		args, wrt = append(args, n), append(wrt, n)
	}
	s := graph.Replicated
	if s.Split[axis] = axes; r.IntN(2) == 0 {
		s.Split[axis] = mesh.All()
	}
	splits["x"] = s
	y := b.Add(op, args...)
	dy := b.Input("dy", y.Type)
	b.Output("y", y)
	b.Output("loads", b.Add(graph.Result{Index: 1}, y))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	grads, err := graph.VJP(g, []*graph.Node{y}, []*graph.Node{dy}, wrt)
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range grads {
		g.Outputs = append(g.Outputs, graph.Output{Name: "d" + wrt[i].Name, Node: d})
	}
	if err := g.Tidy(); err != nil {
		t.Fatal(err)
	}
	g.Mesh = mesh
	for _, n := range g.Sources() {
		n.Sharding = splits[n.Name]
	}
	return g, graphtest.Values(r, g)
}

// TestExperts compares random mixtures and their gradients, whose tokens cross to the experts or are gathered, with those of one
// participant.
func TestExperts(t *testing.T) {
	crossed, gathered := 0, 0
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 23))
		g, in := mixes(t, r, meshes[r.IntN(len(meshes)-1)])
		local, s, err := sharded(g, 0)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, graph.Print(g))
		}
		text := fmt.Sprint(s.Notes)
		crosses := strings.Contains(text, "crosses to them and back")
		if crosses {
			crossed++
		}
		if strings.Contains(text, "its tokens are gathered") {
			gathered++
		}
		if crosses != strings.Contains(text, "permute over") {
			t.Errorf("seed %d: tokens cross or not: %s\n%s", seed, text, graph.Print(local))
		}
		if _, err := same(g, in); err != nil {
			t.Fatalf("seed %d on %v: %v\n%s", seed, g.Mesh, err, graph.Print(g))
		}
	}
	if crossed < 20 || gathered < 4 {
		t.Errorf("tokens cross in %d mixtures, and are gathered in %d", crossed, gathered)
	}
	t.Log(crossed, gathered)
}

// TestExpertsRounded: what the experts make is sent back rounded, where all that reads it rounds it, and the tokens are sent as
// soon as they are there.
func TestExpertsRounded(t *testing.T) {
	for _, to := range []graph.DType{graph.BF16, graph.F16, graph.F32, graph.F64} { // f32 is what the experts make
		g := graphtest.Built(t, func(b *graph.Builder) {
			f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
			x := b.Input("x", f(16, 4))
			gates := b.Unary(graph.Relu, b.MatMul(x, b.Param("router", f(4, 4)), false, false))
			y := b.Add(graph.MoE{Experts: 4, Activation: graph.Tanh, Stacked: true, TopK: 2}, x, gates, b.Param("up", f(4, 4, 6)),
				b.Param("down", f(4, 6, 4)))
			b.Output("y", b.CastTo(to, y))
			b.Output("loads", b.Add(graph.Result{Index: 1}, y))
			if to == graph.F32 || to == graph.F64 {
				b.Output("z", b.CastTo(graph.BF16, y))
			}
		})
		g.Mesh = graph.Mesh{{Name: "expert", Size: 2}}
		for _, n := range g.Sources() {
			if n.Sharding = graph.Replicated; n.Name != "router" {
				n.Sharding.Split[0] = 1
			}
		}
		local, _, err := sharded(g, 0)
		if err != nil {
			t.Fatal(err)
		}
		var sent []graph.DType
		uses := local.Uses()
		for i, n := range local.Nodes {
			if _, ok := n.Op.(graph.MoE); ok && to == graph.BF16 {
				for _, r := range uses.Readers(n) {
					if _, whole := r.Op.(graph.Collective); whole { // then the mixture would not round it itself
						t.Errorf("%s of what is not rounded", r.Op.OpName())
					}
				}
			}
			if _, ok := n.Op.(graph.Permute); ok {
				if sent = append(sent, n.Type.DType); len(sent) == 1 && local.Nodes[i-1] != n.Args[0] {
					t.Errorf("tokens wait for %v", local.Nodes[i-1])
				}
			}
		}
		want := []graph.DType{graph.F32, graph.F32}
		if to == graph.BF16 {
			want[1] = graph.BF16
		}
		if !slices.Equal(sent, want) {
			t.Errorf("to %v: %v are sent", to, sent)
		}
	}
}
