package pattern

import (
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/trace"
)

// env is a graph with some values to match.
type env struct {
	*graph.Builder
	x, y *graph.Node
}

func newEnv() env {
	b := graph.NewBuilder("test")
	return env{b, b.Input("x", graph.TypeOf(graph.F64, 2, 3)), b.Input("y", graph.TypeOf(graph.F64, 2, 3))}
}

func (e env) c(v float64) *graph.Node { return e.Scalar(graph.F64, v) }

func TestExpressions(t *testing.T) {
	const add, mul = graph.Add, graph.Mul
	tests := []struct {
		name  string
		expr  Expr
		build func(e env) *graph.Node
		want  bool
	}{
		{"op", Op("unary"), func(e env) *graph.Node { return e.Unary(graph.Exp, e.x) }, true},
		{"op with operand", Op("unary", Op("input")), func(e env) *graph.Node { return e.Unary(graph.Exp, e.x) }, true},
		{"another op", Op("binary"), func(e env) *graph.Node { return e.Unary(graph.Exp, e.x) }, false},
		{"number of operands", Op("concat", Any()), func(e env) *graph.Node { return e.Add(graph.Concat{}, e.x, e.y) }, false},
		{"is", Is("a product with b transposed", func(o graph.MatMul) bool { return o.TransB }, Any(), Any()),
			func(e env) *graph.Node { return e.MatMul(e.x, e.y, false, true) }, true},
		{"is not", Is("a product with a transposed", func(o graph.MatMul) bool { return o.TransA }),
			func(e env) *graph.Node { return e.MatMul(e.x, e.y, false, true) }, false},
		{"function", Unary(graph.Exp, Any()), func(e env) *graph.Node { return e.Unary(graph.Log, e.x) }, false},
		{"reduce", Reduce(graph.Sum, Any()), func(e env) *graph.Node { return e.Reduce(graph.Sum, e.x, false, 0) }, true},
		{"binary in order", Binary(add, Const(1), Any()), func(e env) *graph.Node { return e.Binary(add, e.x, e.c(1)) }, false},
		{"commute", Commute(add, Const(1), Any()), func(e env) *graph.Node { return e.Binary(add, e.x, e.c(1)) }, true},
		{"chain to the left", Chain(mul, Const(2), Unary(graph.Exp, Any()), Same("x")),
			func(e env) *graph.Node { return e.Binary(mul, e.Binary(mul, e.x, e.c(2)), e.Unary(graph.Exp, e.x)) }, true},
		{"chain to the right", Chain(mul, Const(2), Unary(graph.Exp, Any()), Same("x")),
			func(e env) *graph.Node { return e.Binary(mul, e.Unary(graph.Exp, e.x), e.Binary(mul, e.c(2), e.x)) }, true},
		{"chain too short", Chain(mul, Const(2), Unary(graph.Exp, Any()), Same("x")),
			func(e env) *graph.Node { return e.Binary(mul, e.Unary(graph.Exp, e.x), e.c(2)) }, false},
		{"same", Binary(add, Same("x"), Same("x")), func(e env) *graph.Node { return e.Binary(add, e.x, e.x) }, true},
		{"not the same", Binary(add, Same("x"), Same("x")), func(e env) *graph.Node { return e.Binary(add, e.x, e.y) }, false},
		{"same after a wrong choice", Commute(add, Same("x"), Unary(graph.Exp, Same("x"))),
			func(e env) *graph.Node { return e.Binary(add, e.Unary(graph.Exp, e.x), e.x) }, true},
		{"or", Or(Unary(graph.Exp, Any()), Unary(graph.Log, Any())), func(e env) *graph.Node { return e.Unary(graph.Log, e.x) }, true},
		{"neither", Or(Unary(graph.Exp, Any()), Unary(graph.Log, Any())), func(e env) *graph.Node { return e.Unary(graph.Sin, e.x) },
			false},
		{"maybe there", maybe(func(x Expr) Expr { return Unary(graph.Neg, x) }, Unary(graph.Exp, Any())),
			func(e env) *graph.Node { return e.Unary(graph.Neg, e.Unary(graph.Exp, e.x)) }, true},
		{"maybe absent", maybe(func(x Expr) Expr { return Unary(graph.Neg, x) }, Unary(graph.Exp, Any())),
			func(e env) *graph.Node { return e.Unary(graph.Exp, e.x) }, true},
		{"through views", Through(Unary(graph.Exp, Any())), func(e env) *graph.Node {
			return e.Broadcast(e.Reshape(e.Unary(graph.Exp, e.x), 6), graph.ShapeOf(2, 6))
		}, true},
		{"through a transpose", Through(Unary(graph.Exp, Any())), func(e env) *graph.Node {
			return e.Transpose(e.Unary(graph.Exp, e.x), 1, 0)
		}, false},
		{"where", Where("rank 2", func(_ *Match, n *graph.Node) bool { return n.Type.Shape.Rank() == 2 }, Any()),
			func(e env) *graph.Node { return e.x }, true},
		{"where not", Where("rank 1", func(_ *Match, n *graph.Node) bool { return n.Type.Shape.Rank() == 1 }, Any()),
			func(e env) *graph.Node { return e.x }, false},
		{"const through views", Const(2), func(e env) *graph.Node {
			return e.Transpose(e.Broadcast(e.Reshape(e.c(2), 1, 1), graph.ShapeOf(2, 3)), 1, 0)
		}, true},
		{"const through a cast that truncates", Const(2), func(e env) *graph.Node {
			return e.Builder.Add(graph.Cast{To: graph.I32}, e.c(2.5))
		}, true},
		{"const near", ConstNear(0.797884561, 1e-5), func(e env) *graph.Node { return e.c(0.79788) }, true},
		{"const not near", ConstNear(0.797884561, 1e-5), func(e env) *graph.Node { return e.c(0.8) }, false},
		{"any const", AnyConst(), func(e env) *graph.Node { return e.c(7) }, true},
		{"no const", AnyConst(), func(e env) *graph.Node { return e.x }, false},
		{"empty const", AnyConst(), func(e env) *graph.Node { return e.Const(graph.NewTensor(graph.TypeOf(graph.F64, 0))) }, false},
		{"uneven const", AnyConst(), func(e env) *graph.Node {
			c, _ := graph.TensorOf([]float64{1, 2}, 2)
			return e.Builder.Add(graph.Cast{To: graph.F32}, e.Const(c))
		}, false},
	}
	for _, tt := range tests {
		e := newEnv()
		n := tt.build(e)
		e.Output("n", n)
		g, err := e.Graph()
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		p := &Pattern{Name: "p", Doc: "p", Expr: tt.expr}
		m, miss := p.Match(n, g.Uses())
		if (m != nil) != tt.want || miss != nil {
			t.Errorf("%s: match %v, want %v; miss %v", tt.name, m != nil, tt.want, miss)
		}
		if m != nil && m.Root != n {
			t.Errorf("%s: root is %v", tt.name, m.Root)
		}
	}
}

