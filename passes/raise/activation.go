package raise

import (
	"math"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/constant"
	pat "fusec/passes/pattern"
	"fusec/passes/rewrite"
)

// activationPatterns find activations written with masks and exponentials:
//
//	relu          x ⊙ (x ≥ 0)                       also >, max(x, 0)
//	leaky_relu    x ⊙ (x ≥ 0) + α ⊙ (x ⊙ (x < 0))   also max(x, αx), relu(x) − α relu(−x)
//	sigmoid       1 ÷ (1 + e^−x)                    also e^x ÷ (1 + e^x), ½(1 + tanh ½x)
//	softplus      log(1 + e^x)
//	silu          x ⊙ sigmoid(x)                    also x ÷ (1 + e^−x)
//	rsqrt         1 ÷ √x
//
// A rectifier keeps the derivative at 0 that the written form has: a test x ≥ 0 that of the right side, x > 0 that of the
// left, a maximum their mean. Forms whose parts disagree at 0 stay as written.
var activationPatterns = []raising{
	{"relu", "x where x ≥ 0, else 0", trace.Exact, relu(pat.Same("x")), "relu", rectifier},

	{"leaky-relu", "x where x ≥ 0, else αx, by two masks", trace.Reassociated, pat.Commute(graph.Add,
		pat.Or(pat.Capture("relu", pat.Unary(graph.Relu, pat.Same("x"))), relu(pat.Same("x"))),
		pat.Chain(graph.Mul, pat.Key(mask("negative", pat.Same("x"), graph.Lt, graph.Le)), pat.Same("x"),
			pat.Capture("alpha", pat.AnyConst()))),
		"leaky_relu", leakyMasks},
	{"leaky-relu-two", "x where x ≥ 0, else αx, by two rectifiers", trace.Reassociated, pat.Binary(graph.Sub,
		pat.Capture("relu", pat.Unary(graph.Relu, pat.Same("x"))),
		pat.Commute(graph.Mul, pat.Key(pat.Capture("negative", pat.Unary(graph.Relu, pat.Unary(graph.Neg, pat.Same("x"))))),
			pat.Capture("alpha", pat.AnyConst()))),
		"leaky_relu", leakyTwo},
	{"leaky-relu-max", "the larger of x and αx, 0 ≤ α ≤ 1", trace.Reassociated, pat.Commute(graph.Max, pat.Same("x"),
		pat.Commute(graph.Mul, pat.Same("x"), pat.Where("a slope between 0 and 1", func(_ *pat.Match, n *graph.Node) bool {
			a, _ := n.ConstScalar()
			return a >= 0 && a <= 1
		}, pat.Capture("alpha", pat.AnyConst())))),
		"leaky_relu", leaky(graph.MeanSlope)},

	{"sigmoid", "1 ÷ (1 + e^−x)", trace.Reassociated, pat.Or(
		pat.Unary(graph.Recip, onePlus(pat.Unary(graph.Exp, pat.Unary(graph.Neg, pat.Same("x"))))),
		pat.Binary(graph.Div, pat.Capture("e", pat.Unary(graph.Exp, pat.Same("x"))), onePlus(pat.Same("e"))),
		pat.Chain(graph.Mul, pat.Const(0.5), onePlus(pat.Unary(graph.Tanh,
			pat.Commute(graph.Mul, pat.Same("x"), pat.Const(0.5)))))),
		"sigmoid", unary(graph.Sigmoid)},
	{"softplus", "log(1 + e^x)", trace.Reassociated, pat.Or(
		pat.Unary(graph.Log, onePlus(pat.Unary(graph.Exp, pat.Same("x")))),
		pat.Unary(graph.Log1p, pat.Unary(graph.Exp, pat.Same("x")))),
		"softplus", unary(graph.Softplus)},
	{"silu", "x ⊙ sigmoid(x)", trace.Reassociated, pat.Or(
		pat.Commute(graph.Mul, pat.Unary(graph.Sigmoid, pat.Same("x")), pat.Same("x")),
		pat.Binary(graph.Div, pat.Same("x"), onePlus(pat.Unary(graph.Exp, pat.Unary(graph.Neg, pat.Same("x")))))),
		"silu", unary(graph.Silu)},
	{"rsqrt", "1 ÷ √x", trace.Reassociated, pat.Unary(graph.Recip, pat.Unary(graph.Sqrt, pat.Same("x"))), "rsqrt",
		unary(graph.Rsqrt)},
}

