package pattern

import (
	"fmt"
	"math"
	"reflect"

	"fusec/graph"
)

// Expr describes a value and how it was computed.
type Expr interface {
	// match calls next for each way in which the expression fits n, until next says yes, and reports whether it did.
	match(s *state, n *graph.Node, next func() bool) bool
	// roots lists the operations that a value it describes may have.
	roots() []root
}

// ---- operations ----

// opExpr is a node with an operation of one type that passes a test.
type opExpr struct {
	desc string
	root root
	test func(graph.Op) bool // nil: any
	args []Expr              // nil: any
}

func (e *opExpr) roots() []root { return []root{e.root} }

func (e *opExpr) match(s *state, n *graph.Node, next func() bool) bool {
	if reflect.TypeOf(n.Op) != e.root.op || e.root.fn != anyFn && rootOf(n.Op) != e.root ||
		e.test != nil && !e.test(n.Op) || e.args != nil && len(e.args) != len(n.Args) {
		return s.fail(n, e)
	}
	return s.cover(n, func() bool { return matchAll(s, e.args, n.Args, next) })
}

func (e *opExpr) why(_ *state, n *graph.Node) string {
	return fmt.Sprintf("wanted %s, found %s", e.desc, Describe(n))
}

// matchAll matches expressions with nodes pair by pair.
func matchAll(s *state, es []Expr, ns []*graph.Node, next func() bool) bool {
	if len(es) == 0 {
		return next()
	}
	return es[0].match(s, ns[0], func() bool { return matchAll(s, es[1:], ns[1:], next) })
}

// Op is a node with the named operation; without args, any operands. It panics if there is no such operation.
func Op(name string, args ...Expr) Expr {
	info := graph.OpByName(name)
	if info == nil {
		panic("pattern: no operation " + name)
	}
	return &opExpr{desc: article(name), root: root{op: reflect.TypeOf(info.Proto)}, args: args}
}

// Is is a node whose operation has type T and passes the test, which desc puts in words ("a sum over one axis").
func Is[T graph.Op](desc string, test func(T) bool, args ...Expr) Expr {
	return &opExpr{desc: desc, root: root{op: reflect.TypeFor[T]()}, test: func(op graph.Op) bool { return test(op.(T)) }, args: args}
}

// Unary is f(x).
func Unary(f graph.UnaryFn, x Expr) Expr {
	return &opExpr{desc: article(f.String()), root: rootOf(graph.Unary{Fn: f}), args: []Expr{x}}
}

// Binary is f(x, y), with the operands in this order.
func Binary(f graph.BinaryFn, x, y Expr) Expr {
	return &opExpr{desc: article(f.String()), root: rootOf(graph.Binary{Fn: f}), args: []Expr{x, y}}
}

// Reduce is a reduction of x along any axes.
func Reduce(f graph.ReduceFn, x Expr) Expr {
	return &opExpr{desc: article(f.String()), root: rootOf(graph.Reduce{Fn: f}), args: []Expr{x}}
}

// ---- order of operands ----

// chain is a tree of one commutative, associative function.
type chain struct {
	fn    graph.BinaryFn
	terms []Expr
}

// Commute is f(x, y) or f(y, x). The operand that x describes is matched first.
func Commute(f graph.BinaryFn, x, y Expr) Expr { return Chain(f, x, y) }

// Chain is f over all terms, in any order and with any brackets. It panics if f does not commute.
func Chain(f graph.BinaryFn, terms ...Expr) Expr {
	if !f.Commutes() || len(terms) < 2 {
		panic(fmt.Sprintf("pattern: chain of %d terms of %v", len(terms), f))
	}
	return &chain{f, terms}
}

func (e *chain) roots() []root { return []root{rootOf(graph.Binary{Fn: e.fn})} }

func (e *chain) match(s *state, n *graph.Node, next func() bool) bool {
	return e.split(s, e.terms, n, next)
}

// split matches the terms with the tree at n: one term with n itself, several with n's operands after dividing them
// among the two.
func (e *chain) split(s *state, terms []Expr, n *graph.Node, next func() bool) bool {
	if len(terms) == 1 {
		return terms[0].match(s, n, next)
	}
	if op, ok := n.Op.(graph.Binary); !ok || op.Fn != e.fn {
		return s.fail(n, e)
	}
	return s.cover(n, func() bool {
		// The first term goes to one side; every subset of the others may go with it.
		for side := range 2 {
			for mask := range 1<<(len(terms)-1) - 1 {
				with, rest := terms[:1:1], terms[1:]
				if mask != 0 {
					rest = nil
					for i, t := range terms[1:] {
						if mask>>i&1 == 1 {
							with = append(with, t)
						} else {
							rest = append(rest, t)
						}
					}
				}
				if e.split(s, with, n.Args[side], func() bool { return e.split(s, rest, n.Args[1-side], next) }) {
					return true
				}
			}
		}
		return false
	})
}

func (e *chain) why(_ *state, n *graph.Node) string {
	return fmt.Sprintf("wanted %s of %d terms, found %s", article(e.fn.String()), len(e.terms), Describe(n))
}

// ---- choice ----

type anyExpr struct{}

// Any is any value. It is not covered by the match.
func Any() Expr { return anyExpr{} }

func (anyExpr) roots() []root { return []root{{}} }

func (anyExpr) match(_ *state, _ *graph.Node, next func() bool) bool { return next() }

