// Package pattern finds subgraphs by shape.
//
// A pattern is data: an expression built from a few combinators that describes a value and how it was computed, read
// from the value (the root) towards its operands. For instance, the rectifier as people write it by hand,
//
//	x ──────────┐
//	│           ⊙ ──►          Commute(graph.Mul, Capture("x", Any()),
//	└─ ≥ 0 ─ cast                  Op("cast", Binary(graph.Ge, Same("x"), Const(0))))
//
// is found with
//
//	m, miss := p.Match(n, uses)
//
// which gives either a [Match], with the captured nodes and the nodes covered, or a [Miss]: how far the pattern got
// and the first condition that failed, in words for the user. A pattern declares with [Key] the point from which on a
// failure is worth reporting. Before it, a mismatch is of no interest and the Miss is nil.
//
// Matching backtracks over every choice ([Or], [Commute], [Chain], [Through]), so the order of alternatives
// decides only which of several matches is found first.
package pattern

import (
	"fmt"
	"reflect"

	"fusec/graph"
	"fusec/graph/trace"
)

// Pattern is a named expression.
type Pattern struct {
	Name string // such as "gelu-tanh"
	Doc  string // one line: what it finds
	// Numeric is what putting the operation that it finds in the place of the match may change of the value.
	Numeric trace.Numeric
	Expr    Expr
}

// Match is a pattern found.
type Match struct {
	Root    *graph.Node
	Covered []*graph.Node // the nodes that the pattern accounts for, root first; captured operands are not among them
	caps    []binding
}

type binding struct {
	name string
	node *graph.Node
}

// Get returns the node captured under name, or nil.
func (m *Match) Get(name string) *graph.Node {
	for _, b := range m.caps {
		if b.name == name {
			return b.node
		}
	}
	return nil
}

// Miss is a pattern that got past its key and then failed.
type Miss struct {
	Key     *graph.Node   // the node at which the pattern became interesting
	At      *graph.Node   // the node where it stopped
	Reason  string        // what was wanted and what was found
	Covered []*graph.Node // the nodes matched until then
	Ahead   []*graph.Node // further ones that it would have had to match, if they are known
}

// Match tries the pattern with n as its root.
func (p *Pattern) Match(n *graph.Node, uses *graph.Uses) (*Match, *Miss) {
	s := &state{uses: uses}
	if p.Expr.match(s, n, s.accept) {
		s.m.Root = n
		return &s.m, nil
	}
	return nil, s.miss
}

// Set is a list of patterns, indexed by the operation of their root.
type Set struct {
	all    []*Pattern
	byRoot map[root][]*Pattern
}

// NewSet indexes patterns. Where several have one root operation, earlier ones are tried first. It panics if a name is
// missing or given twice.
func NewSet(patterns ...*Pattern) *Set {
	s := &Set{all: patterns, byRoot: map[root][]*Pattern{}}
	seen := map[string]bool{}
	for _, p := range patterns {
		if p.Name == "" || p.Doc == "" || !p.Numeric.Stated() || seen[p.Name] {
			panic(fmt.Sprintf("pattern: %q has no name or doc, does not say what it may change, or is there twice", p.Name))
		}
		seen[p.Name] = true
		for _, r := range dedup(p.Expr.roots()) {
			s.byRoot[r] = append(s.byRoot[r], p)
		}
	}
	// A pattern for any function of an operation belongs to each function's list, in its place among the others.
	for r := range s.byRoot {
		if r.fn == anyFn {
			continue
		}
		s.byRoot[r] = s.pick(r, root{r.op, anyFn}, root{})
	}
	for r := range s.byRoot {
		if r.fn == anyFn && r.op != nil {
			s.byRoot[r] = s.pick(r, root{})
		}
	}
	return s
}

// pick lists the patterns that have one of the given roots, in their order.
func (s *Set) pick(roots ...root) []*Pattern {
	var r []*Pattern
	for _, p := range s.all {
		has := dedup(p.Expr.roots())
	roots:
		for _, want := range roots {
			for _, h := range has {
				if h == want {
					r = append(r, p)
					break roots
				}
			}
		}
	}
	return r
}

// Candidates lists the patterns whose root may be n, in order.
func (s *Set) Candidates(n *graph.Node) []*Pattern {
	r := rootOf(n.Op)
	for {
		if ps, ok := s.byRoot[r]; ok || r.op == nil {
			return ps
		}
		if r.fn != anyFn {
			r.fn = anyFn
		} else {
			r.op = nil
		}
	}
}

// root identifies the operation that a pattern begins with: its type (nil: any), and for Unary, Binary and Reduce its
// function.
type root struct {
	op reflect.Type
	fn int
}

const anyFn = 0

func rootOf(op graph.Op) root {
	r := root{op: reflect.TypeOf(op)}
	switch o := op.(type) {
	case graph.Unary:
		r.fn = int(o.Fn) + 1
	case graph.Binary:
		r.fn = int(o.Fn) + 1
	case graph.Reduce:
		r.fn = int(o.Fn) + 1
	}
	return r
}

func dedup(rs []root) []root {
	var out []root
	seen := map[root]bool{}
	for _, r := range rs {
		if !seen[r] {
			seen[r] = true
			out = append(out, r)
		}
	}
	return out
}
