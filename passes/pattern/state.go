package pattern

import (
	"fmt"
	"slices"
	"strings"

	"fusec/graph"
)

// state is one attempt. Its lists are stacks: an expression pushes before it calls next and pops if next says no.
type state struct {
	m      Match
	uses   *graph.Uses
	single []*graph.Node // nodes that nothing outside the match may read
	key    *graph.Node
	miss   *Miss
}

// explainer is an expression that can say what it wanted of a node.
type explainer interface {
	why(s *state, n *graph.Node) string
}

// fail notes that e did not accept n, if no attempt got farther, and returns false.
func (s *state) fail(n *graph.Node, e explainer) bool {
	if s.key == nil || s.miss != nil && len(s.m.Covered) <= len(s.miss.Covered) {
		return false
	}
	s.miss = &Miss{Key: s.key, At: n, Reason: e.why(s, n), Covered: slices.Clone(s.m.Covered)}
	return false
}

// cover accounts for n while next runs.
func (s *state) cover(n *graph.Node, next func() bool) bool {
	s.m.Covered = append(s.m.Covered, n)
	if next() {
		return true
	}
	s.m.Covered = s.m.Covered[:len(s.m.Covered)-1]
	return false
}

// accept is the last continuation: it checks the conditions that depend on the whole match.
func (s *state) accept() bool {
	for _, n := range s.single {
		if other, ok := s.outsider(n); ok {
			return s.fail(n, alsoRead{other})
		}
	}
	return true
}

// outsider finds a reader of n that the match does not cover; nil is one outside the graph.
func (s *state) outsider(n *graph.Node) (*graph.Node, bool) {
	if s.uses.Escapes(n) {
		return nil, true
	}
	for _, r := range s.uses.Readers(n) {
		if !slices.Contains(s.m.Covered, r) {
			return r, true
		}
	}
	return nil, false
}

type alsoRead struct{ by *graph.Node }

func (a alsoRead) why(_ *state, n *graph.Node) string {
	if a.by == nil {
		return fmt.Sprintf("%s is also handed out as an output", Describe(n))
	}
	return fmt.Sprintf("%s is also read by %s%s", Describe(n), Describe(a.by), position(a.by))
}

// position is where the user built n, in brackets, or empty.
func position(n *graph.Node) string {
	for _, o := range n.Origin {
		if o.Pos != "" {
			return " (" + o.Pos + ")"
		}
	}
	return ""
}

// Describe is [graph.Node.Describe], for the reason of a miss. Constants of one value are that value.
func Describe(n *graph.Node) string {
	if _, isConst := n.Op.(graph.Const); isConst {
		if v, ok := n.ConstScalar(); ok {
			return fmt.Sprintf("the constant %.6g", v)
		}
	}
	return n.Describe()
}

// Named describes a node for a missed fusion: what it computes, the user's name for it and where it was built.
func Named(n *graph.Node) string {
	s := Describe(n)
	for _, o := range n.Origin {
		if o.Pos != "" {
			return fmt.Sprintf("%s (%s)", s, o.Pos)
		}
	}
	return s
}

func article(s string) string {
	if strings.ContainsRune("aeiou", rune(s[0])) {
		return "an " + s
	}
	return "a " + s
}
