package fusec

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"gorgonia.org/gorgonia"

	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
)

// What a training loop does beside RunAll: the solver's list of weights, the batch that the loader read, and all that a
// checkpoint holds.

// Params lists the inputs that are trained, in the order in which they were made: those that gorgonia.Grad was asked
// for, and of these, if gorgonia.BindDualValues names nodes, only the ones that it names. On a [LispMachine] they are the
// inputs that had a value of floating-point type when it was made, data as well as weights. A graph without gradients has
// none.
//
//	solver.Step(gorgonia.NodesToValueGrads(vm.Params()))
func (m *Machine) Params() gorgonia.Nodes {
	if m.im == nil {
		return nil
	}
	trained := map[*gorgonia.Node]bool{}
	for _, k := range m.im.Grads {
		trained[k.Node] = k.Wanted
	}
	var params gorgonia.Nodes
	for _, s := range m.im.Sources {
		_, param := s.Value.Op.(graph.Param)
		if m.differentiates() {
			trained[s.Node] = true
		}
		named := len(m.vm.BindNodes) == 0 || slices.Contains(m.vm.BindNodes, s.Node)
		if param && trained[s.Node] && named && s.Value.Type.DType.IsFloat() {
			params = append(params, s.Node)
		}
	}
	slices.SortStableFunc(params, func(a, b *gorgonia.Node) int { return int(a.ID() - b.ID()) })
	return params
}

// Weights copies the values of [Machine.Params] by name, as a checkpoint holds them. It syncs, as [Machine.Sync] does.
func (m *Machine) Weights() (map[string]*graph.Tensor, error) {
	if err := m.Sync(); err != nil {
		return nil, err
	}
	w := map[string]*graph.Tensor{}
	for _, n := range m.Params() {
		t, err := fgorgonia.ToTensor(n.Value())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", fgorgonia.Called(n), err)
		}
		if w[n.Name()] != nil {
			return nil, fmt.Errorf("two weights are named %q: give them names of their own", n.Name())
		}
		w[n.Name()] = t
	}
	return w, nil
}

// SetWeights puts back what [Machine.Weights] gave, into the memory of the nodes' values. If a weight is missing, not
// known or of another type, nothing is changed.
func (m *Machine) SetWeights(weights map[string]*graph.Tensor) error {
	now, err := m.Weights()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(now)) {
		errs = append(errs, fits("weight", name, weights[name], now[name].Type))
	}
	for _, name := range slices.Sorted(maps.Keys(weights)) {
		if now[name] == nil {
			errs = append(errs, fmt.Errorf("the machine trains no %q", name))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, n := range m.Params() {
		if err := fgorgonia.Store(n.Value(), weights[n.Name()]); err != nil {
			return fmt.Errorf("%s: %w", fgorgonia.Called(n), err)
		}
	}
	return nil
}

// LetBatch gives inputs the tensors of their names, such as the Tensors of a batch that graph/loader has read. They are
// copied, into the memory of the inputs' values once they have some, so that after the first batch nothing is allocated
// and the loader may use its memory again. If an input is not known, or a tensor has another type or shape, as the last
// batch of an epoch may have without loader.Options.DropLast, nothing is changed.
func (m *Machine) LetBatch(tensors map[string]*graph.Tensor) error {
	if m.im == nil {
		return m.err
	}
	if m.batch == nil {
		m.batch = map[string]fgorgonia.Source{}
		for _, s := range m.im.Sources {
			m.batch[s.Value.Name] = s
		}
	}
	for name, t := range tensors {
		s, ok := m.batch[name]
		if !ok {
			return fmt.Errorf("the graph has no input %q", name)
		}
		if err := fits("input", name, t, s.Value.Type); err != nil {
			return err
		}
	}
	for name, t := range tensors {
		n := m.batch[name].Node
		v := n.Value()
		if v != nil && sameShape(t, v) && fgorgonia.Store(v, t) == nil {
			continue
		}
		v, err := fgorgonia.NewValue(n, t)
		if err != nil {
			return err
		}
		if err := fgorgonia.Bind(n, v); err != nil {
			return fmt.Errorf("input %q: %w", name, err)
		}
	}
	return nil
}

// fits checks a tensor that is to be the value of something named.
func fits(what, name string, t *graph.Tensor, want graph.Type) error {
	if t == nil {
		return fmt.Errorf("%s %q is missing", what, name)
	}
	if err := t.Check(); err != nil {
		return fmt.Errorf("value of %s %q: %w", what, name, err)
	}
	if t.Type != want {
		return fmt.Errorf("%s %q is %v; it was given a value of type %v", what, name, want, t.Type)
	}
	return nil
}
