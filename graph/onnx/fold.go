package onnx

import (
	"fmt"

	"fusec/graph"
	"fusec/kernels/ref"
)

// What is computed while a model is read: values of at most so many elements, by operations of at most so many steps. All values
// together have at most so many elements, and take so many steps.
const (
	maxKnown      = 1 << 18
	maxKnownFLOPs = 1 << 26
	maxAllKnown   = 1 << 24
	maxAllFLOPs   = 1 << 28
)

// A fact is what is known of a node while the model is read.
type fact struct {
	can      bool            // the node follows from known values
	constant bool            // it follows from constants alone, without weights and given inputs
	results  []*graph.Tensor // its values, once they have been asked for
}

// given is the value of an input, if it is small enough to be part of a graph.
func (m *importer) given(n *graph.Node) *graph.Tensor {
	t := m.options.Inputs[n.Name]
	if t == nil || t.Type != n.Type || t.Type.Shape.Elems() > maxKnown {
		return nil
	}
	return t
}

// fact is what is known of a node. Nodes are looked at once, in their order, in which operands come before their readers: chains of
// them may be long.
func (m *importer) fact(n *graph.Node) fact {
	for ; m.looked < len(m.g.Nodes); m.looked++ {
		next := m.g.Nodes[m.looked]
		m.facts.Set(next, m.look(next))
	}
	return m.facts.Get(n)
}

func (m *importer) look(n *graph.Node) fact {
	switch n.Op.(type) {
	case graph.Const:
		return fact{can: true, constant: true}
	case graph.Param:
		return fact{can: true}
	case graph.Input:
		return fact{can: m.given(n) != nil}
	case graph.State, graph.Host, graph.Fusion:
		return fact{}
	}
	f := fact{can: n.Type.Shape.Elems() <= maxKnown && graph.ClassOf(n.Op) != graph.ClassRandom, constant: true}
	for _, a := range n.Args {
		of := m.facts.Get(a)
		f.can, f.constant = f.can && of.can, f.constant && of.constant
	}
	f.can = f.can && stepsOf(n) <= maxKnownFLOPs
	f.constant = f.constant && f.can
	return f
}

// stepsOf is about how many steps it takes to compute a node.
func stepsOf(n *graph.Node) int64 {
	steps := int64(n.Type.Shape.Elems())
	if _, result := n.Op.(graph.Result); result {
		return steps
	}
	if info := graph.InfoOf(n.Op); info.FLOPs != nil {
		steps = max(steps, info.FLOPs(n.Op, graph.Types(n.Args), []graph.Type{n.Type}))
	}
	return steps
}

// known is the value of a node, or nil if it is not known. Inputs that it follows from become fixed.
func (m *importer) known(n *graph.Node) (*graph.Tensor, error) {
	if !m.fact(n).can {
		return nil, nil
	}
	for todo := []*graph.Node{n}; len(todo) > 0; {
		next, before := todo[len(todo)-1], len(todo)
		for _, a := range next.Args {
			if m.facts.Get(a).results == nil {
				todo = append(todo, a)
			}
		}
		if len(todo) > before {
			continue
		}
		todo = todo[:before-1]
		if f := m.facts.Get(next); f.results == nil {
			var err error
			if f.results, err = m.compute(next); err != nil {
				return nil, err
			}
			m.facts.Set(next, f)
		}
	}
	return m.facts.Get(n).results[0], nil
}

// compute evaluates a node that follows from known values, of which those of its operands have been computed.
func (m *importer) compute(n *graph.Node) ([]*graph.Tensor, error) {
	switch op := n.Op.(type) {
	case graph.Const:
		return []*graph.Tensor{op.Value}, nil
	case graph.Param:
		return []*graph.Tensor{m.weights[n.Name]}, nil
	case graph.Input:
		m.fixed[n.Name] = true
		return []*graph.Tensor{m.given(n)}, nil
	case graph.Result:
		return m.facts.Get(n.Args[0]).results[op.Index:], nil
	}
	m.elems += n.Type.Shape.Elems()
	m.steps += stepsOf(n)
	if m.elems > maxAllKnown || m.steps > maxAllFLOPs {
		return nil, fmt.Errorf("%s: all that is computed while the model is read has more than %d elements, or takes more than %d steps",
			n.Where(), maxAllKnown, maxAllFLOPs)
	}
	args := make([]ref.Value, len(n.Args))
	for i, a := range n.Args {
		args[i] = ref.FromTensor(m.facts.Get(a).results[0])
	}
	values, err := ref.Op(n.Op, args)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n.Where(), err)
	}
	var out []*graph.Tensor
	for _, v := range values {
		out = append(out, v.Rounded())
	}
	return out, nil
}

// constant reports whether a node follows from constants alone, without weights and given inputs.
func (m *importer) constant(n *graph.Node) bool { return m.fact(n).constant }
