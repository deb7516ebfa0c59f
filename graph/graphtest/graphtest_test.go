package graphtest

import (
	"math/rand/v2"
	"testing"

	"fusec/graph"
)

func count(m map[string]int, g *graph.Graph) {
	for _, n := range g.Nodes {
		m[n.Op.OpName()]++
		if f, ok := n.Op.(graph.Fusion); ok {
			count(m, f.Body)
		}
	}
}

func TestCoversTheTable(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(200) {
		count(seen, Random(rand.New(rand.NewPCG(seed, 1)), Options{Steps: seed%2 == 1}))
		count(seen, Random(rand.New(rand.NewPCG(seed, 1)),
			Options{FewBits: true, Allow: func(name string) bool { return fewBits[name] }}))
	}
	for _, info := range graph.Ops() {
		if seen[info.Name] == 0 {
			t.Errorf("no %s in 200 graphs", info.Name)
		}
	}
}

func TestSameSeedSameGraph(t *testing.T) {
	for seed := range uint64(20) {
		a := Random(rand.New(rand.NewPCG(seed, 1)), Options{Nodes: 40})
		b := Random(rand.New(rand.NewPCG(seed, 1)), Options{Nodes: 40})
		if err := graph.Equal(a, b); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOptions(t *testing.T) {
	for seed := range uint64(20) {
		g := Random(rand.New(rand.NewPCG(seed, 1)), Options{
			Nodes:  30,
			Floats: graph.F32,
			Allow:  func(name string) bool { return name == "unary" || name == "cast" },
		})
		for _, n := range g.Nodes {
			switch n.Op.(type) {
			case graph.Input, graph.Param, graph.Const, graph.Unary, graph.Cast, graph.Binary:
			default:
				t.Errorf("%s was not allowed", n.Where())
			}
			if n.Type.DType == graph.F64 {
				t.Errorf("%s is f64", n.Where())
			}
		}
	}
	g := Random(rand.New(rand.NewPCG(1, 1)), Options{Allow: func(string) bool { return false }})
	if len(g.Outputs) == 0 {
		t.Error("no outputs")
	}
}

func TestValues(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	g := Random(r, Options{Nodes: 100})
	values, weights := Values(r, g), Weights(r, g)
	for _, n := range g.Sources() {
		if v := values[n.Name]; v == nil || v.Type != n.Type {
			t.Errorf("no value for %s", n.Where())
		}
		_, input := n.Op.(graph.Input)
		if (weights[n.Name] == nil) != input {
			t.Errorf("weight of %s: %v", n.Where(), weights[n.Name])
		}
	}
}
