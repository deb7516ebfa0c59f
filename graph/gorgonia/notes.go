package gorgonia

import (
	"strings"

	gorg "gorgonia.org/gorgonia"
)

// warn notes what looks as if Gorgonia had gone wrong while the graph was built. Gorgonia merges nodes whose
// operations, as it hashes and prints them, are equal; where that loses a distinction, two nodes of the user's are one
// and nothing in the graph tells. Only likely cases are noted.
func (im *importer) warn(order []*gorg.Node) {
	for _, n := range order {
		v := im.Node(n)
		if v == nil {
			continue
		}
		if n.Op() == nil {
			if nameOf(n) == "" {
				im.note(v, "an input without a name: Gorgonia takes all of one type and shape for the same node")
			}
			continue
		}
		switch name := typeName(n.Op()); name {
		case "dropoutOp":
			if im.forwardUsers(n) > 1 {
				im.note(v, "this dropout is read several times: Gorgonia merges two dropouts of one node")
			}
		case "randomOp":
			if nameOf(n) == "" && im.forwardUsers(n) > 1 {
				im.note(v, "this random value is read several times: Gorgonia merges all of one type and shape, of whatever distribution")
			}
		case "sliceOp":
			axis := fieldsOf(n.Op()).int("along")
			if s := im.Node(im.children(n)[0]).Type.Shape; axis < s.Rank() && s.At(axis) > 256 && im.forwardUsers(n) > 1 {
				im.note(v, "this slice is read several times: Gorgonia merges slices whose bounds are equal modulo 256")
			}
		case "constantTensor":
			if im.forwardUsers(n) > 1 && elided(nameOf(n)) {
				im.note(v, "this constant is read several times: Gorgonia merges constants that print alike, and prints large ones in part")
			}
		}
	}
}

// forwardUsers counts the operations that read n outside Gorgonia's backward pass.
func (im *importer) forwardUsers(n *gorg.Node) int {
	c := 0
	for _, u := range im.usersOf(n) {
		if !im.Backward(u) && !strings.HasSuffix(typeName(u.Op()), "DiffOp") {
			c++
		}
	}
	return c
}

// elided reports whether a tensor was printed in part.
func elided(s string) bool { return strings.Contains(s, "⋯") || strings.Contains(s, "\n.\n") }
