package optim

import (
	"errors"
	"fmt"

	"fusec/graph"
)

// Cost is the output of one floating-point number with the given name, or the only one if the name is empty.
func Cost(g *graph.Graph, name string) (*graph.Node, error) {
	var found *graph.Node
	for _, o := range g.Outputs {
		scalar := o.Node.Type.DType.IsFloat() && o.Node.Type.Shape.Elems() == 1
		switch {
		case name != "" && o.Name == name && !scalar:
			return nil, fmt.Errorf("the output %q is %v, not a scalar", name, o.Node.Type)
		case !scalar || name != "" && o.Name != name || found == o.Node:
		case found != nil:
			return nil, errors.New("the model has several scalar outputs; the cost must be the only one")
		default:
			found = o.Node
		}
	}
	switch {
	case found == nil && name != "":
		return nil, fmt.Errorf("the model has no output %q", name)
	case found == nil:
		return nil, errors.New("the model has no scalar output, which would be the cost")
	}
	return found, nil
}

// Steps is an optimiser with a step for every parameter that the graph's one scalar output, the cost, depends on. The rule is
// one of those that a file can name, with settings as a file has them.
func Steps(g *graph.Graph, rule string, settings []graph.Attr) (*graph.Training, error) {
	cost, err := Cost(g, "")
	if err != nil {
		return nil, err
	}
	t := &graph.Training{Rule: rule, Settings: settings}
	needs := graph.Ancestors(cost)
	for _, n := range g.Sources() {
		if _, ok := n.Op.(graph.Param); ok && needs[n] && n.Type.DType.IsFloat() {
			t.Steps = append(t.Steps, graph.Step{Param: n, Cost: cost})
		}
	}
	if len(t.Steps) == 0 {
		return nil, errors.New("the cost depends on no parameter")
	}
	return t, nil
}