// relu is the rectifier of x; the capture "positive" is the test of its mask, if it has one.
func relu(x pat.Expr) pat.Expr {
	return pat.Or(pat.Commute(graph.Mul, mask("positive", x, graph.Ge, graph.Gt), x), pat.Commute(graph.Max, x, pat.Const(0)))
}

// mask is 1 where x compares so with 0, else 0. The comparison is captured under the given name.
func mask(name string, x pat.Expr, fns ...graph.BinaryFn) pat.Expr {
	var tests []pat.Expr
	for _, f := range fns {
		tests = append(tests, pat.Binary(f, x, pat.Const(0)), pat.Binary(rewrite.Flipped[f], pat.Const(0), x))
	}
	return pat.Op("cast", pat.Capture(name, pat.Or(tests...)))
}

// open reports whether the captured comparison holds for zeros.
func open(m *pat.Match, name string) bool {
	fn := m.Get(name).Op.(graph.Binary).Fn
	return fn == graph.Ge || fn == graph.Le
}

// slopeOf is the derivative at 0 of the rectifier that was matched.
func slopeOf(m *pat.Match) graph.Slope {
	switch {
	case m.Get("relu") != nil:
		return m.Get("relu").Op.(graph.Unary).AtZero
	case m.Get("positive") == nil:
		return graph.MeanSlope
	case open(m, "positive"):
		return graph.RightSlope
	}
	return graph.LeftSlope
}

func onePlus(x pat.Expr) pat.Expr { return pat.Commute(graph.Add, x, pat.Const(1)) }

// unary makes f of the node captured as x.
func unary(f graph.UnaryFn) func(*graph.Builder, *pat.Match) *graph.Node {
	return func(b *graph.Builder, m *pat.Match) *graph.Node { return activate(b, m, graph.Unary{Fn: f}) }
}

// rectifier makes a rectifier of x.
func rectifier(b *graph.Builder, m *pat.Match) *graph.Node {
	return activate(b, m, graph.Unary{Fn: graph.Relu, AtZero: slopeOf(m)})
}

// leakyMasks makes a leaky rectifier of a rectifier of x and α·x where a mask is open. At 0 one of both has to pass a
// gradient, and only one.
func leakyMasks(b *graph.Builder, m *pat.Match) *graph.Node {
	slope := slopeOf(m)
	if slope == graph.MeanSlope || open(m, "negative") != (slope == graph.LeftSlope) {
		return nil
	}
	return leaky(slope)(b, m)
}

// leakyTwo makes a leaky rectifier of two, which have to share the gradient at 0.
func leakyTwo(b *graph.Builder, m *pat.Match) *graph.Node {
	if slopeOf(m) != graph.MeanSlope || m.Get("negative").Op.(graph.Unary).AtZero != graph.MeanSlope {
		return nil
	}
	return leaky(graph.MeanSlope)(b, m)
}

// leaky makes a leaky rectifier of x with the captured slope of its left side and the given one at 0.
func leaky(atZero graph.Slope) func(*graph.Builder, *pat.Match) *graph.Node {
	return func(b *graph.Builder, m *pat.Match) *graph.Node {
		alpha := constant.Attribute(m.Get("alpha"))
		if math.IsNaN(alpha) || math.IsInf(alpha, 0) {
			return nil
		}
		return activate(b, m, graph.Unary{Fn: graph.LeakyRelu, Alpha: alpha, AtZero: atZero})
	}
}

// activate applies an activation to x.
func activate(b *graph.Builder, m *pat.Match, op graph.Unary) *graph.Node {
	x := m.Get("x")
	if !x.Type.DType.IsFloat() {
		return nil
	}
	return b.Broadcast(b.Add(op, x), m.Root.Type.Shape)
}
