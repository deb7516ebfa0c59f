package raise

import (
	"fusec/graph"
	"fusec/graph/trace"
	pat "fusec/passes/pattern"
)

// softmaxPatterns find softmax and its logarithm, with the maximum subtracted first or without:
//
//	x ─┬─────────── − ─ exp ─┬──────────── ÷ ─►        x ─ softmax[axis] ─►
//	   └─ max ─ spread ┘     └─ Σ ─ spread ┘
//
//	x ─┬─────────── − ─┬────────────────────── − ─►    x ─ log_softmax[axis] ─►
//	   └─ max ─ spread ┘└─ exp ─ Σ ─ log ─ spread ┘
//
// Spread is the Reshape and Broadcast, or the Broadcast alone, that lead back to x's shape; see [spread].
var softmaxPatterns = []raising{
	{"softmax", "exponentials divided by their sum", trace.Reassociated, pat.Or(
		pat.Binary(graph.Div, exps, stat("e", sumOfExps)),
		pat.Commute(graph.Mul, exps, stat("e", pat.Unary(graph.Recip, pat.Through(sumOfExps))))),
		"softmax", makeSoftmax(false)},
	{"log-of-softmax", "the logarithm of a softmax", trace.Reassociated,
		pat.Unary(graph.Log, pat.Capture("softmax", pat.Op("softmax", pat.Any()))),
		"log_softmax", func(b *graph.Builder, m *pat.Match) *graph.Node {
			s := m.Get("softmax")
			return b.Add(graph.LogSoftmax{Axis: s.Op.(graph.Softmax).Axis}, s.Args[0])
		}},
	{"log-softmax", "x minus the logarithm of the sum of its exponentials", trace.Reassociated, pat.Or(
		pat.Binary(graph.Sub, pat.Capture("d", shiftedBy("m")),
			stat("d", pat.Unary(graph.Log, pat.Through(sumOf(pat.Unary(graph.Exp, pat.Same("d"))))))),
		pat.Binary(graph.Sub, pat.Same("x"), stat("x", pat.Commute(graph.Add,
			pat.Unary(graph.Log, pat.Through(sumOf(pat.Unary(graph.Exp, shiftedBy("m"))))), pat.Through(pat.Same("m"))))),
		pat.Binary(graph.Sub, pat.Same("x"), stat("x",
			pat.Unary(graph.Log, pat.Through(sumOf(pat.Unary(graph.Exp, pat.Same("x")))))))),
		"log_softmax", makeSoftmax(true)},
}

var (
	// exps is the exponentials of x, or of x less its maximum.
	exps = pat.Capture("e", pat.Unary(graph.Exp, pat.Or(shiftedBy("m"), pat.Same("x"))))
	// sumOfExps is their sum.
	sumOfExps = sumOf(pat.Same("e"))
)

// sumOf is the sum of e along one axis, captured as sum.
func sumOf(e pat.Expr) pat.Expr {
	return pat.Where("a sum along one axis", func(_ *pat.Match, n *graph.Node) bool { return n.Op.(graph.Reduce).Axes.Len() == 1 },
		pat.Key(pat.Capture("sum", pat.Reduce(graph.Sum, e))))
}

// shiftedBy is x less its maximum, which is captured under the name.
func shiftedBy(name string) pat.Expr {
	return pat.Binary(graph.Sub, pat.Same("x"), stat("x", pat.Capture(name, pat.Reduce(graph.MaxOf, pat.Same("x")))))
}

func makeSoftmax(log bool) func(*graph.Builder, *pat.Match) *graph.Node {
	return func(b *graph.Builder, m *pat.Match) *graph.Node {
		axes := m.Get("sum").Op.(graph.Reduce).Axes
		x := m.Get("x")
		if shift := m.Get("m"); shift != nil && !shift.Op.(graph.Reduce).Axes.Has(axes.At(0)) {
			return nil // a shift that is not constant along the sum's axis cannot be dropped
		}
		if log {
			return b.Add(graph.LogSoftmax{Axis: axes.At(0)}, x)
		}
		return b.Add(graph.Softmax{Axis: axes.At(0)}, x)
	}
}
