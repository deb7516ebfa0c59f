package raise

import (
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/constant"
	pat "fusec/passes/pattern"
)

// normPatterns find layer norm and RMS norm along the last axis:
//
//	x ─┬──────────── − ─┬─────────────────────────────────── ÷ ─►     x ─┐
//	   └─ mean ─ spread ┘└─ square ─ mean ─ + eps ─ √ ─ spread ┘    1… ─ layer_norm ─►
//	                                                                0… ─┘
//
//	x ─┬─────────────────────────────────── ÷ ─►                      x ─ rms_norm ─►
//	   └─ square ─ mean ─ + eps ─ √ ─ spread ┘                      1… ─┘
//
// with a division by the root or a product with its reciprocal, with eps or without it, the variance also as the mean
// of squares less the square of the mean. They give a norm with gamma 1 and beta 0; a product with a vector and a sum
// with one that follow are then absorbed as gamma and beta, one after the other, unless something else reads the value in
// between:
//
//	  x ─┐                                    x ─┐
//	1… ─ layer_norm ─ ⊙ ─►                gamma ─ layer_norm ─►
//	0… ─┘     gamma ─┘                     0… ─┘
//
// A norm stays written out where something else reads the root, as the gradient of the norm does: it would be computed twice.
var normPatterns = []raising{
	{"layer-norm", "x less its mean, divided by the root of its variance", trace.Reassociated, pat.Or(
		pat.Binary(graph.Div, centred, stat("x", root(variance))),
		pat.Commute(graph.Mul, centred, stat("x", invRoot(variance)))),
		"layer_norm", makeLayerNorm},
	{"rms-norm", "x divided by the root of the mean of its squares", trace.Reassociated, pat.Or(
		pat.Binary(graph.Div, pat.Same("x"), stat("x", root(meanSquare))),
		pat.Commute(graph.Mul, stat("x", invRoot(meanSquare)), pat.Same("x"))),
		"rms_norm", makeRMSNorm},
	{"norm-gamma", "a norm times a vector along its axis", trace.Reassociated, pat.Commute(graph.Mul,
		pat.OneUse(pat.Capture("norm", pat.Or(
			pat.Op("rms_norm", pat.Any(), pat.Const(1)),
			pat.Op("layer_norm", pat.Any(), pat.Const(1), pat.Const(0))))),
		pat.Key(pat.Capture("vector", vector))),
		"norm", makeGamma},
	{"norm-beta", "a layer norm plus a vector along its axis", trace.Reassociated, pat.Commute(graph.Add,
		pat.OneUse(pat.Capture("norm", pat.Op("layer_norm", pat.Any(), pat.Any(), pat.Const(0)))),
		pat.Key(pat.Capture("vector", vector))),
		"layer_norm", makeBeta},
}

var (
	// centred is x less its mean.
	centred = pat.Capture("d", pat.Binary(graph.Sub, pat.Same("x"), stat("x", pat.Capture("mean", meanOf(pat.Same("x"))))))
	// variance is the mean of the squares of centred, or the mean of squares less the square of the mean.
	variance = pat.Or(
		pat.Capture("var", meanOf(pat.Unary(graph.Square, pat.Same("d")))),
		pat.Binary(graph.Sub, pat.Through(pat.Capture("var", meanOf(pat.Unary(graph.Square, pat.Same("x"))))),
			pat.Through(pat.Unary(graph.Square, pat.Through(pat.Same("mean"))))))
	meanSquare = pat.Capture("var", meanOf(pat.Unary(graph.Square, pat.Same("x"))))
	// vector is what varies along the last axis only.
	vector = pat.Where("a vector along the last axis of the norm", func(m *pat.Match, n *graph.Node) bool {
		return alongLast(n, m.Get("norm").Type.Shape) != nil
	}, pat.Any())
)

// meanOf is the mean of e.
func meanOf(e pat.Expr) pat.Expr { return pat.Reduce(graph.Mean, e) }

