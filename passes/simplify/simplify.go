// Package simplify brings the graph into normal form by the rules of one table until none applies, merges equal
// values and drops dead ones:
//
//	b ─ reshape[1,n] ─ broadcast ─┐            b ─ broadcast ─┐
//	              x ─ transpose ─ matmul ─ +         x ─ matmul(transA) ─ +
//
// What the normal form is:
//
//   - A constant operand of a commutative operation is on the right.
//   - An operand of an elementwise operation that is one value repeated is a scalar.
//   - Elementwise work on a repeated value is done before it is repeated.
//   - No two Reshapes, Transposes or Broadcasts of the same sort follow each other; none is the identity.
//   - A matrix product transposes its operands by its flags and broadcasts its batch axes itself.
//   - x⊙x is a square, a cube is a cube, 1÷x is a reciprocal.
//   - No two nodes compute the same, randomness and host code excepted.
//
// Values are kept to the last bit except where a rule says otherwise. The sign of a zero is not kept.
package simplify

import (
	"fmt"
	"reflect"
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

// Run is the pass simplify.
func Run(c *rewrite.Context) error {
	s := &simplifier{values: newValueTable(c.Graph)}
	s.Rewriter = rewrite.Rewriter{Context: c, Visit: s.visit, Begin: func() {
		s.values.clear()
		s.filled, s.b = map[*graph.Node][]filling{}, graph.Extend(c.Graph)
	}}
	return s.Fixpoint()
}

// Rule is one local rewrite of simplify.
type Rule struct {
	Name string // such as "reshape-reshape"
	Doc  string // left-hand side → right-hand side
	// Numeric is what it may change of a value.
	Numeric trace.Numeric
	ops     []graph.Op
	// apply returns what to use in place of n, or nil.
	apply func(s *simplifier, n *graph.Node) *graph.Node
}

type simplifier struct {
	rewrite.Rewriter
	values valueTable
	b      *graph.Builder            // of the rule that runs
	filled map[*graph.Node][]filling // of the sums that the walk has visited; see [unsliceSum]
}

// rules is the table, in the order in which rules of one operation are tried.
var rules = slices.Concat(foldRules, algebraRules, scalarRules, viewRules, moveRules, partRules, reduceRules, matmulRules)

// rulesOf indexes rules by the type of the operation that they apply to.
var rulesOf = func() map[reflect.Type][]*Rule {
	m := map[reflect.Type][]*Rule{}
	for i := range rules {
		if !rules[i].Numeric.Stated() {
			panic(fmt.Sprintf("simplify: rule %q does not say what it may change", rules[i].Name))
		}
		for _, op := range rules[i].ops {
			t := reflect.TypeOf(op)
			m[t] = append(m[t], &rules[i])
		}
	}
	return m
}()

// visit applies the first rule that fits, or else merges n with an equal value.
func (s *simplifier) visit(n *graph.Node) (*graph.Node, error) {
	s.b.From(n)
	for _, r := range rulesOf[reflect.TypeOf(n.Op)] {
		mark := len(s.Graph.Nodes)
		m := r.apply(s, n)
		if err := s.b.Err(); err != nil {
			return nil, err
		}
		if m != nil {
			s.Record(r.Name, r.Numeric, "", m, n)
			return m, nil
		}
		s.Graph.Nodes = s.Graph.Nodes[:mark]
	}
	if m := s.values.find(n); m != n {
		m.Phase = min(m.Phase, n.Phase)
		s.Record("equal", trace.Exact, "", m, n)
		return m, nil
	}
	return n, nil
}

// oneUse reports whether only one operand of one node reads n.
func (s *simplifier) oneUse(n *graph.Node) bool { return s.Uses.One(n) }
