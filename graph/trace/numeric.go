package trace

import (
	"fmt"
	"slices"

	"fusec/graph"
)

// Numeric says what a rewrite may change of the value y in whose place it puts y′: |y′ − y| ≤ Bound·Σ|terms|. Both are
// computed by the reference, package kernels/ref, and Σ|terms| is the magnitude that it gives y. Values that are not finite,
// and the sign of a zero, are left out.
type Numeric struct {
	Class Class   `json:"class"`
	Bound float64 `json:"bound"`
}

// Class is a kind of change.
type Class string

// The classes, from the least change to the largest.
const (
	// ClassExact: every value is the same number.
	ClassExact Class = "exact"
	// ClassReassociated: the same value of real numbers, computed by other operations or in another order, so that it is
	// rounded otherwise. Its bound is [graph.DType.Tolerance].
	ClassReassociated Class = "reassociated"
	// ClassTransformed: the same value of real numbers, as a sum of other terms: those of Winograd's algorithm. Its bound is
	// that of reassociation, of the sum of the sizes of those terms; see [graph.Winograd].
	ClassTransformed Class = "transformed"
	// ClassApproximate: another function of real numbers, which is as near as the bound says: a constant that was
	// written to some digits becomes the exact one, or a value is rounded to 16 bits.
	ClassApproximate Class = "approximate"
)

// Exact, Reassociated and Transformed are contracts of rules. [Numeric.In] gives the bounds of the latter two.
var (
	Exact        = Numeric{Class: ClassExact}
	Reassociated = Numeric{Class: ClassReassociated}
	Transformed  = Numeric{Class: ClassTransformed}
)

// Approximate is the contract of a rule that puts another function in place of one, as near as the bound says.
func Approximate(bound float64) Numeric { return Numeric{ClassApproximate, bound} }

// Stated reports whether n says anything: the zero Numeric does not.
func (n Numeric) Stated() bool { return n.Class != "" }

// Known reports whether n has a class of this package.
func (n Numeric) Known() bool { return slices.Contains(classes, n.Class) }

// In is the contract for values of type d. Where rounding is more than the bound of an approximation, rounding counts.
func (n Numeric) In(d graph.DType) Numeric {
	switch n.Class {
	case ClassReassociated, ClassTransformed, ClassApproximate:
		n.Bound = max(n.Bound, d.Tolerance())
	}
	return n
}

// Weaker reports whether n allows a larger change than m.
func (n Numeric) Weaker(m Numeric) bool {
	return n.Bound > m.Bound || n.Bound == m.Bound && slices.Index(classes, n.Class) > slices.Index(classes, m.Class)
}

var classes = []Class{ClassExact, ClassReassociated, ClassTransformed, ClassApproximate}

// String is the class and, unless it is exact, the bound.
func (n Numeric) String() string {
	if n.Class == ClassExact {
		return string(n.Class)
	}
	return fmt.Sprintf("%s ±%.3g", n.Class, n.Bound)
}

// Contract is what the rewrites of one rule may change.
type Contract struct {
	Stage   string
	Pattern string // empty for rewrites whose result another one has replaced
	Numeric Numeric
	Times   int
	Origin  []graph.Origin // the user's nodes that they cover
}

// Contracts are those of the compilation's rewrites by stage and rule, the weakest first.
func (t *Trace) Contracts() []Contract {
	var list []Contract
	for i := range t.Stages {
		s := &t.Stages[i]
		at, weakest := map[string]int{}, Exact
		for _, m := range s.Matches {
			k, ok := at[m.Pattern]
			if !ok {
				k = len(list)
				at[m.Pattern] = k
				list = append(list, Contract{Stage: s.Name, Pattern: m.Pattern, Numeric: m.Numeric})
			}
			c := &list[k]
			c.Times++
			if m.Numeric.Weaker(c.Numeric) {
				c.Numeric = m.Numeric
			}
			if m.Numeric.Weaker(weakest) {
				weakest = m.Numeric
			}
			c.Origin = append(c.Origin, m.Origin...)
		}
		if s.Numeric.Weaker(weakest) {
			list = append(list, Contract{Stage: s.Name, Numeric: s.Numeric, Times: 1})
		}
	}
	for i := range list {
		seen := map[graph.Origin]bool{}
		list[i].Origin = slices.DeleteFunc(list[i].Origin, func(o graph.Origin) bool {
			was := seen[o]
			seen[o] = true
			return was
		})
	}
	slices.SortStableFunc(list, func(a, b Contract) int {
		switch {
		case a.Numeric.Weaker(b.Numeric):
			return -1
		case b.Numeric.Weaker(a.Numeric):
			return 1
		}
		return 0
	})
	return list
}
