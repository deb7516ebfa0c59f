// Package rows joins products of several values with one matrix:
//
//	x₁·w, x₂·w, …   becomes   y = [x₁; x₂; …]·w   and its rows
//
// Recurrences that are written out in steps have such products, those of the inputs of all steps with the weights of the
// gates. The matrix is read once instead of in each step, and its gradient becomes one product, too.
package rows

import (
	"fmt"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

const (
	// minProducts are joined at least. Fewer may do better with their own activations in their launches.
	minProducts = 4
	// maxRows is how many rows a product has at most: with more, it reuses the matrix enough by itself.
	maxRows = 32
	// minElems is how many elements the matrix has at least, so that it outweighs the copy of the rows.
	minElems = 1 << 10
	// maxVisits bounds the work of the pass, in visits of nodes: each matrix takes one of every node.
	maxVisits = 1 << 26
)

// A form is what products that can be joined have in common: the matrix and how they read it.
type form struct {
	w     *graph.Node
	op    graph.MatMul
	right bool       // the matrix is the second operand
	other graph.Type // of the first operand, or else of the second
}

// Run is the pass. The matrices are those that follow from parameters and constants.
func Run(c *rewrite.Context) error {
	g := c.Graph
	groups, order := map[form][]*graph.Node{}, []form{}
	frozen := graph.Frozen(g, true)
	for _, n := range g.Nodes {
		op, ok := n.Op.(graph.MatMul)
		if !ok || frozen.Get(n.Args[0]) == frozen.Get(n.Args[1]) {
			continue
		}
		f := form{w: n.Args[1], op: op, right: true, other: n.Args[0].Type}
		if frozen.Get(n.Args[0]) {
			f = form{w: n.Args[0], op: op, other: n.Args[1].Type}
		}
		if f.w.Type.Shape.Rank() != 2 || f.other.Shape.Rank() != 2 || f.w.Type.Shape.Elems() < minElems {
			continue
		}
		if groups[f] == nil {
			order = append(order, f)
		}
		groups[f] = append(groups[f], n)
	}
	visits := 0
	for _, f := range order {
		if len(groups[f]) < minProducts || f.rows() == 0 || f.rows() > maxRows {
			continue
		}
		if visits += len(g.Nodes); visits > maxVisits {
			c.Note(nil, "the graph is too large to look at the products with every matrix")
			return nil
		}
		if err := join(c, f, groups[f]); err != nil {
			return err
		}
	}
	return nil
}

// axis is the axis of the other operand that is not summed over.
func (f form) axis() int {
	second := !f.op.TransB
	if f.right {
		second = f.op.TransA
	}
	if second {
		return 1
	}
	return 0
}

// rows is how many vectors a product multiplies by the matrix.
func (f form) rows() int { return f.other.Shape.At(f.axis()) }

// join joins those products that do not depend on each other.
func join(c *rewrite.Context, f form, group []*graph.Node) error {
	g := c.Graph
	// The level of a node is the most products of the group on a way to it. Products of one level do not depend on each
	// other, and those of a level depend on products of lower ones alone, so that joining makes no circle.
	level, waves := graph.PerNode[int]{}, make([][]*graph.Node, len(group)+1)
	member := graph.PerNode[bool]{}
	for _, n := range group {
		member.Set(n, true)
	}
	for _, n := range g.Nodes {
		l := 0
		for _, a := range n.Args {
			l = max(l, level.Get(a))
		}
		if member.Get(n) {
			l++
			waves[l] = append(waves[l], n)
		}
		level.Set(n, l)
	}
	with := map[*graph.Node]*graph.Node{}
	for _, wave := range waves {
		if len(wave) < minProducts {
			continue
		}
		if !f.right && f.rows() > 1 {
			reason := fmt.Sprintf("its second operand has %d columns, and only single ones are joined", f.rows())
			c.Miss("rows", wave[0], reason, wave[:1])
			return nil
		}
		f.wave(c, wave, with)
	}
	if len(with) == 0 {
		if len(waves[len(group)]) > 0 {
			c.Note(group[0], "%d products with %s depend on one another and stay apart", len(group), f.w.Where())
		}
		return nil
	}
	g.Replace(with)
	return g.Tidy()
}

// wave joins products to one, whose rows take their places.
func (f form) wave(c *rewrite.Context, wave []*graph.Node, with map[*graph.Node]*graph.Node) {
	b := graph.Extend(c.Graph).From(wave...)
	k := f.other.Shape.At(1 - f.axis())
	parts := make([]*graph.Node, len(wave))
	for i, n := range wave {
		if f.right {
			parts[i] = n.Args[0]
		} else {
			parts[i] = b.Reshape(n.Args[1], 1, k)
		}
	}
	var y *graph.Node
	if f.right {
		y = b.Add(f.op, b.Add(graph.Concat{Axis: f.axis()}, parts...), f.w)
	} else {
		y = b.MatMul(b.Add(graph.Concat{Axis: 0}, parts...), f.w, false, !f.op.TransA)
	}
	for i, n := range wave {
		rows := graph.Extend(c.Graph).From(n).Slice(y, 0, i*f.rows(), f.rows(), 1)
		if !f.right {
			rows = graph.Extend(c.Graph).From(n).Reshape(rows, n.Type.Shape.Slice()...)
		}
		with[n] = rows
		c.Merged(n, y)
	}
	c.Match("rows", trace.Reassociated, graph.KindOf(f.op).String(), y, wave...)
}
