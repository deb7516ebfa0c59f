package passes

import (
	"errors"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
)

func TestOrder(t *testing.T) {
	if err := checkOrder(table); err != nil {
		t.Fatal(err)
	}
	if len(All()) != len(table) {
		t.Errorf("%d passes", len(All()))
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
		{[]Pass{{Name: "c", Doc: "c", Run: nop, For: "d"}}, `pass "c" prepares the graph for "d", which is missing`},
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

// TestFaults checks what becomes of passes that fail, and of malformed graphs.
func TestFaults(t *testing.T) {
	defer func(old []Pass) { table = old }(table)
	g := graphtest.Built(t, func(b *graph.Builder) { b.Output("y", b.Unary(graph.Exp, b.Input("x", graph.TypeOf(graph.F64, 2)))) })
	for _, tt := range []struct {
		run  func(*Context) error
		want string
	}{
		{func(*Context) error { panic("oops") }, "pass bad: internal error: oops\n"},
		{func(*Context) error { return errors.New("cannot") }, "pass bad: cannot"},
		{func(c *Context) error { c.Graph.Nodes[1].Type = graph.TypeOf(graph.F64, 3); return nil }, "pass bad left a malformed graph: "},
	} {
		table = []Pass{{Name: "bad", Doc: "bad", Run: tt.run}}
		if _, _, err := Run(g, Config{Verify: true}); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%v, want %s", err, tt.want)
		}
	}
	h, _ := g.Clone()
	h.Nodes[1].Type = graph.TypeOf(graph.F64, 3)
	if _, _, err := Run(h, Config{Verify: true}); err == nil || !strings.HasPrefix(err.Error(), "the graph as given: ") {
		t.Errorf("a malformed graph: %v", err)
	}
}
