package raise

import (
	"math"

	"fusec/graph"
	"fusec/graph/trace"
	pat "fusec/passes/pattern"
)

// geluPatterns find the Gaussian error linear unit, in the form with tanh, with any brackets and any order of factors,
//
//	x ─┬─ ^3 ─ ⊙ 0.044715 ─┐
//	   ├───────────────────+ ─ ⊙ √(2/π) ─ tanh ─ + 1 ─ ⊙ ½ ─ ⊙ ─►      x ─ gelu_tanh ─►
//	   └───────────────────────────────────────────────────┘
//
// with its factors multiplied out in the two other ways in use, and in the form with the error function. People write
// the constants to five digits or more; the result is that of the exact ones.
var geluPatterns = []raising{
	{"gelu-tanh", "½x(1 + tanh(√(2/π)(x + 0.044715x³)))", trace.Approximate(written),
		pat.Chain(graph.Mul, onePlus(pat.Unary(graph.Tanh, cubic)), pat.Same("x"), pat.Const(0.5)),
		"gelu_tanh", unary(graph.GeluTanh)},
	{"gelu-erf", "½x(1 + erf(x ÷ √2))", trace.Approximate(written),
		pat.Chain(graph.Mul, pat.Key(onePlus(pat.Unary(graph.Erf, pat.Or(
			pat.Binary(graph.Div, pat.Same("x"), pat.ConstNear(math.Sqrt2, written)),
			pat.Commute(graph.Mul, pat.Same("x"), pat.ConstNear(1/math.Sqrt2, written)))))), pat.Same("x"), pat.Const(0.5)),
		"gelu_erf", unary(graph.GeluErf)},
}

// written is the relative accuracy in which people write constants down.
const written = 1e-5

// cubic is √(2/π)(x + 0.044715x³). It is of interest once it has a cube.
var cubic = func() pat.Expr {
	const inner = 0.044715
	outer := math.Sqrt(2 / math.Pi)
	x := pat.Same("x")
	x2 := pat.Or(pat.Unary(graph.Square, x), pat.Commute(graph.Mul, x, x))
	x3 := pat.Key(pat.Or(pat.Unary(graph.Cube, x), pat.Commute(graph.Mul, pat.Unary(graph.Square, x), x),
		pat.Chain(graph.Mul, x, x, x)))
	cube := func(c float64) pat.Expr {
		return pat.Or(
			pat.Commute(graph.Mul, x3, pat.ConstNear(c, written)),
			pat.Chain(graph.Mul, pat.Unary(graph.Square, x), x, pat.ConstNear(c, written)),
			pat.Chain(graph.Mul, x, x, x, pat.ConstNear(c, written)))
	}
	return pat.Or(
		pat.Commute(graph.Mul, pat.Commute(graph.Add, cube(inner), x), pat.ConstNear(outer, written)),
		pat.Chain(graph.Mul, onePlus(pat.Commute(graph.Mul, x2, pat.ConstNear(inner, written))), x, pat.ConstNear(outer, written)),
		pat.Commute(graph.Add, cube(inner*outer), pat.Commute(graph.Mul, x, pat.ConstNear(outer, written))))
}()
