package passes

import (
	"math"

	"fusec/graph"
	pat "fusec/passes/pattern"
)

// activationPatterns find activations written with masks and exponentials:
//
//	relu          x ⊙ (x ≥ 0)                       also >, max(x, 0)
//	leaky_relu    x ⊙ (x ≥ 0) + α ⊙ (x ⊙ (x < 0))   also max(x, αx), relu(x) − α relu(−x)
//	sigmoid       1 ÷ (1 + e^−x)                    also e^x ÷ (1 + e^x), ½(1 + tanh ½x)
//	softplus      log(1 + e^x)
//	silu          x ⊙ sigmoid(x)                    also x ÷ (1 + e^−x)
//	rsqrt         1 ÷ √x
var activationPatterns = []raising{
	{"relu", "x where x ≥ 0, else 0", relu(pat.Same("x")), "relu", unary(graph.Relu)},

	{"leaky-relu", "x where x ≥ 0, else αx, by two masks", pat.Commute(graph.Add,
		pat.Or(pat.Unary(graph.Relu, pat.Same("x")), relu(pat.Same("x"))),
		pat.Chain(graph.Mul, pat.Key(mask(pat.Same("x"), graph.Lt, graph.Le)), pat.Same("x"), pat.Capture("alpha", pat.AnyConst()))),
		"leaky_relu", leaky},
	{"leaky-relu-two", "x where x ≥ 0, else αx, by two rectifiers", pat.Binary(graph.Sub,
		pat.Unary(graph.Relu, pat.Same("x")),
		pat.Commute(graph.Mul, pat.Key(pat.Unary(graph.Relu, pat.Unary(graph.Neg, pat.Same("x")))), pat.Capture("alpha", pat.AnyConst()))),
		"leaky_relu", leaky},
	{"leaky-relu-max", "the larger of x and αx, 0 ≤ α ≤ 1", pat.Commute(graph.Max, pat.Same("x"),
		pat.Commute(graph.Mul, pat.Same("x"), pat.Where("a slope between 0 and 1", func(_ *pat.Match, n *graph.Node) bool {
			a, _ := pat.Uniform(n)
			return a >= 0 && a <= 1
		}, pat.Capture("alpha", pat.AnyConst())))),
		"leaky_relu", leaky},

	{"sigmoid", "1 ÷ (1 + e^−x)", pat.Or(
		pat.Unary(graph.Recip, onePlus(pat.Unary(graph.Exp, pat.Unary(graph.Neg, pat.Same("x"))))),
		pat.Binary(graph.Div, pat.Capture("e", pat.Unary(graph.Exp, pat.Same("x"))), onePlus(pat.Same("e"))),
		pat.Chain(graph.Mul, pat.Const(0.5), onePlus(pat.Unary(graph.Tanh, pat.Commute(graph.Mul, pat.Same("x"), pat.Const(0.5)))))),
		"sigmoid", unary(graph.Sigmoid)},
	{"softplus", "log(1 + e^x)", pat.Or(
		pat.Unary(graph.Log, onePlus(pat.Unary(graph.Exp, pat.Same("x")))),
		pat.Unary(graph.Log1p, pat.Unary(graph.Exp, pat.Same("x")))),
		"softplus", unary(graph.Softplus)},
	{"silu", "x ⊙ sigmoid(x)", pat.Or(
		pat.Commute(graph.Mul, pat.Unary(graph.Sigmoid, pat.Same("x")), pat.Same("x")),
		pat.Binary(graph.Div, pat.Same("x"), onePlus(pat.Unary(graph.Exp, pat.Unary(graph.Neg, pat.Same("x")))))),
		"silu", unary(graph.Silu)},
	{"rsqrt", "1 ÷ √x", pat.Unary(graph.Recip, pat.Unary(graph.Sqrt, pat.Same("x"))), "rsqrt", unary(graph.Rsqrt)},
}

// relu is the rectifier of x.
func relu(x pat.Expr) pat.Expr {
	return pat.Or(pat.Commute(graph.Mul, mask(x, graph.Ge, graph.Gt), x), pat.Commute(graph.Max, x, pat.Const(0)))
}

// mask is 1 where x compares so with 0, else 0.
func mask(x pat.Expr, fns ...graph.BinaryFn) pat.Expr {
	var tests []pat.Expr
	for _, f := range fns {
		tests = append(tests, pat.Binary(f, x, pat.Const(0)), pat.Binary(flipped[f], pat.Const(0), x))
	}
	return pat.Op("cast", pat.Or(tests...))
}

func onePlus(x pat.Expr) pat.Expr { return pat.Commute(graph.Add, x, pat.Const(1)) }

// unary makes f of the node captured as x.
func unary(f graph.UnaryFn) func(*graph.Builder, *pat.Match) *graph.Node {
	return func(b *graph.Builder, m *pat.Match) *graph.Node {
		x := m.Get("x")
		if !x.Type.DType.IsFloat() {
			return nil
		}
		return b.Broadcast(b.Unary(f, x), m.Root.Type.Shape)
	}
}

// leaky makes a leaky rectifier of x with the captured slope.
func leaky(b *graph.Builder, m *pat.Match) *graph.Node {
	alpha := attribute(m.Get("alpha"))
	x := m.Get("x")
	if !x.Type.DType.IsFloat() || math.IsNaN(alpha) || math.IsInf(alpha, 0) {
		return nil
	}
	return b.Broadcast(b.Add(graph.Unary{Fn: graph.LeakyRelu, Alpha: alpha}, x), m.Root.Type.Shape)
}
