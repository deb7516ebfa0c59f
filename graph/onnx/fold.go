package onnx

import (
	"fmt"

	"fusec/graph"
	"fusec/kernels/ref"
)

// What is computed while a model is read: values of at most so many elements, by operations of at most so many steps.
const (
	maxKnown      = 1 << 18
	maxKnownFLOPs = 1 << 26
)

// A fact is what is known of a node while the model is read.
type fact struct {
	can     bool            // the node follows from known values
	results []*graph.Tensor // its values, once they have been asked for
}

// given is the value of an input, if it is small enough to be part of a graph.
func (m *importer) given(n *graph.Node) *graph.Tensor {
	t := m.options.Inputs[n.Name]
	if t == nil || t.Type != n.Type || t.Type.Shape.Elems() > maxKnown {
		return nil
	}
	return t
}

// knowable reports whether a node follows from constants, weights and given inputs.
func (m *importer) knowable(n *graph.Node) bool {
	if f, ok := m.facts[n]; ok {
		return f.can
	}
	can := true
	switch op := n.Op.(type) {
	case graph.Const:
	case graph.Param:
	case graph.Input:
		can = m.given(n) != nil
	case graph.State, graph.Host, graph.Fusion:
		can = false
	default:
		can = n.Type.Shape.Elems() <= maxKnown && graph.ClassOf(op) != graph.ClassRandom
		for _, a := range n.Args {
			can = can && m.knowable(a)
		}
		if info := graph.InfoOf(op); can && info.FLOPs != nil {
			types := graph.Types(n.Args)
			if _, result := op.(graph.Result); !result {
				can = info.FLOPs(op, types, []graph.Type{n.Type}) <= maxKnownFLOPs
			}
		}
	}
	m.facts[n] = fact{can: can}
	return can
}

// known is the value of a node, or nil if it is not known. Inputs that it follows from become fixed.
func (m *importer) known(n *graph.Node) (*graph.Tensor, error) {
	if !m.knowable(n) {
		return nil, nil
	}
	all, err := m.compute(n)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// compute evaluates a node that is knowable.
func (m *importer) compute(n *graph.Node) ([]*graph.Tensor, error) {
	if r := m.facts[n].results; r != nil {
		return r, nil
	}
	var out []*graph.Tensor
	switch op := n.Op.(type) {
	case graph.Const:
		return []*graph.Tensor{op.Value}, nil
	case graph.Param:
		return []*graph.Tensor{m.weights[n.Name]}, nil
	case graph.Input:
		m.fixed[n.Name] = true
		return []*graph.Tensor{m.given(n)}, nil
	case graph.Result:
		all, err := m.compute(n.Args[0])
		if err != nil {
			return nil, err
		}
		out = all[op.Index:]
	default:
		args := make([]ref.Value, len(n.Args))
		for i, a := range n.Args {
			t, err := m.compute(a)
			if err != nil {
				return nil, err
			}
			args[i] = ref.FromTensor(t[0])
		}
		values, err := ref.Op(op, args)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n.Where(), err)
		}
		for _, v := range values {
			out = append(out, v.Rounded())
		}
	}
	m.facts[n] = fact{can: true, results: out}
	return out, nil
}

// constant reports whether a node follows from constants alone, without weights and given inputs.
func (m *importer) constant(n *graph.Node) bool {
	if !m.knowable(n) {
		return false
	}
	for a := range graph.Ancestors(n) {
		switch a.Op.(type) {
		case graph.Param, graph.Input:
			return false
		}
	}
	return true
}
