package shard_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
)

// attends is a graph of one random attention, which a ring can make, behind rotary positions or not, with its gradients; and the
// values of its sources. Queries and keys are split along the sequence.
func attends(t testing.TB, r *rand.Rand, mesh graph.Mesh) (*graph.Graph, map[string]*graph.Tensor, graph.Attention) {
	t.Helper()
	pick := func(list ...int) int { return list[r.IntN(len(list))] }
	size := mesh.Size()
	rank, heads, shared := pick(2, 3, 4), pick(1, 2, 4), 1
	if heads > 1 && r.IntN(2) == 0 {
		shared = 2
	}
	queries := size * pick(1, 2, 3)
	op := graph.Attention{Scale: 0.5, Causal: r.IntN(2) == 0, HasMask: r.IntN(2) == 0, HasLengths: r.IntN(2) == 0}
	keys := queries
	if !op.Causal {
		keys = size * pick(1, 2, 5)
	}
	lead := func(heads int) []int { return []int{mesh[0].Size, heads}[4-rank:] }
	f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F64, dims...) }
	shape := func(heads, rows, width int) graph.Type { return f(append(lead(heads), rows, width)...) }
	b := graph.NewBuilder("attends")
	q, k := b.Input("q", shape(heads, queries, 4)), b.Input("k", shape(heads/shared, keys, 4))
	v := b.Input("v", shape(heads/shared, keys, pick(1, 3)))
	args := []*graph.Node{q, k, v}
	if r.IntN(2) == 0 {
		start := b.Scalar(graph.I64, 3)
		args[0], args[1] = b.Add(graph.RoPE{Base: 100}, q, start), b.Add(graph.RoPE{Base: 100}, k, start)
	}
	wrt := []*graph.Node{q, k, v}
	if op.HasMask {
		d := graph.F64
		if r.IntN(2) == 0 {
			d = graph.Bool
		}
		dims := []int{pick(1, queries), pick(1, keys)}[pick(0, 1):]
		args = append(args, b.Input("mask", graph.TypeOf(d, dims...)))
	}
	if op.HasLengths {
		args = append(args, b.Input("lengths", graph.TypeOf(graph.I64, lead(heads)[:max(rank-3, 0)]...)))
	}
	y := b.Add(op, args...)
	lse := b.Add(graph.Result{Index: 1}, y)
	dys, of := []*graph.Node{b.Input("dy", y.Type)}, []*graph.Node{y}
	if r.IntN(2) == 0 && !op.HasLengths && !op.HasMask { // a row that sees no key has no log-sum-exp to be compared
		of, dys = append(of, lse), append(dys, b.Input("dlse", lse.Type))
		b.Output("lse", lse)
	}
	b.Output("y", y)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	grads, err := graph.VJP(g, of, dys, wrt)
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
	in := map[string]*graph.Tensor{}
	for _, n := range g.Sources() {
		x := graphtest.Tensor(r, n.Type)
		switch n.Name {
		case "q", "k", "v":
			if n.Name == "v" && r.IntN(2) == 0 {
				break // it follows
			}
			n.Sharding = graph.Replicated
			n.Sharding.Split[rank-2] = mesh.All()
			if len(mesh) > 1 && rank == 4 {
				n.Sharding.Split[0], n.Sharding.Split[rank-2] = 1, mesh.All()&^1
			}
		case "lengths":
			for i := range x.Type.Shape.Elems() {
				x.SetInt(i, int64(r.IntN(keys+3)-1))
			}
		}
		in[n.Name] = x
	}
	return g, in, op
}

// TestRing compares random attentions and their gradients, whose keys go around, with those of one participant. Nobody has all
// keys.
func TestRing(t *testing.T) {
	seen := map[graph.Attention]int{}
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 17))
		g, in, op := attends(t, r, meshes[r.IntN(len(meshes)-1)])
		local, s, err := sharded(g, 0)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, graph.Print(g))
		}
		for _, n := range local.Nodes { // outputs are whole, and nothing else
			if _, ok := n.Op.(graph.AllGather); ok && n.Args[0].Name == "k" {
				t.Fatalf("seed %d: all keys are gathered\n%s", seed, graph.Print(local))
			}
		}
		if text := fmt.Sprint(s.Notes); !strings.Contains(text, "permute over") || !strings.Contains(text, "ring attention over") {
			t.Errorf("seed %d: no ring is told of: %s", seed, text)
		}
		if _, err := same(g, in); err != nil {
			t.Fatalf("seed %d on %v, %+v: %v\n%s", seed, g.Mesh, op, err, graph.Print(g))
		}
		seen[op]++
	}
	if len(seen) < 8 {
		t.Errorf("only %d kinds of attention", len(seen))
	}
}

