package graphtest_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/ref"
)

// kinds counts what a graph is made of: operations, functions and element types.
func kinds(m map[string]int, g *graph.Graph) {
	for _, n := range g.Nodes {
		m[n.Op.OpName()]++
		m[n.Type.DType.String()]++
		switch op := n.Op.(type) {
		case graph.Unary:
			m["unary "+op.Fn.String()]++
		case graph.Binary:
			m["binary "+op.Fn.String()+" "+n.Args[0].Type.DType.String()]++
		case graph.Reduce:
			m["reduce "+op.Fn.String()]++
		case graph.Pool:
			m["pool "+op.Fn.String()]++
		case graph.Fusion:
			kinds(m, op.Body)
		}
	}
}

// TestHostileCovers holds that the cases have every operation of the table, every function with every element type that
// it takes, empty values, gradients, and every way of drawing values. The reference computes each of them.
func TestHostileCovers(t *testing.T) {
	seen := map[string]int{}
	seeds := uint64(6000)
	for seed := range seeds {
		c := graphtest.Hostile(seed, nil)
		kinds(seen, c.Graph)
		seen["draw "+c.Draw.String()]++
		seen["gradients"] += len(c.Gradients)
		for _, n := range c.Graph.Nodes {
			if n.Type.Shape.Elems() == 0 {
				seen["empty"]++
			}
		}
		if seed >= 200 {
			continue
		}
		whole, err := c.Whole()
		if err != nil {
			t.Errorf("seed %d: %v", seed, err)
			continue
		}
		if _, _, err := ref.Eval(whole, c.Values()); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
	least := int(seeds / 400)
	want := func(what string) {
		t.Helper()
		if seen[what] < least {
			t.Errorf("%d times %s in %d graphs, want at least %d", seen[what], what, seeds, least)
		}
	}
	for _, info := range graph.Ops() {
		want(info.Name)
	}
	for _, f := range graph.UnaryFns() {
		want("unary " + f.Name)
	}
	for f := graph.Sum; f <= graph.MinOf; f++ {
		want("reduce " + f.String())
	}
	for f := graph.MaxPool; f <= graph.AvgPool; f++ {
		want("pool " + f.String())
	}
	least = 2
	for _, d := range []graph.DType{graph.F32, graph.F64, graph.I32, graph.I64, graph.Bool} {
		for _, f := range graph.BinaryFnsOf(d) {
			want(fmt.Sprintf("binary %v %v", f, d))
		}
	}
	least = int(seeds / 30)
	for _, d := range graph.DTypes() {
		want(d.String())
	}
	for _, what := range []string{"empty", "gradients", "draw ordinary", "draw tied", "draw scaled", "draw special"} {
		want(what)
	}
}

// TestHostileIsOfItsSeed makes cases twice, and once more from their files: the graph, the values and the gradients are
// the same.
func TestHostileIsOfItsSeed(t *testing.T) {
	for seed := range uint64(40) {
		c := graphtest.Hostile(seed, nil)
		path := filepath.Join(t.TempDir(), "case.graph")
		if err := c.Save(path); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		read, err := graphtest.Load(path)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for _, d := range []*graphtest.Case{graphtest.Hostile(seed, nil), read, c.Clone()} {
			if err := graph.Equal(c.Graph, d.Graph); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			for name, v := range d.Values() {
				if !v.Equal(c.Values()[name]) {
					t.Fatalf("seed %d: another value for %q", seed, name)
				}
			}
			if len(d.Gradients) != len(c.Gradients) {
				t.Fatalf("seed %d: %d gradients, want %d", seed, len(d.Gradients), len(c.Gradients))
			}
			for i, r := range d.Gradients {
				if w := c.Gradients[i]; r.Output != w.Output || r.Cost.ID != w.Cost.ID || r.Of.ID != w.Of.ID {
					t.Fatalf("seed %d: gradient %v, want %v", seed, r, w)
				}
			}
		}
	}
}
