package body

import (
	"fmt"
	"slices"

	"fusec/graph"
)

// A Move makes one result of a fusion of [graph.AnchorMoves]: elements of an operand, seen through views, are rotated and cast, and
// are the result or overwrite a part of another operand. Operands are numbered as those of the fusion.
type Move struct {
	From   int
	Views  []*graph.Node // of operand From, in order
	RoPE   *graph.Node   // nil if nothing is rotated
	Angles []int         // the operands of RoPE besides the first
	To     graph.DType   // of the elements that are written
	Update *graph.Node   // the UpdateSlice, or nil; its update has the elements in row-major order
	Into   int           // the operand that it overwrites
	Start  int           // the operand that says from where on
}

// Moves are those of a fusion, one for each result. The error names the node of the body that breaks the form.
func Moves(f graph.Fusion) ([]Move, error) {
	var inputs []*graph.Node
	for _, n := range f.Body.Nodes {
		if _, ok := n.Op.(graph.Input); ok {
			inputs = append(inputs, n)
		}
	}
	list := make([]Move, len(f.Body.Outputs))
	for i, o := range f.Body.Outputs {
		var err error
		if list[i], err = moveTo(o.Node, inputs); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// moveTo follows a result back to its operand.
func moveTo(n *graph.Node, inputs []*graph.Node) (m Move, err error) {
	operand := func(a *graph.Node) int {
		i := slices.Index(inputs, a)
		if i < 0 && err == nil {
			err = fmt.Errorf("%s has no place in a fusion of anchor %v", a.Where(), graph.AnchorMoves)
		}
		return i
	}
	beforeReshapes := func(n *graph.Node) *graph.Node {
		for {
			if _, ok := n.Op.(graph.Reshape); !ok {
				return n
			}
			n = n.Args[0]
		}
	}
	if _, ok := n.Op.(graph.UpdateSlice); ok {
		m.Update, m.Into, m.Start = n, operand(n.Args[0]), operand(n.Args[2])
		n = n.Args[1]
	}
	m.To = n.Type.DType
	if c := beforeReshapes(n); isCast(c) {
		n = c.Args[0]
	}
	if r := beforeReshapes(n); isRoPE(r) {
		m.RoPE = r
		for _, a := range r.Args[1:] {
			m.Angles = append(m.Angles, operand(a))
		}
		n = r.Args[0]
	}
	for graph.IsView(n.Op) {
		m.Views = append(m.Views, n)
		n = n.Args[0]
	}
	slices.Reverse(m.Views)
	m.From = operand(n)
	return m, err
}

func isCast(n *graph.Node) bool {
	_, ok := n.Op.(graph.Cast)
	return ok
}

func isRoPE(n *graph.Node) bool {
	_, ok := n.Op.(graph.RoPE)
	return ok
}

// Layout is how the elements that are moved lie in operand From, which lies as given: in the shape of the rotation or, without one,
// of the views. It is not ok if strides cannot express that.
func (m *Move) Layout(from graph.Layout) (_ graph.Layout, ok bool) {
	for _, v := range m.Views {
		if from, ok = from.View(v); !ok {
			return from, false
		}
	}
	return from, true
}
