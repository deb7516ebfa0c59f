package dot

import (
	"fmt"
	"strings"

	"fusec/graph"
)

// Kernels of convolutions read filters in an order of their own, which takes a copy of each before it is used. Such copies
// of parameters are drawn as one card for each phase or repeated layer, without arrows, and the readers list the parameter
// as copied.

// copyKey is a place of copies: a region, or a block in it.
type copyKey struct {
	home  region
	block *block
}

// copiedWeights is the card of the copies of parameters in one place.
type copiedWeights struct {
	box   *box
	nodes []*graph.Node
}

// minCopies is how many copies are drawn as one. A single one keeps its own card.
const minCopies = 2

// findCopies finds the copies of parameters that are drawn as one card.
func (b *builder) findCopies() {
	b.copies = make(map[copyKey]*copiedWeights)
	if b.detail == Full {
		return
	}
	for _, n := range b.graph.Nodes {
		if !b.copiesWeight(n) || b.reps.rep(n) != n {
			continue
		}
		k := copyKey{b.homes[n], b.reps.in[n]}
		if b.copies[k] == nil {
			b.copies[k] = &copiedWeights{}
		}
		b.copies[k].nodes = append(b.copies[k].nodes, n)
	}
	for k, c := range b.copies {
		if len(c.nodes) < minCopies {
			delete(b.copies, k)
		}
	}
}

// copiesWeight reports whether n is a launch that copies a parameter.
func (b *builder) copiesWeight(n *graph.Node) bool {
	s := copiedParam(n)
	return s != nil && !b.escapes[n] && b.isLaunch(n) && !b.untrained[s]
}

// copiedParam is the parameter of which n is a copy, or nil.
func copiedParam(n *graph.Node) *graph.Node {
	if n.Op != (graph.Copy{}) {
		return nil
	}
	s := base(n.Args[0])
	if _, param := s.Op.(graph.Param); !param {
		return nil
	}
	return s
}

// copied makes n a part of the card of copies in its place, if there is one.
func (b *builder) copied(n *graph.Node) bool {
	if !b.copiesWeight(n) {
		return false
	}
	c := b.copies[copyKey{b.homes[n], b.reps.in[n]}]
	if c == nil {
		return false
	}
	if c.box == nil {
		c.box = b.scene.box(&box{key: fmt.Sprintf("copies%d", n.ID), look: lookMove, inside: b.home(n), phase: b.phases[n]})
	}
	v := b.operand(n.Args[0])
	v.copied, v.typ = true, n.Type
	b.values[n] = []value{v}
	return true
}

// finishCopies writes the labels of the cards of copies.
func (b *builder) finishCopies() {
	for _, c := range b.copies {
		x := c.box
		x.head = looks[lookMove].name
		x.lines = []textLine{{plural(len(c.nodes), "parameter") + " copied", roleName},
			{"in the order in which kernels read them", roleOp}}
		var bytes int64
		var tips []string
		for i, n := range c.nodes {
			l, ok := b.launches[n.ID]
			number := ""
			if ok {
				number = fmt.Sprintf("#%d ", l.order)
				bytes += l.Bytes
			} else {
				bytes += graph.CostOf(n).Bytes()
			}
			x.time += float64(b.times[n])
			switch {
			case i < maxOrigins:
				tips = append(tips, number+clean(base(n.Args[0]).Name)+" "+n.Type.String())
			case i == maxOrigins:
				tips = append(tips, fmt.Sprintf("and %d more", len(c.nodes)-i))
			}
		}
		if x.time > 0 {
			x.time = min(x.time/float64(b.longest), 1)
			b.scene.timed = true
		}
		x.lines = append(x.lines, textLine{plural(len(c.nodes), "launch") + " · " + humanBytes(bytes), roleType})
		x.tooltip = strings.Join(tips, "\n")
	}
}

// maxUntrained is up to how many parameters that a training step does not change are drawn as inputs.
const maxUntrained = 4

// findUntrained finds the parameters of a training step that it does not change. A machine makes a parameter of each value
// of the user's that could be trained, so these are as a rule the data.
func (b *builder) findUntrained() {
	b.untrained = make(map[*graph.Node]bool)
	trains := false
	for _, u := range b.graph.Updates {
		if _, param := u.Target.Op.(graph.Param); param {
			trains = true
		}
	}
	if !trains || b.detail == Full {
		return
	}
	for _, n := range b.graph.Nodes {
		if _, param := n.Op.(graph.Param); param && !b.updated[n] && b.consts[n] == nil {
			b.untrained[n] = true
		}
	}
	if len(b.untrained) > maxUntrained {
		clear(b.untrained)
	}
}
