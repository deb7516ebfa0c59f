package gorgonia

import (
	"fusec/graph"

	gorg "gorgonia.org/gorgonia"
)

// The names of the groups into which gorgonia.Grad puts what it adds.
const (
	gradGroup  = "gradients"
	strayGroup = "undifferentiated nodes"
)

// isBackward reports whether gorgonia.Grad made n, or put it to use, as the derivative of an operand.
func (im *importer) isBackward(n *gorg.Node) bool {
	switch nodeField[string](n, im.layout.group) {
	case gradGroup, strayGroup:
		return true
	}
	return false
}

// grads lists what Gorgonia knows about derivatives. A node whose derivative is known lies on a way from a cost to
// something the user wants a gradient for. The cost is where these ways begin: no reader of it has a derivative. With
// several costs whose ways meet, Gorgonia keeps the first one's derivatives only.
func (im *importer) grads(order []*gorg.Node) {
	costs := map[*gorg.Node]*gorg.Node{} // by node; nil where there are several
	for i := len(order) - 1; i >= 0; i-- {
		n := order[i]
		if n.Deriv() == nil {
			continue
		}
		cost, above := (*gorg.Node)(nil), false
		for _, u := range im.users[n] {
			if u.Deriv() == nil {
				continue
			}
			c := costs[u]
			if above && c != cost {
				c = nil
			}
			cost, above = c, true
			if c == nil {
				break
			}
		}
		if !above {
			cost = n
		}
		costs[n] = cost
	}
	ambiguous := 0
	for _, n := range order {
		of, d := im.nodes[n], n.Deriv()
		if d == nil || of == nil || im.nodes[d] == nil {
			continue
		}
		g := Grad{Node: n, GradMark: graph.GradMark{Of: of, Value: im.nodes[d], Wanted: n.Op() == nil || typeName(n.Op()) == "randomOp"}}
		if c := costs[n]; c != nil {
			g.Cost = im.nodes[c]
			if s := im.nodes[c.Deriv()]; s != nil {
				if one, ok := s.ConstScalar(); !ok || one != 1 {
					g.Seed = s
				}
			}
		} else {
			ambiguous++
		}
		im.Grads = append(im.Grads, g)
	}
	if ambiguous > 0 {
		im.note(nil, "several costs depend on the same nodes: Gorgonia keeps the derivatives of the first only; %d of them are taken as it computes them", ambiguous)
	}
}
