package shard_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/trace"
	"fusec/kernels/ref"
	"fusec/kernels/ref/cases"
	"fusec/passes/rewrite"
	"fusec/passes/shard"
)

// sharded is the graph of one participant.
func sharded(g *graph.Graph, zero int) (*graph.Graph, *trace.Stage, error) {
	work, _ := g.Clone()
	s := &trace.Stage{}
	if err := shard.Run(&rewrite.Context{Graph: work, Stage: s}, zero, false); err != nil {
		return nil, s, err
	}
	return work, s, graph.Verify(work)
}

// split states random shardings of the sources of a graph.
func split(r *rand.Rand, g *graph.Graph) {
	for _, n := range g.Sources() {
		if r.IntN(4) == 0 || n.Type.DType.IsStored() {
			continue // it follows
		}
		s := graph.Replicated
		for a := range g.Mesh {
			if rank := n.Type.Shape.Rank(); rank > 0 && r.IntN(3) > 0 {
				d := r.IntN(rank)
				t := s
				t.Split[d] |= 1 << a
				if t.Check(g.Mesh, n.Type.Shape) == nil {
					s = t
				}
			}
		}
		n.Sharding = s
	}
}

// same compares what the participants of a mesh compute together with what the graph computes alone.
func same(g *graph.Graph, in map[string]*graph.Tensor) (collectives int, err error) {
	return sameZeRO(g, in, 0)
}

// sameZeRO is same with a stage of ZeRO.
func sameZeRO(g *graph.Graph, in map[string]*graph.Tensor, zero int) (collectives int, err error) {
	alone := *g
	alone.Mesh = nil
	want, updates, err := ref.EvalBound(&alone, in)
	if err != nil {
		return 0, nil // an index out of range
	}
	local, _, err := sharded(g, zero)
	if err != nil {
		return 0, err
	}
	shardings := map[string]graph.Sharding{}
	parts := make([]map[string]*graph.Tensor, g.Mesh.Size())
	for rank := range parts {
		parts[rank] = map[string]*graph.Tensor{}
		for _, n := range local.Sources() {
			shardings[n.Name] = n.Sharding
			if parts[rank][n.Name], err = n.Sharding.Part(g.Mesh, in[n.Name], rank); err != nil {
				return 0, err
			}
		}
	}
	got, changed, err := ref.Mesh(local, parts)
	if err != nil {
		return 0, err
	}
	for _, n := range local.Nodes {
		if _, ok := n.Op.(graph.Collective); ok {
			collectives++
		}
	}
	for rank := range got {
		for name, w := range want {
			if err := ref.Check(got[rank][name].Rounded(), loose(w, got[rank][name])); err != nil {
				return collectives, fmt.Errorf("output %q of participant %d: %w\n%s", name, rank, err, graph.Print(local))
			}
		}
	}
	for name, w := range updates {
		whole := w.Rounded()
		mag := graph.NewTensor(w.Type.With(graph.F64))
		for rank := range changed {
			u := changed[rank][name]
			if err := shardings[name].Join(g.Mesh, whole, u.Rounded(), rank); err != nil {
				return collectives, err
			}
			m := graph.NewTensor(u.Type.With(graph.F64))
			copy(m.Data.([]float64), u.Mag)
			if err := shardings[name].Join(g.Mesh, mag, m, rank); err != nil {
				return collectives, err
			}
		}
		if err := ref.Check(whole, loose(w, ref.Value{Mag: mag.Data.([]float64)})); err != nil {
			return collectives, fmt.Errorf("update of %q: %w\n%s", name, err, graph.Print(local))
		}
	}
	return collectives, nil
}

// loose takes the larger magnitude of both: either order of the sums may have the larger terms.
func loose(w, got ref.Value) ref.Value {
	if w.Mag != nil && got.Mag != nil {
		w.Mag = slices.Clone(w.Mag)
		for i := range w.Mag {
			w.Mag[i] = max(w.Mag[i], got.Mag[i])
		}
	}
	return w
}

var meshes = func() (list []graph.Mesh) {
	for _, text := range []string{"data=2", "data=3", "data=2,tensor=2", "data=3,tensor=2", "a=2,b=2,c=2", "one=1"} {
		m, err := graph.ParseMesh(text)
		if err != nil {
			panic(err)
		}
		list = append(list, m)
	}
	return list
}()

// TestOperations splits each example of each operation in random ways.
func TestOperations(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	seen := map[string]int{}
	for _, c := range cases.All(graph.F64) {
		for range 2 {
			g, err := c.Graph()
			if err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(g.Nodes, func(n *graph.Node) bool { _, ok := n.Op.(graph.Collective); return ok }) {
				continue
			}
			g.Mesh = meshes[r.IntN(len(meshes))]
			split(r, g)
			n, err := same(g, c.Inputs(r))
			if err != nil {
				t.Fatalf("%s on %v: %v\n%s", c.Name, g.Mesh, err, graph.Print(g))
			}
			seen[c.Op.OpName()] += n
		}
	}
	t.Log(seen)
}

// TestRandomGraphs compares random graphs on random meshes with the same graphs on one participant.
func TestRandomGraphs(t *testing.T) {
	collectives := 0
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 5))
		allow := func(name string) bool {
			return graph.OpByName(name).Class != graph.ClassCollective && name != "fusion" && name != "host"
		}
		g := graphtest.Random(r, graphtest.Options{Nodes: 16, Sizes: []int{1, 2, 4, 6, 12}, Floats: graph.F64, Allow: allow})
		g.Mesh = meshes[r.IntN(len(meshes))]
		split(r, g)
		n, err := same(g, graphtest.Values(r, g))
		if err != nil {
			t.Fatalf("seed %d on %v: %v\n%s", seed, g.Mesh, err, graph.Print(g))
		}
		collectives += n
	}
	if collectives < 100 {
		t.Errorf("only %d collective operations in all graphs", collectives)
	}
	t.Log(collectives)
}