func TestMatch(t *testing.T) {
	e := newEnv()
	exp := e.Unary(graph.Exp, e.x)
	n := e.Binary(graph.Add, e.c(1), exp)
	e.Output("n", n)
	g, err := e.Graph()
	if err != nil {
		t.Fatal(err)
	}
	p := &Pattern{Name: "p", Doc: "p", Expr: Commute(graph.Add, Unary(graph.Exp, Capture("x", Any())), Const(1))}
	m, _ := p.Match(n, g.Uses())
	if m == nil || m.Get("x") != e.x || m.Get("none") != nil {
		t.Fatalf("match %+v", m)
	}
	if len(m.Covered) != 3 || m.Covered[0] != n || m.Covered[1] != exp {
		t.Errorf("covered: %v", m.Covered)
	}
}

// TestMiss checks the words of missed fusions, and that there are none before the key.
func TestMiss(t *testing.T) {
	gate := Chain(graph.Mul, Key(Unary(graph.Sigmoid, OneUse(Capture("u", Unary(graph.Exp, Any()))))), Const(2), Same("u"))
	tests := []struct {
		name  string
		expr  Expr
		build func(e env) *graph.Node
		want  string
	}{
		{"before the key", gate, func(e env) *graph.Node { return e.Binary(graph.Mul, e.x, e.Unary(graph.Tanh, e.x)) }, ""},
		{"constant", gate, func(e env) *graph.Node {
			u := e.Unary(graph.Exp, e.x)
			return e.Binary(graph.Mul, e.Binary(graph.Mul, e.Unary(graph.Sigmoid, u), e.c(3)), u)
		}, "wanted the constant 2, found 3"},
		{"not a constant", gate, func(e env) *graph.Node {
			return e.Binary(graph.Mul, e.Unary(graph.Sigmoid, e.Unary(graph.Exp, e.x)), e.x)
		}, `wanted a mul of 3 terms, found input "x"`},
		{"another value", gate, func(e env) *graph.Node {
			return e.Binary(graph.Mul, e.Binary(graph.Mul, e.Unary(graph.Sigmoid, e.Unary(graph.Exp, e.x)), e.c(2)), e.y)
		}, `wanted exp %2 of "x" again, found input "y"`},
		{"read by another", gate, func(e env) *graph.Node {
			u := e.Unary(graph.Exp, e.x)
			e.Output("other", e.Reduce(graph.MaxOf, u, false, 1))
			return e.Binary(graph.Mul, e.Binary(graph.Mul, e.Unary(graph.Sigmoid, u), e.c(2)), u)
		}, `exp %2 of "x" is also read by max over axes [1] %3 of "x"`},
		{"handed out", gate, func(e env) *graph.Node {
			u := e.Unary(graph.Exp, e.x)
			e.Output("u", u)
			return e.Binary(graph.Mul, e.Binary(graph.Mul, e.Unary(graph.Sigmoid, u), e.c(2)), u)
		}, `exp %2 of "x" is also handed out as an output`},
		{"operation", Binary(graph.Sub, Key(Unary(graph.Exp, Any())), Op("matmul", Any(), Any())), func(e env) *graph.Node {
			return e.Binary(graph.Sub, e.Unary(graph.Exp, e.x), e.Const(graph.Filled(e.x.Type, 4)))
		}, "wanted a matmul, found the constant 4"},
		{"any constant", Binary(graph.Sub, Key(Unary(graph.Exp, Any())), AnyConst()), func(e env) *graph.Node {
			return e.Binary(graph.Sub, e.Unary(graph.Exp, e.x), e.Binary(graph.Add, e.x, e.y))
		}, `wanted a constant, found add %3 of "x" and "y"`},
		{"condition", Key(Where("an even number of rows", func(*Match, *graph.Node) bool { return false }, Key(Op("unary", Any())))),
			func(e env) *graph.Node {
				return e.Unary(graph.Exp, e.x)
			}, `wanted an even number of rows, found exp %2 of "x", f64[2,3]`},
	}
	for _, tt := range tests {
		e := newEnv()
		n := tt.build(e)
		e.Output("n", n)
		g, err := e.Graph()
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		m, miss := (&Pattern{Name: "p", Doc: "p", Expr: tt.expr}).Match(n, g.Uses())
		got := ""
		if miss != nil {
			got, _, _ = strings.Cut(miss.Reason, " (pattern_test.go")
			if miss.Key == nil || miss.At == nil || len(miss.Covered) == 0 {
				t.Errorf("%s: miss %+v", tt.name, miss)
			}
		}
		if m != nil || got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	if got := position(&graph.Node{}); got != "" {
		t.Errorf("position %q", got)
	}
}

func TestSet(t *testing.T) {
	p := func(name string, e Expr) *Pattern {
		return &Pattern{Name: name, Doc: "doc", Numeric: trace.Exact, Expr: e}
	}
	s := NewSet(
		p("exp", Unary(graph.Exp, Any())),
		p("all", Any()),
		p("unary", Op("unary", Any())),
		p("sum", Reduce(graph.Sum, Any())),
		p("exp again", maybe(func(e Expr) Expr { return Unary(graph.Neg, e) }, OneUse(Key(Where("", nil, Unary(graph.Exp, Any())))))),
		p("through", Through(Const(1))),
		p("chain", Chain(graph.Add, Any(), Any())),
	)
	e := newEnv()
	for _, tt := range []struct {
		n    *graph.Node
		want string
	}{
		{e.Unary(graph.Exp, e.x), "exp, all, unary, exp again, through"},
		{e.Unary(graph.Neg, e.x), "all, unary, exp again, through"},
		{e.Unary(graph.Sin, e.x), "all, unary, through"},
		{e.Reduce(graph.Sum, e.x, false, 0), "all, sum, through"},
		{e.Reduce(graph.MaxOf, e.x, false, 0), "all, through"},
		{e.Reshape(e.x, 6), "all, through"},
		{e.Binary(graph.Add, e.x, e.y), "all, through, chain"},
		{e.x, "all, through"},
	} {
		var names []string
		for _, p := range s.Candidates(tt.n) {
			names = append(names, p.Name)
		}
		if got := strings.Join(names, ", "); got != tt.want {
			t.Errorf("%s: %s, want %s", Describe(tt.n), got, tt.want)
		}
	}
	if len(s.all) != 7 {
		t.Errorf("%d patterns", len(s.all))
	}
	if got := NewSet(p("exp", Unary(graph.Exp, Any()))).Candidates(e.x); got != nil {
		t.Errorf("candidates %v", got)
	}
}

func TestUses(t *testing.T) {
	e := newEnv()
	twice, once := e.Unary(graph.Exp, e.x), e.Unary(graph.Log, e.x)
	out := e.Binary(graph.Add, e.Binary(graph.Mul, twice, twice), once)
	e.Output("y", out)
	g, err := e.Graph()
	if err != nil {
		t.Fatal(err)
	}
	u := g.Uses()
	if u.One(twice) || !u.One(once) || u.One(out) {
		t.Errorf("one use: %v %v %v", u.One(twice), u.One(once), u.One(out))
	}
}

func TestMisuse(t *testing.T) {
	for name, f := range map[string]func(){
		"operation":          func() { Op("nothing") },
		"chain":              func() { Chain(graph.Sub, Any(), Any()) },
		"short":              func() { Chain(graph.Add, Any()) },
		"same names":         func() { p := &Pattern{Name: "p", Doc: "d", Numeric: trace.Exact, Expr: Any()}; NewSet(p, p) },
		"no word on numbers": func() { NewSet(&Pattern{Name: "p", Doc: "d", Expr: Any()}) },
		"no name":            func() { NewSet(&Pattern{Expr: Any()}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

// maybe is inner in an optional wrapper.
func maybe(wrap func(Expr) Expr, inner Expr) Expr { return Or(wrap(inner), inner) }
