package graph_test

import (
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
)

func TestScopeOf(t *testing.T) {
	for name, want := range map[string]string{
		"block3/attn/query":                  "block3/attn",
		"block3.attn.query":                  "block3/attn",
		"layers.3.attn.q_proj.weight":        "layers/3/attn/q_proj",
		"a/b.c":                              "a/b",
		"l3_w":                               "l3",
		"conv1_running_mean":                 "conv1",
		"token_embedding":                    "",
		"w1":                                 "",
		"":                                   "",
		"gradient of fc1.bias":               "fc1",
		"gradient of gradient of fc1.bias":   "fc1",
		"optim/velocity/layer2.norm.gamma":   "layer2/norm",
		"optim/rate":                         "",
		"2.5":                                "",
		"x / y":                              "",
		"a//b":                               "",
		"/a":                                 "",
		"/layer1/layer1.0/conv1/Conv":        "layer1/0/conv1",
		"/m/encoder/layer.0/output/Add":      "m/encoder/layer/0/output",
		"/a/a.b/a.b.c/Add":                   "a/b/c",
		"//a/b":                              "",
		"a/a.b/c":                            "a/a/b",
		".5":                                 "",
		"+ false(%a, %b)":                    "",
		"_1_x":                               "",
		"schicht3/größe/w":                   "schicht3/größe",
		"Σ[1]":                               "",
		strings.Repeat("a/", 1<<16) + "leaf": strings.Repeat("a/", 1<<16-1) + "a",
	} {
		if got := graph.ScopeOf(name); got != want {
			t.Errorf("ScopeOf(%.40q) = %.40q, want %.40q", name, got, want)
		}
	}
}

// TestScopes checks the scopes of nodes without names, in the forward pass and in the gradients.
func TestScopes(t *testing.T) {
	matrix := graph.TypeOf(graph.F32, 4, 4)
	nodes, want := map[string]*graph.Node{}, map[string]string{}
	g := graphtest.Built(t, func(b *graph.Builder) {
		node := func(name, scope string, n *graph.Node) *graph.Node {
			nodes[name], want[name] = n, scope
			return n
		}
		x := node("input", "", b.Input("x", matrix))
		node("numbered input", "", b.Input("y.1", matrix))
		node("input of a layer", "cache/1", b.Input("cache.1.keys", matrix))
		q := node("product", "a/q", b.MatMul(x, node("weight", "a/q", b.Param("a.q.w", matrix)), false, false))
		k := b.MatMul(x, b.Transpose(b.Param("a.k.w", matrix), 1, 0), false, false)
		s := node("of the layer's values", "a", b.MatMul(q, node("through a view", "a/k", k), false, true))
		m := b.MatMul(s, b.Param("b.up.w", matrix), false, false)
		node("the later layer", "b/up", b.Binary(graph.Add, s, m))
		y := node("named", "c", b.Named(b.Binary(graph.Add, s, m), "c.y"))
		node("two parameters", "a/q", b.Binary(graph.Add, b.Param("a.q.b", matrix), b.Param("b.up.b", matrix)))
		node("a copied parameter", "b/up", b.MatMul(q, b.Add(graph.Copy{}, b.Transpose(b.Param("b.up.v", matrix), 1, 0)), false, false))
		step := node("step", "", b.Binary(graph.Add, b.Param("a.v.b", matrix), b.Param("b.down.b", matrix)))
		step.Phase = graph.Optimiser
		node("constant", "", b.Scalar(graph.F32, 1))
		cost := b.Reduce(graph.Sum, y, false, 0, 1)
		b.Output("cost", cost)
		for _, n := range nodes {
			if !graph.IsSource(n.Op) {
				b.Output(n.String(), n)
			}
		}
	})
	cost, w := g.Outputs[0].Node, g.Lookup("a.q.w")
	ds, err := graph.Gradients(g, cost, []*graph.Node{w})
	if err != nil {
		t.Fatal(err)
	}
	nodes["gradient"], want["gradient"] = ds[0], "a/q"
	if got := ds[0].Name; got != "gradient of a.q.w" {
		t.Errorf("the gradient is named %q", got)
	}
	var scopes graph.Scopes
	for name, n := range nodes {
		if got := scopes.Of(n); got != want[name] {
			t.Errorf("%s: scope %q of %s, want %q", name, got, n.Where(), want[name])
		}
	}
	for _, n := range g.Nodes {
		if late := n.ID > cost.ID; late != (n.Phase == graph.Backward) && n.Phase != graph.Optimiser {
			t.Errorf("%s is %v", n.Where(), n.Phase)
		}
	}
}
