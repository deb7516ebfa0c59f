package graph_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"fusec/graph"
)

// add appends a node that is known to be valid.
func add(t testing.TB, g *graph.Graph, op graph.Op, args ...*graph.Node) *graph.Node {
	t.Helper()
	n, err := g.Add(op, args...)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

var (
	vec    = graph.TypeOf(graph.F32, 3)
	negate = graph.Unary{Fn: graph.Neg}
	double = graph.Binary{Fn: graph.Add}
)

func TestNodeNames(t *testing.T) {
	g := graph.New("g")
	x := add(t, g, graph.Input{Type: vec})
	x.Name = "x y"
	y := add(t, g, negate, x)
	y.Origin = []graph.Origin{{Name: "no position"}, {Name: "y", Pos: "m.go:7"}, {Name: "z", Pos: "m.go:8"}}
	if x.String() != `"x y"` || y.String() != "%1" || y.Where() != `neg %1 of "x y" (m.go:7)` || x.Where() != `input "x y"` ||
		y.Arg(0) != x {
		t.Errorf("%v, %v, %s", x, y, y.Where())
	}
	z := add(t, g, double, y, add(t, g, negate, y))
	if z.Where() != `add %3 of "x y"` || z.Describe() != z.Where() {
		t.Error(z.Where())
	}
	outer := add(t, g, graph.Input{Type: vec})
	outer.Name = "outside"
	if s := z.WhereIn(map[*graph.Node]*graph.Node{x: outer}); s != `add %3 of "outside"` {
		t.Error(s)
	}
	if s := (*graph.Node)(nil).String(); s != "nil node" {
		t.Error(s)
	}
}

func TestTidy(t *testing.T) {
	g := graph.New("g")
	x := add(t, g, graph.Input{Type: vec})
	unusedInput := add(t, g, graph.Input{Type: vec})
	a := add(t, g, negate, x)
	add(t, g, negate, a) // unused
	b := add(t, g, double, a, x)
	s := add(t, g, graph.State{Type: vec})
	u := add(t, g, negate, s)
	g.Outputs = []graph.Output{{Name: "b", Node: b}}
	g.Updates = []graph.Update{{Target: s, Value: u}}
	// An operand behind its reader, and one that is not in the list at all.
	late := &graph.Node{ID: 50, Op: negate, Args: []*graph.Node{x}, Type: vec}
	a.Args[0] = late
	g.Nodes[0], g.Nodes[2] = g.Nodes[2], g.Nodes[0]
	if err := g.Tidy(); err != nil {
		t.Fatal(err)
	}
	var order []int
	for _, n := range g.Nodes {
		order = append(order, n.ID)
	}
	if want := fmt.Sprint([]int{x.ID, late.ID, a.ID, unusedInput.ID, b.ID, s.ID, u.ID}); fmt.Sprint(order) != want {
		t.Errorf("order %v, want %v", order, want)
	}
	late.Args[0] = b
	if err := g.Tidy(); err == nil || !strings.Contains(err.Error(), "cycle through neg") {
		t.Errorf("a cycle gives %v", err)
	}
}

func TestReplaceAndUsers(t *testing.T) {
	g := graph.New("g")
	x := add(t, g, graph.Input{Type: vec})
	s := add(t, g, graph.State{Type: vec})
	a := add(t, g, negate, x)
	b := add(t, g, negate, a)
	c := add(t, g, double, a, a)
	g.Outputs = []graph.Output{{Name: "a", Node: a}}
	g.Updates = []graph.Update{{Target: s, Value: a}}
	if u := g.Users(); fmt.Sprint(u[a]) != fmt.Sprint([]*graph.Node{b, c, c}) || len(u[c]) != 0 {
		t.Errorf("users %v", u)
	}
	if e := g.Escapes(); !e[a] || !e[s] || e[b] {
		t.Errorf("escapes %v", e)
	}
	g.Replace(map[*graph.Node]*graph.Node{a: b, b: x, x: x})
	if c.Args[0] != x || c.Args[1] != x || g.Outputs[0].Node != x || g.Updates[0].Value != x || g.Updates[0].Target != s {
		t.Error("not every reader was changed")
	}
}

func TestClone(t *testing.T) {
	g, err := parse("%20 = fusion[anchor=none kind=reduce] m {\nx = input : f32[2,3]\noutput y = x\n}\nst = state : f32\noutput y = " +
		"%20\nupdate st = s")
	if err != nil {
		t.Fatal(err)
	}
	c, m := g.Clone()
	if err := graph.Equal(g, c); err != nil {
		t.Fatal(err)
	}
	if len(m) != len(g.Nodes) {
		t.Errorf("the map has %d nodes of %d", len(m), len(g.Nodes))
	}
	for old, n := range m {
		if old == n || len(n.Origin) > 0 && &n.Origin[0] == &old.Origin[0] {
			t.Errorf("%v is shared", old)
		}
	}
	f := m[g.Outputs[0].Node].Op.(graph.Fusion)
	f.Body.Nodes[0].Name = "changed"
	if err := graph.Equal(g, c); err == nil {
		t.Error("the bodies are shared")
	}
	if n := add(t, c, negate, c.Nodes[0]); n.ID != add(t, g, negate, g.Nodes[0]).ID {
		t.Error("the clone counts IDs in another way")
	}
}

func TestSourcesAndLookup(t *testing.T) {
	g, err := parse("p = param : f32\nc1 = const[value=1] : f32")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(g.Sources()); n != 14 {
		t.Errorf("%d sources, want 14", n)
	}
	if n := g.Lookup("p"); n == nil || n.Op != graph.Op(graph.Param{Type: graph.TypeOf(graph.F32)}) {
		t.Errorf("Lookup(p) = %v", n)
	}
	if g.Lookup("c1") != nil || g.Lookup("none") != nil {
		t.Error("found what is no source")
	}
}

func TestConstScalar(t *testing.T) {
	g := graph.New("g")
	c := add(t, g, graph.Const{Value: graph.Filled(graph.TypeOf(graph.F32, 2), 7)})
	n := add(t, g, graph.Reshape{Shape: graph.ShapeOf(1, 2)}, c)
	n = add(t, g, graph.Broadcast{Shape: graph.ShapeOf(3, 2)}, n)
	n = add(t, g, graph.Cast{To: graph.F64}, n)
	if v, ok := n.ConstScalar(); v != 7 || !ok {
		t.Errorf("got %v, %v", v, ok)
	}
	for _, n := range []*graph.Node{
		add(t, g, graph.Const{Value: tensor(t, []float32{1, 2}, 2)}),
		add(t, g, graph.Const{Value: tensor(t, []float32{}, 0)}),
		add(t, g, negate, c),
	} {
		if v, ok := n.ConstScalar(); ok {
			t.Errorf("%v gives %v", n.Where(), v)
		}
	}
}

func TestMergeOrigins(t *testing.T) {
	a := &graph.Node{Origin: []graph.Origin{{Name: "a", Pos: "1"}, {Name: "b", Pos: "2"}}}
	b := &graph.Node{Origin: []graph.Origin{{Name: "b", Pos: "2"}, {Name: "c", Pos: "3"}}}
	if got := fmt.Sprint(graph.MergeOrigins(a, b)); got != "[{a 1} {b 2} {c 3}]" {
		t.Error(got)
	}
}

func TestResults(t *testing.T) {
	g, err := parse("%13 = batch_norm c v4 v4 v4 v4")
	if err != nil {
		t.Fatal(err)
	}
	if n := g.Nodes[13].Results(); n != 3 {
		t.Errorf("%d results", n)
	}
	if n := (&graph.Node{Op: negate}).Results(); n != 1 {
		t.Errorf("%d results of a bad node", n)
	}
}

func TestAnchored(t *testing.T) {
	for anchor, op := range map[string]string{
		"matmul": "matmul m n",
		"conv":   "conv2d[stride=[1,1] dilation=[1,1] pad=[0,0,0,0] groups=2] c w",
		"row":    "softmax[axis=1] m",
		"none":   "copy m",
	} {
		body, err := parse("%13 = " + op + "\noutput y = %13")
		if err != nil {
			t.Fatal(err)
		}
		var a graph.Anchor
		if err := a.UnmarshalText([]byte(anchor)); err != nil {
			t.Fatal(err)
		}
		n := graph.Fusion{Anchor: a, Body: body}.Anchored()
		if (n == nil) != (anchor == "none") || n != nil && n.ID != 13 {
			t.Errorf("%s: %v", anchor, n)
		}
		if n := (graph.Fusion{Anchor: a, Body: graph.New("")}).Anchored(); n != nil {
			t.Errorf("%s: %v in an empty body", anchor, n)
		}
	}
}

// TestFunctions checks the values of the elementwise functions at points where they are known, and the names.
func TestFunctions(t *testing.T) {
	inf := math.Inf(1)
	for _, c := range []struct {
		f              graph.UnaryFn
		x, alpha, want float64
	}{
		{graph.Neg, 2, 0, -2}, {graph.Abs, -2, 0, 2}, {graph.Sign, -3, 0, -1}, {graph.Sign, 3, 0, 1}, {graph.Sign, 0, 0, 0},
		{graph.Ceil, 1.2, 0, 2}, {graph.Floor, -1.2, 0, -2}, {graph.Round, 2.5, 0, 2}, {graph.Exp, 0, 0, 1}, {graph.Expm1, 0, 0, 0},
		{graph.Log, 1, 0, 0}, {graph.Log1p, 0, 0, 0}, {graph.Log2, 8, 0, 3}, {graph.Sqrt, 9, 0, 3}, {graph.Rsqrt, 4, 0, 0.5},
		{graph.Recip, 4, 0, 0.25}, {graph.Square, -3, 0, 9}, {graph.Cube, -2, 0, -8}, {graph.Sin, 0, 0, 0}, {graph.Cos, 0, 0, 1},
		{graph.Tanh, inf, 0, 1}, {graph.Sigmoid, 0, 0, 0.5}, {graph.Sigmoid, -inf, 0, 0}, {graph.Softplus, 0, 0, math.Ln2},
		{graph.Softplus, 1e4, 0, 1e4}, {graph.Erf, inf, 0, 1}, {graph.Relu, -inf, 0, 0}, {graph.Relu, 3, 0, 3},
		{graph.LeakyRelu, -2, 0.5, -1}, {graph.LeakyRelu, 2, 0.5, 2}, {graph.Elu, -inf, 2, -2}, {graph.Elu, 3, 2, 3},
		{graph.GeluTanh, 0, 0, 0}, {graph.GeluTanh, -inf, 0, 0}, {graph.GeluTanh, 10, 0, 10}, {graph.GeluErf, -inf, 0, 0},
		{graph.GeluErf, 10, 0, 10}, {graph.Silu, -inf, 0, 0}, {graph.Silu, 0, 0, 0}, {graph.Not, 0, 0, 1}, {graph.Not, 1, 0, 0},
	} {
		if got := c.f.Eval(c.x, c.alpha); math.Abs(got-c.want) > 1e-15 {
			t.Errorf("%v(%v) = %v, want %v", c.f, c.x, got, c.want)
		}
	}
	if v := graph.Softplus.Eval(math.NaN(), 0); !math.IsNaN(v) {
		t.Errorf("softplus(NaN) = %v", v)
	}
	for _, c := range []struct {
		f          graph.BinaryFn
		x, y, want float64
		sign       string
	}{
		{graph.Add, 1, 2, 3, "+"}, {graph.Sub, 1, 2, -1, "−"}, {graph.Mul, 3, 2, 6, "×"}, {graph.Div, 3, 2, 1.5, "÷"},
		{graph.Pow, 2, 3, 8, "^"},
		{graph.Max, 1, 2, 2, "max"}, {graph.Min, 1, 2, 1, "min"}, {graph.And, 1, 0, 0, "and"}, {graph.Or, 1, 0, 1, "or"},
		{graph.Lt, 1, 2, 1, "<"},
		{graph.Gt, 1, 2, 0, ">"}, {graph.Le, 2, 2, 1, "≤"}, {graph.Ge, 1, 2, 0, "≥"}, {graph.Eq, 2, 2, 1, "="}, {graph.Ne, 2, 2, 0, "≠"},
	} {
		if got := c.f.Eval(c.x, c.y); got != c.want || c.f.Info().Form.Sign != c.sign {
			t.Errorf("%v %v %v = %v, want %v", c.x, c.f.Info().Form.Sign, c.y, got, c.want)
		}
		if back := c.f.Eval(c.y, c.x); c.f.Commutes() && back != c.want {
			t.Errorf("%v does not commute", c.f)
		}
	}
	for _, f := range []graph.BinaryFn{graph.Max, graph.Min} {
		if !math.IsNaN(f.Eval(math.NaN(), math.Inf(1))) || !math.IsNaN(f.Eval(math.Inf(-1), math.NaN())) {
			t.Errorf("%v hides NaN", f)
		}
	}
}

func TestEnumNames(t *testing.T) {
	type enum interface {
		UnmarshalText([]byte) error
		fmt.Stringer
	}
	for name, e := range map[string]enum{
		"gelu_tanh": new(graph.UnaryFn), "le": new(graph.BinaryFn), "prod": new(graph.ReduceFn), "avg": new(graph.PoolFn),
		"nhwc":      new(graph.ImageLayout),
		"bernoulli": new(graph.Dist), "row": new(graph.Anchor), "softmax": new(graph.Kind), "bool": new(graph.DType),
	} {
		if err := e.UnmarshalText([]byte(name)); err != nil || e.String() != name {
			t.Errorf("%s became %v (%v)", name, e, err)
		}
		if err := e.UnmarshalText([]byte("x")); err == nil || !strings.Contains(err.Error(), name) && name != "bool" {
			t.Errorf("%T: error %v does not list the names", e, err)
		}
	}
}
