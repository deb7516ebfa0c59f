package fusec

import (
	"errors"
	"fmt"
	"slices"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/graph/optim"
	"fusec/passes"
)

// StepStats tells how training goes.
type StepStats struct {
	Steps   int64   // steps done
	Skipped int64   // steps left out because a gradient or a cost was not finite
	Rate    float64 // the learning rate of the last run
	// LossScale is that of the next run; 1 without loss scaling.
	LossScale float64
	// Norm is the norm of all gradients of the last run together, before clipping: of their mean so far where several
	// runs make a step.
	Norm float64
}

// A stepper ties the optimiser's schedule to a program's inputs.
type stepper struct {
	optimizer                         *optim.Optimizer
	rate, steps, skipped, scale, norm *graph.Tensor
	counters                          []int // the buffers of steps, skipped and scale, which every run brings back
}

// startStepper finds the sources that the optimiser added, and gives them their first values.
func (p *Program) startStepper() (err error) {
	s := &stepper{optimizer: p.cfg.optimizer, rate: graph.Scalar(graph.F64, 0)}
	if i, ok := p.named[optim.RateInput]; ok { // a stage of a pipeline may update nothing
		if err := p.exe.Bind(i, s.rate); err != nil {
			return err
		}
	}
	delete(p.named, optim.RateInput) // it is the schedule's
	if s.steps, err = p.State(optim.StepState); err != nil {
		return err
	}
	if s.skipped, err = p.State(optim.SkippedState); err != nil {
		return err
	}
	if s.norm, err = p.output(optim.NormOutput); err != nil {
		return err
	}
	if first := s.optimizer.LossScale.Initial; first > 0 {
		if s.scale, err = p.State(optim.ScaleState); err != nil {
			return err
		}
		s.scale.SetFloat(0, first)
	}
	for _, name := range []string{optim.StepState, optim.SkippedState, optim.ScaleState} {
		if i, ok := p.named[name]; ok {
			s.counters = append(s.counters, i)
		}
	}
	p.stepper = s
	return nil
}

// setRate asks the schedule for the rate of the coming step.
func (s *stepper) setRate() error {
	r, err := s.optimizer.RateAt(int(s.steps.Data.([]int64)[0]))
	if err != nil {
		return err
	}
	s.rate.Data.([]float64)[0] = r
	return nil
}

// stepsOf says what an optimiser has to change in a graph that came without gradients.
func (c *config) stepsOf(g *graph.Graph) ([]passes.Step, error) {
	if c.optimizer == nil {
		return nil, nil
	}
	var cost *graph.Node
	for _, o := range g.Outputs {
		if t := o.Node.Type; t.DType.IsFloat() && t.Shape.Elems() == 1 {
			if cost != nil && cost != o.Node {
				return nil, fmt.Errorf("WithOptimizer: the graph has several outputs of one number, such as %q; "+
					"the cost must be the only one", o.Name)
			}
			cost = o.Node
		}
	}
	if cost == nil {
		return nil, errors.New("WithOptimizer: the graph has no output of one number, which would be the cost")
	}
	needs := map[*graph.Node]bool{cost: true}
	for _, n := range slices.Backward(g.Nodes) {
		if needs[n] {
			for _, a := range n.Args {
				needs[a] = true
			}
		}
	}
	var steps []passes.Step
	for _, n := range g.Nodes {
		if _, ok := n.Op.(graph.Param); !ok || !needs[n] || !n.Type.DType.IsFloat() {
			continue
		}
		if trained, err := c.trains(n); err != nil {
			return nil, err
		} else if trained {
			steps = append(steps, passes.Step{Param: n, Cost: cost})
		}
	}
	if len(steps) == 0 {
		return nil, fmt.Errorf("WithOptimizer: the cost %v depends on no parameter that is to be changed", cost)
	}
	return steps, nil
}

// trains reports whether the optimiser is to change a parameter.
func (c *config) trains(param *graph.Node) (bool, error) {
	group, err := c.optimizer.Of(param.Name, param.Type)
	return !group.Frozen, err
}