type or []Expr

// Or is a value that one of the alternatives describes; earlier ones are preferred.
func Or(alternatives ...Expr) Expr { return or(alternatives) }

func (e or) roots() []root {
	var r []root
	for _, a := range e {
		r = append(r, a.roots()...)
	}
	return r
}

func (e or) match(s *state, n *graph.Node, next func() bool) bool {
	for _, a := range e {
		if a.match(s, n, next) {
			return true
		}
	}
	return false
}

// maxThrough is how many views Through looks through.
const maxThrough = 16

type through struct {
	inner Expr
	views int // that may still follow
}

// Through is inner, seen through Reshapes and Broadcasts, which the match covers.
func Through(inner Expr) Expr { return through{inner, maxThrough} }

func (e through) roots() []root {
	return append(e.inner.roots(), rootOf(graph.Reshape{}), rootOf(graph.Broadcast{}))
}

func (e through) match(s *state, n *graph.Node, next func() bool) bool {
	if e.inner.match(s, n, next) {
		return true
	}
	switch n.Op.(type) {
	case graph.Reshape, graph.Broadcast:
		if e.views == 0 {
			return false
		}
		further := through{e.inner, e.views - 1}
		return s.cover(n, func() bool { return further.match(s, n.Args[0], next) })
	}
	return false
}

// ---- captures and conditions ----

type capture struct {
	name string
	e    Expr
}

// Capture remembers the node under a name. Where the name occurs several times in a pattern, it must be the same node
// each time.
func Capture(name string, e Expr) Expr { return capture{name, e} }

// Same is the node captured under the name, or captures it if it is the first to be matched.
func Same(name string) Expr { return capture{name, Any()} }

func (e capture) roots() []root { return e.e.roots() }

func (e capture) match(s *state, n *graph.Node, next func() bool) bool {
	if had := s.m.Get(e.name); had != nil {
		if had != n {
			return s.fail(n, e)
		}
		return e.e.match(s, n, next)
	}
	s.m.caps = append(s.m.caps, binding{e.name, n})
	k := len(s.m.caps)
	if e.e.match(s, n, next) {
		return true
	}
	s.m.caps = s.m.caps[:k-1]
	return false
}

func (e capture) why(s *state, n *graph.Node) string {
	return fmt.Sprintf("wanted %s again, found %s", Describe(s.m.Get(e.name)), Describe(n))
}

type where struct {
	desc string
	ok   func(m *Match, n *graph.Node) bool
	e    Expr
}

// Where is e with a condition on the node and on what was captured until then. desc is its wording, which follows
// "wanted": "the sum over the axis of the softmax".
func Where(desc string, ok func(m *Match, n *graph.Node) bool, e Expr) Expr {
	return where{desc, ok, e}
}

func (e where) roots() []root { return e.e.roots() }

func (e where) match(s *state, n *graph.Node, next func() bool) bool {
	return e.e.match(s, n, func() bool {
		if !e.ok(&s.m, n) {
			return s.fail(n, e)
		}
		return next()
	})
}

func (e where) why(_ *state, n *graph.Node) string {
	return fmt.Sprintf("wanted %s, found %s, %v", e.desc, Describe(n), n.Type)
}

type oneUse struct{ e Expr }

// OneUse is e, if nothing outside the match reads it.
func OneUse(e Expr) Expr { return oneUse{e} }

func (e oneUse) roots() []root { return e.e.roots() }

func (e oneUse) match(s *state, n *graph.Node, next func() bool) bool {
	s.single = append(s.single, n)
	k := len(s.single)
	if e.e.match(s, n, next) {
		return true
	}
	s.single = s.single[:k-1]
	return false
}

type key struct{ e Expr }

// Key is e, and marks it as the point from which on a failure is reported.
func Key(e Expr) Expr { return key{e} }

func (e key) roots() []root { return e.e.roots() }

func (e key) match(s *state, n *graph.Node, next func() bool) bool {
	had := s.key
	ok := e.e.match(s, n, func() bool {
		s.key = n
		if next() {
			return true
		}
		s.key = had
		return false
	})
	return ok
}

// ---- constants ----

type constant struct {
	want float64
	rel  float64
	any  bool
}

// Const is a constant all of whose elements equal v, looking through views and casts.
func Const(v float64) Expr { return constant{want: v} }

// ConstNear is a constant within a relative distance of v: people write 0.797885 for √(2/π).
func ConstNear(v, rel float64) Expr { return constant{want: v, rel: rel} }

// AnyConst is a constant all of whose elements are equal; [graph.Node.ConstScalar] gives its value.
func AnyConst() Expr { return constant{any: true} }

func (e constant) roots() []root { return []root{{}} }

func (e constant) match(s *state, n *graph.Node, next func() bool) bool {
	v, ok := n.ConstScalar()
	if !ok || !e.any && !(math.Abs(v-e.want) <= e.rel*math.Abs(e.want)) {
		return s.fail(n, e)
	}
	return s.cover(n, next)
}

func (e constant) why(_ *state, n *graph.Node) string {
	found := Describe(n)
	if v, ok := n.ConstScalar(); ok {
		found = fmt.Sprintf("%.6g", v)
	}
	if e.any {
		return fmt.Sprintf("wanted a constant, found %s", found)
	}
	return fmt.Sprintf("wanted the constant %.6g, found %s", e.want, found)
}