// TestNoRing gathers the keys of attentions that a ring cannot make.
func TestNoRing(t *testing.T) {
	for _, op := range []graph.Attention{{Scale: 1, Window: 3}, {Scale: 1, Dropout: 0.5}, {Scale: 1, Causal: true},
		{Scale: 1, Tail: true, HasLengths: true, Causal: true}} {
		keys := 8
		if op.Causal {
			keys = 12
		}
		b := graph.NewBuilder("")
		f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F64, dims...) }
		args := []*graph.Node{b.Input("q", f(8, 4)), b.Input("k", f(keys, 4)), b.Input("v", f(keys, 4))}
		if op.HasLengths {
			args = append(args, b.Input("lengths", graph.TypeOf(graph.I64)))
		}
		if op.Dropout > 0 {
			args = append(args, b.Input("seed", graph.TypeOf(graph.I64)))
		}
		b.Output("y", b.Add(op, args...))
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		g.Mesh = meshes[0]
		for _, n := range g.Sources()[:3] {
			n.Sharding = graph.Replicated
			n.Sharding.Split[0] = 1
		}
		local, _, err := sharded(g, 0)
		if err != nil {
			t.Fatal(err)
		}
		if text := graph.Print(local); strings.Contains(text, "permute") || !strings.Contains(text, "all_gather") {
			t.Errorf("%+v:\n%s", op, text)
		}
		if _, err := same(g, graphtest.Values(rand.New(rand.NewPCG(3, 4)), g)); err != nil {
			t.Errorf("%+v: %v", op, err)
		}
	}
}

// TestRowsApart sums over joined axes of which one that is not the first is split, without gathering them.
func TestRowsApart(t *testing.T) {
	for mesh, splits := range map[string][]string{
		"sequence=3":            {"", "sequence", ""},
		"data=2,sequence=3":     {"data", "sequence", ""},
		"data=1,sequence=2":     {"data", "sequence", ""},
		"data=2":                {"data", "", ""},
		"data=2,sequence=2,t=2": {"data", "sequence", "t"},
		"data=2,a=3,sequence=2": {"data", "a", "sequence", ""},
		"a=3,sequence=2":        {"", "a", "sequence", ""},
		"sequence=6":            {"", "", "sequence", ""},
		"sequence=2,data=2":     {"sequence", "", "data", ""},
	} {
		dims := append([]int{2, 6, 12}[:len(splits)-1:len(splits)-1], 4)
		rows := 1
		for _, n := range dims[:len(dims)-1] {
			rows *= n
		}
		b := graph.NewBuilder("")
		f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F64, dims...) }
		x, y := b.Input("x", f(dims...)), b.Input("y", f(append(dims[:len(dims)-1:len(dims)-1], 6)...))
		b.Output("w", b.MatMul(b.Reshape(x, rows, 4), b.Reshape(y, rows, 6), true, false))
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		if g.Mesh, err = graph.ParseMesh(mesh); err != nil {
			t.Fatal(err)
		}
		if x.Sharding, err = g.Mesh.SplitAlong(splits...); err != nil {
			t.Fatal(err)
		}
		if y.Sharding, err = g.Mesh.SplitAlong(append(splits[:len(splits)-1:len(splits)-1], "")...); err != nil {
			t.Fatal(err)
		}
		local, _, err := sharded(g, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range local.Nodes {
			if gather, ok := n.Op.(graph.AllGather); ok && len(splits) == 3 && gather.Over != "t" {
				t.Errorf("%s: rows are gathered\n%s", mesh, graph.Print(local))
			}
		}
		if _, err := same(g, graphtest.Values(rand.New(rand.NewPCG(3, 4)), g)); err != nil {
			t.Errorf("%s: %v", mesh, err)
		}
	}
}