// TestWhole: of an operation of whose parts nothing is known each participant computes whole values, and the trace says so.
func TestWhole(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Input("x", graph.TypeOf(graph.F64, 4, 6))
		b.Output("y", b.Add(graph.Dropout{P: 0.5}, b.Unary(graph.Tanh, x), b.Scalar(graph.I64, 1)))
	})
	g.Mesh = graph.Mesh{{Name: "data", Size: 2}}
	x := g.Sources()[0]
	x.Sharding = graph.Replicated
	x.Sharding.Split[0] = 1
	local, s, err := sharded(g, 0)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprint(s.Notes)
	if !strings.Contains(text, "its operands are gathered") || !graph.Has[graph.AllGather](local) {
		t.Errorf("%s\n%s", text, graph.Print(local))
	}
}

// TestRounded: sums are exchanged as what they are rounded to, if that is bf16.
func TestRounded(t *testing.T) {
	for _, to := range []graph.DType{graph.BF16, graph.F16, graph.F64} {
		g := graphtest.Built(t, func(b *graph.Builder) {
			y := b.MatMul(b.Input("x", graph.TypeOf(graph.F32, 8, 6)), b.Param("w", graph.TypeOf(graph.F32, 6, 16)), false, false)
			b.Output("y", b.CastTo(graph.F32, b.CastTo(to, y)))
		})
		g.Mesh = graph.Mesh{{Name: "tensor", Size: 2}}
		for _, n := range g.Sources() {
			axis := 0
			if n.Name == "x" {
				axis = 1
			}
			n.Sharding = graph.Replicated
			n.Sharding.Split[axis] = 1
		}
		local, _, err := sharded(g, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range local.Nodes {
			if _, ok := n.Op.(graph.AllReduce); ok && (n.Type.DType == graph.BF16) != (to == graph.BF16) {
				t.Errorf("rounded to %v: %v is exchanged", to, n.Type)
			}
		}
	}
}

// TestNormInTime: the squares of values that are exchanged last are summed apart, so that the sum of the others hides their
// exchange.
func TestNormInTime(t *testing.T) {
	defer shard.LittleExchanged()()
	g := graphtest.Built(t, func(b *graph.Builder) {
		f := graph.TypeOf(graph.F64, 8, 4)
		x := b.Input("x", f)
		list := []*graph.Node{b.Param("own", f)}
		for _, name := range []string{"d", "c", "b", "a"} {
			list = append([]*graph.Node{b.MatMul(x, b.Input(name, f), true, false)}, list...)
		}
		b.Output("y", b.Add(graph.SquaredNorm{}, list...))
	})
	g.Mesh = graph.Mesh{{Name: "data", Size: 2}}
	for _, n := range g.Sources() {
		if n.Sharding = graph.Replicated; n.Name != "own" {
			n.Sharding.Split[0] = 1
		}
	}
	local, _, err := sharded(g, 0)
	if err != nil {
		t.Fatal(err)
	}
	var args []int
	last := -1
	for i, n := range local.Nodes {
		switch n.Op.(type) {
		case graph.SquaredNorm:
			if args = append(args, len(n.Args)); len(args) == 2 && local.Nodes[last] != n.Args[0] {
				t.Errorf("the last exchange is of %v, and the second sum is of %v", local.Nodes[last], n.Args)
			}
		case graph.AllReduce:
			last = i
		}
	}
	if !slices.Equal(args, []int{4, 1}) {
		t.Errorf("sums of the squares of %v values\n%s", args, graph.Print(local))
	}
	if _, err := same(g, graphtest.Values(rand.New(rand.NewPCG(2, 1)), g)); err != nil {
		t.Error(err)
	}
}

// TestZeRO3 keeps parameters in parts and gathers what products read of them, rounded. Rows of data stay where they are.
func TestZeRO3(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Input("x", graph.TypeOf(graph.F32, 64, 8))
		row := func(name string, i int) *graph.Node {
			p := b.Param(fmt.Sprint(name, i), graph.TypeOf(graph.F32, 8))
			return b.Broadcast(b.Reshape(p, 1, 8), graph.ShapeOf(64, 8))
		}
		for i := range 2 {
			w := b.CastTo(graph.BF16, b.Param(fmt.Sprint("w", i), graph.TypeOf(graph.F32, 8, 8)))
			y := b.MatMul(b.CastTo(graph.BF16, b.Binary(graph.Mul, x, row("gain", i))), w, false, false)
			x = b.Binary(graph.Add, x, b.Binary(graph.Add, y, row("bias", i)))
		}
		b.Output("y", b.Reduce(graph.Sum, x, false, 0))
	})
	g.Mesh = meshes[0]
	for _, n := range g.Sources() {
		if n.Name == "x" {
			n.Sharding.Split[0], n.Sharding.Given = 1, true
		}
	}
	if _, err := sameZeRO(g, graphtest.Fit(g, 1, graphtest.Ordinary), 3); err != nil {
		t.Fatal(err)
	}
	local, _, err := sharded(g, 3)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, n := range local.Nodes {
		if op, ok := n.Op.(graph.Collective); ok {
			got[fmt.Sprint(op.OpName(), " ", n.Type)]++
		}
	}
	want := map[string]int{"all_gather bf16[8,8]": 2, "all_gather f32[1,8]": 4, "all_reduce f32[8]": 1}
	if !maps.Equal(got, want) {
		t.Errorf("collective operations are %v; want %v\n%s", got, want, graph.Print(local))
	}
}