// steps says what the optimiser has to change in the machine's graph.
func (m *Machine) steps() ([]passes.Step, error) {
	if m.cfg.optimizer == nil {
		return nil, nil
	}
	var steps []passes.Step
	asked := false
	for _, k := range m.im.Grads {
		if _, ok := k.Of.Op.(graph.Param); !ok || !k.Wanted || k.Node.Op() != nil {
			continue
		}
		asked = true
		if trained, err := m.cfg.trains(k.Of); err != nil {
			return nil, err
		} else if trained {
			steps = append(steps, passes.Step{Param: k.Of, Cost: k.Cost, Seed: k.Seed, Value: k.Value})
		}
	}
	switch {
	case !asked:
		return nil, errors.New("WithOptimizer: the graph has no gradients: " +
			"call gorgonia.Grad(cost, weights...) before NewMachine")
	case len(steps) == 0:
		return nil, errors.New("WithOptimizer: every parameter is frozen")
	}
	return steps, nil
}

// writeSteps puts the optimiser into a graph that is saved after so many steps.
func (c *config) writeSteps(g *graph.Graph, steps []passes.Step, done int64) error {
	if c.optimizer == nil {
		return nil
	}
	rate, err := c.optimizer.RateAt(int(done))
	if err != nil {
		return err
	}
	if g.Training, err = c.optimizer.Training(rate); err != nil {
		g.Notes = append(g.Notes, graph.Note{Text: "the file is without the optimiser: " + err.Error()})
		return nil
	}
	for _, s := range steps {
		group, err := c.optimizer.Of(s.Param.Name, s.Param.Type)
		if err != nil {
			return err
		}
		step := graph.Step{Param: s.Param, Cost: s.Cost, Seed: s.Seed, Value: s.Value, NoDecay: group.NoDecay}
		if group.Rate != 1 {
			step.Rate = group.Rate
		}
		g.Training.Steps = append(g.Training.Steps, step)
	}
	return nil
}

// A doubleStep is an element of a weight that the optimiser has changed, and of its gradient, which is bound to the node
// and so can be taken for a solver's.
type doubleStep struct {
	node   *gorgonia.Node
	value  gorgonia.Value
	at     int // where the gradient was not zero
	weight float64
}

// watchSolver remembers what a run has left in weights and bound gradients; see [Machine.checkSolver].
func (m *Machine) watchSolver() {
	if m.cfg.optimizer == nil || !m.vm.BindDual {
		return
	}
	m.doubles = m.doubles[:0]
	for i := range m.inputs {
		n := m.inputs[i].node
		g := fgorgonia.BoundGrad(n)
		if !m.inputs[i].steps || g == nil {
			continue
		}
		v := n.Value()
		for at := range max(1, v.Shape().TotalSize()) {
			if d, ok := elementOf(g, at); !ok {
				break
			} else if w, ok := elementOf(v, at); ok && d != 0 {
				m.doubles = append(m.doubles, doubleStep{n, v, at, w})
				break
			}
		}
	}
}

// checkSolver refuses a weight that somebody has changed, and whose gradient somebody has zeroed, since the run: a solver
// of Gorgonia's does both, and the optimiser has made the step already.
func (m *Machine) checkSolver() error {
	for _, s := range m.doubles {
		if s.node.Value() != s.value {
			continue // it has another value now
		}
		d, ok := elementOf(fgorgonia.BoundGrad(s.node), s.at)
		if w, its := elementOf(s.value, s.at); ok && its && d == 0 && w != s.weight {
			m.doubles = nil
			return fmt.Errorf("a solver has changed %q, which WithOptimizer has changed in the run already: leave out the solver, "+
				"or WithOptimizer", fgorgonia.Called(s.node))
		}
	}
	return nil
}

// elementOf is the element of a value in memory, if it can be seen.
func elementOf(v gorgonia.Value, at int) (float64, bool) {
	switch v := v.(type) {
	case *gorgonia.F64:
		return float64(*v), true
	case *gorgonia.F32:
		return float64(*v), true
	case *tensor.Dense:
		switch {
		case at >= v.DataSize():
		case v.Dtype() == tensor.Float64:
			return v.Float64s()[at], true
		case v.Dtype() == tensor.Float32:
			return float64(v.Float32s()[at]), true
		}
	}
	return 0, false
}
