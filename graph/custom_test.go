package graph_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
)

// plus is a custom function of two operands, for tests that spoil a part of it.
func plus(name graph.CustomFn) graph.CustomInfo {
	return graph.CustomInfo{Name: name, Operands: 2, Eval: func(x []float64) float64 { return x[0] + x[1] },
		Grad: func(_ *graph.Builder, _ []*graph.Node, _, dy *graph.Node) []*graph.Node { return []*graph.Node{dy, dy} }}
}

// TestRegisterCustomErrors: what is wrong is named, and nothing is registered.
func TestRegisterCustomErrors(t *testing.T) {
	grad := func(f func(b *graph.Builder, x []*graph.Node, y, dy *graph.Node) []*graph.Node) func(*graph.CustomInfo) {
		return func(i *graph.CustomInfo) { i.Grad = f }
	}
	before := graph.CustomFns()
	for want, spoil := range map[string]func(*graph.CustomInfo){
		`"" is no name`:                          func(i *graph.CustomInfo) { i.Name = "" },
		`"Mish" is no name`:                      func(i *graph.CustomInfo) { i.Name = "Mish" },
		`"2x" is no name`:                        func(i *graph.CustomInfo) { i.Name = "2x" },
		`"a b" is no name`:                       func(i *graph.CustomInfo) { i.Name = "a b" },
		"digits and underscores, 64 at most":     func(i *graph.CustomInfo) { i.Name = graph.CustomFn(strings.Repeat("a", 65)) },
		"test_softsign is registered already":    func(i *graph.CustomInfo) { i.Name = graphtest.Softsign },
		"spoilt has 0 operands: it needs 1 to 8": func(i *graph.CustomInfo) { i.Operands = 0 },
		"spoilt has 9 operands":                  func(i *graph.CustomInfo) { i.Operands = 9 },
		"spoilt has no Go body":                  func(i *graph.CustomInfo) { i.Eval = nil },
		"spoilt returns nothing":                 func(i *graph.CustomInfo) { i.Bodies = map[string]string{"cuda": "x0 + x1;"} },
		"-1 operations for each element":         func(i *graph.CustomInfo) { i.FLOPs = -1 },
		"spoilt, of f32: 1 gradients of 2 operands": grad(func(_ *graph.Builder, _ []*graph.Node, _, dy *graph.Node) []*graph.Node {
			return []*graph.Node{dy}
		}),
		"the gradient of operand 1 is f32[], not f32[2]": grad(func(b *graph.Builder, _ []*graph.Node, _, dy *graph.Node) []*graph.Node {
			return []*graph.Node{dy, b.Reduce(graph.Sum, dy, false, 0)}
		}),
		"spoilt, of f64: ": grad(func(b *graph.Builder, _ []*graph.Node, _, dy *graph.Node) []*graph.Node {
			return []*graph.Node{b.Binary(graph.Mul, dy, b.Scalar(graph.F32, 2)), nil}
		}),
	} {
		info := plus("spoilt")
		spoil(&info)
		if err := graph.RegisterCustom(info); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if after := graph.CustomFns(); !slices.Equal(before, after) {
		t.Errorf("%v are registered, not %v", after, before)
	}
	if err := graph.RegisterCustom(plus("spoilt")); err != nil {
		t.Errorf("the name of a function that was refused: %v", err)
	}
}

// TestCustomConcurrently registers functions while others are looked up and used. One of those with one name is registered.
func TestCustomConcurrently(t *testing.T) {
	const n = 16
	var wait sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wait.Go(func() {
			errs[i] = graph.RegisterCustom(plus("concurrent"))
			if err := graph.RegisterCustom(plus(graph.CustomFn(fmt.Sprint("concurrent_", i)))); err != nil {
				t.Error(err)
			}
			b := graph.NewBuilder("use")
			x := b.Input("x", graph.TypeOf(graph.F32, 3))
			y := b.Custom(graph.CustomFn(fmt.Sprint("concurrent_", i)), b.Custom(graphtest.Softsign, x), x)
			b.Output("y", y)
			if _, err := b.Graph(); err != nil {
				t.Error(err)
			}
			graph.CustomFns()
		})
	}
	wait.Wait()
	if made := slices.DeleteFunc(errs, func(err error) bool { return err != nil }); len(made) != 1 {
		t.Errorf("%d functions have one name", len(made))
	}
	if _, err := parse("y = custom[fn=missing] m"); err == nil || !strings.Contains(err.Error(), "and ") {
		t.Errorf("error %v, want one that lists some of the functions", err)
	}
}

// TestCustomFiles: a file has the function's name; one that is not registered is an error with its node and line.
func TestCustomFiles(t *testing.T) {
	const statements = "y = custom[fn=test_blend] m m s\nz = custom[fn=test_softsign] y"
	g, err := parse(statements)
	if err != nil {
		t.Fatal(err)
	}
	text := graph.Print(g)
	for _, line := range strings.Split(statements, "\n") {
		_, op, _ := strings.Cut(line, " = ")
		if !strings.Contains(text, op[:strings.Index(op, "]")+1]) {
			t.Errorf("%q is not in\n%s", op, text)
		}
	}
	again, err := graph.Parse("m.graph", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := graph.Equal(g, again); err != nil {
		t.Error(err)
	}
	if c := graph.CostOf(g.Nodes[len(g.Nodes)-1]); c.FLOPs != 3*6 {
		t.Errorf("%d operations, want 18", c.FLOPs)
	}
	const want = `m.graph:15:5: node "y": custom of ("m" f32[2,3]): no custom function "mish" is registered (there is `
	if _, err := parse("y = custom[fn=mish] m"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
	if _, err := parse(`y = custom[fn="mi] m`); err == nil {
		t.Error("a name without an end is accepted")
	}
}

// TestCustomWithoutGradient: a cost that depends on the operands is an error that names the function and the node.
func TestCustomWithoutGradient(t *testing.T) {
	info := plus("without_gradient")
	info.Grad = nil
	if err := graph.RegisterCustom(info); err != nil {
		t.Fatal(err)
	}
	b := graph.NewBuilder("g")
	x := b.Input("x", graph.TypeOf(graph.F32, 2))
	y := b.Reduce(graph.Sum, b.Named(b.Custom("without_gradient", x, x), "mine"), false, 0)
	b.Output("y", y)
	g := graphtest.Graph(t, b)
	const want = "the custom function without_gradient was registered without a gradient"
	if _, err := graph.Gradients(g, y, []*graph.Node{x}); err == nil || !strings.Contains(err.Error(), want) ||
		!strings.Contains(err.Error(), `without_gradient "mine"`) {
		t.Errorf("error %v, want %s", err, want)
	}
}
