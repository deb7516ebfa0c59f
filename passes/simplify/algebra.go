package simplify

import (
	"math"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

// algebraRules shorten arithmetic where the result stays the same to the last bit:
//
//	x ─ + ─►      x ─►         x ─┐                  x ─ ÷ ─►     x ─ ⊙ ─►
//	0 ─┘                       x ─ ⊙ ─►  x ─ square ─►   4 ─┘      0.25 ─┘
var algebraRules = []Rule{
	{"const-right", "c ∘ x → x ∘ c for a commutative ∘; c < x → x > c", trace.Exact, []graph.Op{graph.Binary{}}, constRight},
	{"add-zero", "x + 0, x − 0 → x", trace.Exact, []graph.Op{graph.Binary{}}, addZero},
	{"mul-one", "x ⊙ 1, x ÷ 1, x ^ 1 → x", trace.Exact, []graph.Op{graph.Binary{}}, mulOne},
	{"negate", "x ⊙ −1, x ÷ −1, 0 − x → −x", trace.Exact, []graph.Op{graph.Binary{}}, negate},
	{"div-power-of-two", "x ÷ 2^k → x ⊙ 2^−k, which rounds the same", trace.Exact, []graph.Op{graph.Binary{}}, divPowerOfTwo},
	{"power", "x ^ 2, x ^ 3, x ^ −1 → square, cube, recip", trace.Reassociated, []graph.Op{graph.Binary{}}, power},
	{"square", "x ⊙ x → square; square ⊙ x → cube", trace.Exact, []graph.Op{graph.Binary{}}, square},
	{"recip", "1 ÷ x → recip", trace.Exact, []graph.Op{graph.Binary{}}, recip},
	{"add-neg", "x + (−y) → x − y; x − (−y) → x + y", trace.Exact, []graph.Op{graph.Binary{}}, addNeg},
	{"mul-neg", "(−x) ⊙ c, (−x) ÷ c → x ⊙ −c, x ÷ −c for a constant c", trace.Exact, []graph.Op{graph.Binary{}}, mulNeg},
	{"involution", "−(−x), ¬(¬x) → x", trace.Exact, []graph.Op{graph.Unary{}}, involution},
	{"idempotent", "|(|x|)|, relu(relu x) and the like → once", trace.Exact, []graph.Op{graph.Unary{}}, idempotent},
	{"not-equal", "¬(x = y) → x ≠ y; ¬(x ≠ y) → x = y", trace.Exact, []graph.Op{graph.Unary{}}, notEqual},
	{"logic", "x ∧ true, x ∨ false, x ∧ x, x ∨ x → x", trace.Exact, []graph.Op{graph.Binary{}}, logic},
	{"cast-same", "cast to the type that x has → x", trace.Exact, []graph.Op{graph.Cast{}}, castSame},
	{"cast-cast", "cast through a type that holds every x → one cast", trace.Exact, []graph.Op{graph.Cast{}}, castCast},
	{"select-same", "c ? x : x → x", trace.Exact, []graph.Op{graph.Select{}}, selectSame},
	{"select-const", "true ? x : y → x", trace.Exact, []graph.Op{graph.Select{}}, selectConst},
	{"select-not", "¬c ? x : y → c ? y : x", trace.Exact, []graph.Op{graph.Select{}}, selectNot},
}

// binary returns the function and operands of a Binary.
func binary(n *graph.Node) (f graph.BinaryFn, x, y *graph.Node) {
	return n.Op.(graph.Binary).Fn, n.Args[0], n.Args[1]
}

// right returns the function, the left operand, and the value of the right operand if it is one constant value.
func right(n *graph.Node) (f graph.BinaryFn, x *graph.Node, c float64, ok bool) {
	f, x, y := binary(n)
	c, ok = y.ConstScalar()
	return f, x, c, ok
}

// as gives x the shape of n: x itself, or repeated if it is a scalar where n is not.
func (s *simplifier) as(n, x *graph.Node) *graph.Node {
	return s.b.Broadcast(x, n.Type.Shape)
}

func constRight(s *simplifier, n *graph.Node) *graph.Node {
	f, x, y := binary(n)
	if !f.Commutes() {
		g, ok := rewrite.Flipped[f]
		if !ok {
			return nil
		}
		f = g
	}
	if _, ok := x.Uniform(); !ok {
		return nil
	}
	if _, ok := y.Uniform(); ok {
		return nil
	}
	return s.b.Binary(f, y, x)
}

func addZero(s *simplifier, n *graph.Node) *graph.Node {
	f, x, c, ok := right(n)
	if !ok || c != 0 || f != graph.Add && f != graph.Sub {
		return nil
	}
	return s.as(n, x)
}

func mulOne(s *simplifier, n *graph.Node) *graph.Node {
	f, x, c, ok := right(n)
	if !ok || c != 1 || f != graph.Mul && f != graph.Div && f != graph.Pow {
		return nil
	}
	return s.as(n, x)
}

func negate(s *simplifier, n *graph.Node) *graph.Node {
	f, x, c, ok := right(n)
	if ok && c == -1 && (f == graph.Mul || f == graph.Div) {
		return s.b.Unary(graph.Neg, s.as(n, x))
	}
	f, x, y := binary(n)
	if c, ok := x.ConstScalar(); ok && c == 0 && f == graph.Sub {
		return s.b.Unary(graph.Neg, s.as(n, y))
	}
	return nil
}

func divPowerOfTwo(s *simplifier, n *graph.Node) *graph.Node {
	f, x, c, ok := right(n)
	if !ok || f != graph.Div || !n.Type.DType.IsFloat() || c == 1 || c == -1 {
		return nil
	}
	// Both c and 1/c must be normal numbers of either float type.
	if frac, exp := math.Frexp(c); math.Abs(frac) != 0.5 || exp < -120 || exp > 120 {
		return nil
	}
	return s.b.BinaryScalar(graph.Mul, x, 1/c)
}

func power(s *simplifier, n *graph.Node) *graph.Node {
	f, x, c, ok := right(n)
	if !ok || f != graph.Pow || !n.Type.DType.IsFloat() {
		return nil
	}
	switch c {
	case 2:
		return s.b.Unary(graph.Square, s.as(n, x))
	case 3:
		return s.b.Unary(graph.Cube, s.as(n, x))
	case -1:
		return s.b.Unary(graph.Recip, s.as(n, x))
	}
	return nil
}

func square(s *simplifier, n *graph.Node) *graph.Node {
	f, x, y := binary(n)
	if f != graph.Mul {
		return nil
	}
	if x == y {
		return s.b.Unary(graph.Square, x)
	}
	for range 2 {
		if u, ok := x.Op.(graph.Unary); ok && u.Fn == graph.Square && x.Args[0] == y {
			return s.b.Unary(graph.Cube, y)
		}
		x, y = y, x
	}
	return nil
}

func recip(s *simplifier, n *graph.Node) *graph.Node {
	f, x, y := binary(n)
	if c, ok := x.ConstScalar(); !ok || c != 1 || f != graph.Div || !n.Type.DType.IsFloat() {
		return nil
	}
	return s.b.Unary(graph.Recip, s.as(n, y))
}

// negated returns what x is the negative of, or nil.
func negated(x *graph.Node) *graph.Node {
	if u, ok := x.Op.(graph.Unary); ok && u.Fn == graph.Neg {
		return x.Args[0]
	}
	return nil
}

func addNeg(s *simplifier, n *graph.Node) *graph.Node {
	f, x, y := binary(n)
	switch {
	case f == graph.Add && negated(y) != nil:
		return s.b.Binary(graph.Sub, x, negated(y))
	case f == graph.Add && negated(x) != nil:
		return s.b.Binary(graph.Sub, y, negated(x))
	case f == graph.Sub && negated(y) != nil:
		return s.b.Binary(graph.Add, x, negated(y))
	}
	return nil
}

func mulNeg(s *simplifier, n *graph.Node) *graph.Node {
	f, x, c, ok := right(n)
	if !ok || f != graph.Mul && f != graph.Div || negated(x) == nil || !n.Type.DType.IsFloat() {
		return nil
	}
	return s.b.BinaryScalar(f, s.as(n, negated(x)), -c)
}

func involution(_ *simplifier, n *graph.Node) *graph.Node {
	if u := n.Op.(graph.Unary); n.Args[0].Op == n.Op && u.Fn.Info().Involution {
		return n.Args[0].Args[0]
	}
	return nil
}

func idempotent(_ *simplifier, n *graph.Node) *graph.Node {
	u := n.Op.(graph.Unary)
	meanSlope := u.Fn.Info().Kink && u.AtZero == graph.MeanSlope // whose square is another derivative at 0
	if n.Args[0].Op != n.Op || !u.Fn.Info().Idempotent || meanSlope {
		return nil
	}
	return n.Args[0]
}

func notEqual(s *simplifier, n *graph.Node) *graph.Node {
	b, ok := n.Args[0].Op.(graph.Binary)
	if !ok || n.Op.(graph.Unary).Fn != graph.Not {
		return nil
	}
	switch x, y := n.Args[0].Args[0], n.Args[0].Args[1]; b.Fn {
	case graph.Eq:
		return s.b.Binary(graph.Ne, x, y)
	case graph.Ne:
		return s.b.Binary(graph.Eq, x, y)
	}
	return nil
}

func logic(s *simplifier, n *graph.Node) *graph.Node {
	f, x, y := binary(n)
	if f != graph.And && f != graph.Or {
		return nil
	}
	if c, ok := y.ConstScalar(); x == y || ok && n.Type.DType == graph.Bool && (c == 1) == (f == graph.And) {
		return s.as(n, x)
	}
	return nil
}

func castSame(_ *simplifier, n *graph.Node) *graph.Node {
	if n.Args[0].Type == n.Type {
		return n.Args[0]
	}
	return nil
}

func castCast(s *simplifier, n *graph.Node) *graph.Node {
	inner := n.Args[0]
	if _, ok := inner.Op.(graph.Cast); !ok {
		return nil
	}
	from, by, to := inner.Args[0].Type.DType, inner.Type.DType, n.Type.DType
	if !by.Holds(from) || by.IsReal() && from.IsInt() && to.IsInt() && !to.Holds(from) { // floats saturate, integers wrap
		return nil
	}
	return s.b.Add(n.Op, inner.Args[0])
}

func selectSame(s *simplifier, n *graph.Node) *graph.Node {
	if n.Args[1] != n.Args[2] {
		return nil
	}
	return s.as(n, n.Args[1])
}

func selectConst(s *simplifier, n *graph.Node) *graph.Node {
	c, ok := n.Args[0].ConstScalar()
	if !ok {
		return nil
	}
	if c != 0 {
		return s.as(n, n.Args[1])
	}
	return s.as(n, n.Args[2])
}

func selectNot(s *simplifier, n *graph.Node) *graph.Node {
	c := n.Args[0]
	if u, ok := c.Op.(graph.Unary); !ok || u.Fn != graph.Not {
		return nil
	}
	return s.b.Add(graph.Select{}, c.Args[0], n.Args[2], n.Args[1])
}