// plusEps is v + eps or v alone. A norm is of interest once its variance is found.
func plusEps(v pat.Expr) pat.Expr {
	v = pat.Through(pat.Where("a mean over the last axis",
		func(m *pat.Match, _ *graph.Node) bool { return lastAxis(m.Get("var")) }, pat.Key(v)))
	return pat.Or(pat.Commute(graph.Add, v, pat.Capture("eps", pat.AnyConst())), v)
}

// root is √(v + eps).
func root(v pat.Expr) pat.Expr {
	return pat.Or(pat.Unary(graph.Sqrt, plusEps(v)), pat.Binary(graph.Pow, plusEps(v), pat.Const(0.5)))
}

// invRoot is 1 ÷ √(v + eps).
func invRoot(v pat.Expr) pat.Expr {
	return pat.Or(pat.Unary(graph.Rsqrt, plusEps(v)), pat.Unary(graph.Recip, pat.Through(root(v))),
		pat.Binary(graph.Pow, plusEps(v), pat.Const(-0.5)))
}

// epsOf is the captured eps, 0 if there is none.
func epsOf(m *pat.Match) float64 {
	if e := m.Get("eps"); e != nil {
		return constant.Attribute(e)
	}
	return 0
}

// filled adds a constant vector of the length of x's last axis.
func filled(b *graph.Builder, x *graph.Node, v float64) *graph.Node {
	t := graph.TypeOf(x.Type.DType, x.Type.Shape.At(x.Type.Shape.Rank()-1))
	return b.Const(graph.Filled(t, v))
}

func makeLayerNorm(b *graph.Builder, m *pat.Match) *graph.Node {
	x := m.Get("x")
	if !lastAxis(m.Get("mean")) {
		return nil
	}
	return b.Add(graph.LayerNorm{Eps: epsOf(m)}, x, filled(b, x, 1), filled(b, x, 0))
}

func makeRMSNorm(b *graph.Builder, m *pat.Match) *graph.Node {
	x := m.Get("x")
	return b.Add(graph.RMSNorm{Eps: epsOf(m)}, x, filled(b, x, 1))
}

func makeGamma(b *graph.Builder, m *pat.Match) *graph.Node {
	norm := m.Get("norm")
	args := slices.Clone(norm.Args)
	args[1] = asVector(b, m.Get("vector"), norm.Type.Shape)
	return b.Add(norm.Op, args...)
}

func makeBeta(b *graph.Builder, m *pat.Match) *graph.Node {
	norm := m.Get("norm")
	return b.Add(norm.Op, norm.Args[0], norm.Args[1], asVector(b, m.Get("vector"), norm.Type.Shape))
}

// alongLast returns the node whose elements, in order, are those of n along the last axis, if n, of shape s, varies
// along that axis only, and else nil.
func alongLast(n *graph.Node, s graph.Shape) *graph.Node {
	if n.Type.Shape != s {
		return nil
	}
	if _, ok := n.Op.(graph.Broadcast); ok {
		n = n.Args[0]
	}
	d := n.Type.Shape
	if d.Rank() == 0 || d.At(d.Rank()-1) != s.At(s.Rank()-1) || d.Elems() != s.At(s.Rank()-1) {
		return nil
	}
	return n
}

func asVector(b *graph.Builder, n *graph.Node, s graph.Shape) *graph.Node {
	return b.Reshape(alongLast(n, s), s.At(s.Rank()-1))
}

// leavesRoot reports whether others read the root of the variance.
func leavesRoot(u *graph.Uses, m *pat.Match) bool {
	root := slices.IndexFunc(m.Covered, func(n *graph.Node) bool {
		op, ok := n.Op.(graph.Unary)
		return ok && (op.Fn == graph.Rsqrt || op.Fn == graph.Sqrt)
	})
	if root < 0 {
		return false
	}
	for n := m.Covered[root]; n != m.Root; n = u.Readers(n)[0] {
		if !u.One(n) {
			return true
		}
	}
	return false
}
