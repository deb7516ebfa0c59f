package rewrite_test

import (
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/passes/passtest"
	"fusec/passes/rewrite"
)

// TestStale: a pass that asks about the graph as it was before its own change is found where graphs are verified.
func TestStale(t *testing.T) {
	ask := map[string]func(*rewrite.Context){
		"uses":         func(c *rewrite.Context) { c.Uses() },
		"frozen nodes": func(c *rewrite.Context) { c.FrozenNodes() },
	}
	for what, ask := range ask {
		g := graphtest.Built(t, func(b *graph.Builder) {
			b.Output("y", b.Unary(graph.Exp, b.Unary(graph.Exp, b.Input("x", passtest.F64(2)))))
		})
		said := ""
		try := func(c *rewrite.Context) {
			defer func() { said, _ = recover().(string) }()
			ask(c)
		}
		c := &rewrite.Context{Graph: g, Verify: true}
		try(c)
		if try(c); said != "" {
			t.Errorf("%s of a graph that is as it was: %s", what, said)
		}
		g.Outputs[0].Node.Args[0] = graph.Extend(g).Const(graph.Filled(passtest.F64(2), 1))
		if err := g.Tidy(); err != nil {
			t.Fatal(err)
		}
		if try(c); !strings.Contains(said, "asks for "+what) {
			t.Errorf("%s of a graph that was changed: %q", what, said)
		}
		c.Changed()
		if try(c); said != "" {
			t.Errorf("%s after the pass: %s", what, said)
		}
	}
}
