package passes

import (
	"errors"
	"strings"
	"testing"

	"fusec/graph"
)

func TestOrder(t *testing.T) {
	if err := checkOrder(table); err != nil {
		t.Fatal(err)
	}
	nop := func(*Context) error { return nil }
	a := Pass{Name: "a", Doc: "a", Run: nop, After: []After{{"b", "b makes what a reads"}}}
	b := Pass{Name: "b", Doc: "b", Run: nop}
	for _, tt := range []struct {
		table []Pass
		want  string
	}{
		{[]Pass{a, b}, `pass "a" must come after "b": b makes what a reads`},
		{[]Pass{b, a}, ""},
		{[]Pass{b, b}, `pass "b" has no name, doc or function, or is there twice`},
		{[]Pass{{Name: "c", Doc: "c"}}, `pass "c" has no name, doc or function, or is there twice`},
	} {
		got := ""
		if err := checkOrder(tt.table); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
	defer func() {
		if r := recover(); r == nil || !strings.Contains(r.(string), "must come after") {
			t.Errorf("a violated order gives %v", r)
		}
	}()
	mustOrder([]Pass{a, b})
}

func TestConfig(t *testing.T) {
	g := made(t, func(b *graph.Builder) { b.Output("y", shift(b, b.Input("x", dt(2)), 0)) })
	for _, tt := range []struct {
		cfg  Config
		want string
	}{
		{Config{Stop: "nowhere"}, `no pass "nowhere" to stop after`},
		{Config{Disable: map[string]bool{"nothing": true}}, `no pass "nothing" to disable`},
	} {
		if _, _, err := Run(g, tt.cfg); err == nil || err.Error() != tt.want {
			t.Errorf("%v, want %s", err, tt.want)
		}
	}
	h, tr, err := Run(g, Config{Disable: map[string]bool{"simplify": true}, Stop: "raise"})
	if err != nil {
		t.Fatal(err)
	}
	if got := opsOf(h); got != "add" {
		t.Errorf("without simplify: %s", got)
	}
	var stages []string
	for _, s := range tr.Stages {
		stages = append(stages, s.Name)
		if s.Doc == "" {
			t.Errorf("stage %s has no doc", s.Name)
		}
	}
	if got := strings.Join(stages, " "); got != "import strip-grad raise" {
		t.Errorf("stages: %s", got)
	}
	if len(All()) != len(table) {
		t.Errorf("%d passes", len(All()))
	}
}

// TestRunLeavesInput checks that the graph given is as it was, and that two runs give the same.
func TestRunLeavesInput(t *testing.T) {
	g := made(t, func(b *graph.Builder) {
		b.Output("y", gLayerNorm(b, b.Input("x", dt(3, 5)), nil, b.Param("beta", dt(5))))
	})
	before, _ := g.Clone()
	first, _ := run(t, g, Config{})
	if err := graph.Equal(before, g); err != nil {
		t.Errorf("the input changed: %v", err)
	}
	second, _ := run(t, g, Config{})
	if err := graph.Equal(first, second); err != nil {
		t.Errorf("two runs differ: %v", err)
	}
}

// TestFaults checks what becomes of passes that fail, and of malformed graphs.
func TestFaults(t *testing.T) {
	defer func(old []Pass) { table = old }(table)
	g := made(t, func(b *graph.Builder) { b.Output("y", b.Unary(graph.Exp, b.Input("x", dt(2)))) })
	for _, tt := range []struct {
		run  func(*Context) error
		want string
	}{
		{func(*Context) error { panic("oops") }, "pass bad: internal error: oops\n"},
		{func(*Context) error { return errors.New("cannot") }, "pass bad: cannot"},
		{func(c *Context) error { c.Graph.Nodes[1].Type = dt(3); return nil }, "pass bad left a malformed graph: "},
	} {
		table = []Pass{{Name: "bad", Doc: "bad", Run: tt.run}}
		if _, _, err := Run(g, Config{Verify: true}); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%v, want %s", err, tt.want)
		}
	}
	h, _ := g.Clone()
	h.Nodes[1].Type = dt(3)
	if _, _, err := Run(h, Config{Verify: true}); err == nil || !strings.HasPrefix(err.Error(), "the graph as it came: ") {
		t.Errorf("a malformed graph: %v", err)
	}
}

// TestCircles checks that rules that undo each other end in an error.
func TestCircles(t *testing.T) {
	g := made(t, func(b *graph.Builder) { b.Output("y", b.Unary(graph.Exp, b.Input("x", dt(2)))) })
	r := &rewriter{ctx: &Context{Graph: g}}
	r.visit = func(n *graph.Node) (*graph.Node, error) {
		u, ok := n.Op.(graph.Unary)
		if !ok {
			return n, nil
		}
		return r.builder(n).Unary(graph.Exp+graph.Log-u.Fn, n.Args[0]), nil
	}
	if err := r.fixpoint(func() {}); err == nil || !strings.HasPrefix(err.Error(), "the rules do not settle") {
		t.Errorf("%v", err)
	}
}
