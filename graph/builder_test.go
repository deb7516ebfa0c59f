package graph_test

import (
	"fmt"
	"strings"
	"testing"

	"fusec/graph"
)

func TestBuilderRemembersLines(t *testing.T) {
	b := graph.NewBuilder("g")
	x := b.Input("x", vec)
	y := b.Add(negate, x)
	z := b.BinaryScalar(graph.Mul, y, 2)
	for _, n := range []*graph.Node{x, y, z, z.Args[1]} {
		if len(n.Origin) != 1 || !strings.Contains(n.Origin[0].Pos, "builder_test.go:") {
			t.Errorf("origin of %v is %v", n, n.Origin)
		}
	}
	if x.Origin[0].Name != "x" {
		t.Errorf("origin of x is %v", x.Origin)
	}
}

func TestExtendKeepsOrigins(t *testing.T) {
	g := graph.New("g")
	b := graph.Extend(g, graph.Origin{Name: "a", Pos: "1"})
	x := b.Input("x", vec)
	y := b.Unary(graph.Exp, x)
	y.Origin = []graph.Origin{{Name: "y", Pos: "2"}}
	z := b.From(x, y).Unary(graph.Exp, y)
	if fmt.Sprint(z.Origin) != "[{a 1} {y 2}]" {
		t.Errorf("origin %v", z.Origin)
	}
	b.Output("z", z)
	got, err := b.Graph()
	if err != nil || got != g || b.Err() != nil {
		t.Errorf("%v, %v", got, err)
	}
}

func TestBuilderKeepsFirstError(t *testing.T) {
	b := graph.NewBuilder("g")
	x := b.Input("x", vec)
	bad := b.MatMul(x, x, false, false)
	worse := b.Unary(graph.Exp, b.Binary(graph.Add, bad, x))
	b.Output("y", worse)
	_, err := b.Graph()
	if err == nil || err != b.Err() || !strings.Contains(err.Error(), "matmul") || !strings.Contains(err.Error(), "builder_test.go:") {
		t.Errorf("error %v", err)
	}
	b.Fail(fmt.Errorf("another"))
	if b.Err() != err {
		t.Error("the first error was lost")
	}
}

func TestBuilderRefuses(t *testing.T) {
	for want, build := range map[string]func(b *graph.Builder, x *graph.Node){
		`output "y" has no node`: func(b *graph.Builder, x *graph.Node) { b.Output("y", nil) },
		"update of":              func(b *graph.Builder, x *graph.Node) { b.Update(x, nil) },
		"neither state":          func(b *graph.Builder, x *graph.Node) { b.Update(x, x) },
		"is missing":             func(b *graph.Builder, x *graph.Node) { b.Add(negate, nil) },
		"cycle":                  func(b *graph.Builder, x *graph.Node) { y := b.Add(negate, x); y.Args[0] = y; b.Output("y", y) },
		"more inputs than":       func(b *graph.Builder, x *graph.Node) { b.Inline(chain(), nil) },
	} {
		b := graph.NewBuilder("g")
		build(b, b.Input("x", vec))
		if _, err := b.Graph(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

// chain is a body of two operations on one input.
func chain() *graph.Graph {
	g := graph.New("chain")
	b := graph.Extend(g, graph.Origin{Name: "chain"})
	x := b.Add(graph.Input{Type: vec})
	y := b.Named(b.Unary(graph.Exp, x), "e")
	b.Output("sum", b.Binary(graph.Add, y, x))
	b.Output("x", x)
	return g
}

func TestInline(t *testing.T) {
	b := graph.NewBuilder("g")
	x := b.Input("x", vec)
	out := b.Inline(chain(), []*graph.Node{x})
	if len(out) != 2 || out[1] != x || out[0].Args[1] != x || out[0].Args[0].Name != "e" || out[0].Origin[0].Name != "chain" {
		t.Errorf("got %v", out)
	}
	b.Output("y", out[0])
	if _, err := b.Graph(); err != nil {
		t.Error(err)
	}
}

// TestInlineGivesOrigins: nodes of a body without origins get the builder's.
func TestInlineGivesOrigins(t *testing.T) {
	body := graph.New("body")
	e := graph.Extend(body)
	e.Output("y", e.Unary(graph.Exp, e.Add(graph.Input{Type: vec})))
	b := graph.Extend(graph.New("g"), graph.Origin{Name: "mine"})
	out := b.Inline(body, []*graph.Node{b.Input("x", vec)})
	if o := out[0].Origin; len(o) != 1 || o[0].Name != "mine" {
		t.Errorf("origin %v", o)
	}
}

func TestShortcuts(t *testing.T) {
	b := graph.NewBuilder("g")
	x := b.Input("x", graph.TypeOf(graph.F32, 2, 3))
	for name, n := range map[string]*graph.Node{
		"reshape":   b.Reshape(x, 2, 3),
		"transpose": b.Transpose(x, 0, 1),
		"broadcast": b.Broadcast(x, x.Type.Shape),
		"sum":       b.SumTo(x, x.Type.Shape),
	} {
		if n != x {
			t.Errorf("%s without effect made a node", name)
		}
	}
	if n := b.Slice(x, 1, 1, 2, 1); n.Type.Shape != graph.ShapeOf(2, 2) {
		t.Errorf("slice of type %v", n.Type)
	}
	if n := b.Transpose(x, 1, 0); n.Type.Shape != graph.ShapeOf(3, 2) {
		t.Errorf("transpose of type %v", n.Type)
	}
}

// TestSumToAndExpand: SumTo inverts the shape of any Broadcast, and Expand that of any Reduce.
func TestSumToAndExpand(t *testing.T) {
	for _, c := range []struct{ from, to []int }{
		{nil, []int{2, 3}}, {[]int{3}, []int{2, 3}}, {[]int{1, 3}, []int{2, 3}}, {[]int{2, 1}, []int{5, 2, 3}},
		{[]int{1, 1}, []int{1, 1}}, {[]int{1}, []int{4, 1}}, {[]int{1, 3, 1}, []int{7, 2, 3, 4}}, {[]int{1}, []int{0}},
	} {
		b := graph.NewBuilder("g")
		from, to := graph.ShapeOf(c.from...), graph.ShapeOf(c.to...)
		x := b.Input("x", graph.Type{DType: graph.F32, Shape: from})
		y := b.SumTo(b.Broadcast(x, to), from)
		if b.Err() != nil || y.Type.Shape != from {
			t.Errorf("%v to %v and back: %v, %v", from, to, y.Type, b.Err())
		}
	}
	for _, axes := range []graph.Ints{graph.IntsOf(), graph.IntsOf(0), graph.IntsOf(2, 0), graph.IntsOf(0, 1, 2)} {
		for _, keep := range []bool{false, true} {
			b := graph.NewBuilder("g")
			x := b.Input("x", graph.TypeOf(graph.F32, 2, 3, 5))
			y := b.Expand(b.Reduce(graph.Sum, x, keep, axes.Slice()...), axes, x.Type.Shape)
			if b.Err() != nil || y.Type != x.Type {
				t.Errorf("reduced by %v, keep %v, and back: %v, %v", axes, keep, y.Type, b.Err())
			}
		}
	}
}
