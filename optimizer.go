package fusec

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/graph/optim"
	"fusec/lowering"
	"fusec/passes"
)

// WithOptimizer makes the update of the parameters part of every run: clipping, loss scale and the optimiser's step are
// compiled with the forward and backward pass, and parameters that are treated alike are updated in one launch.
//
// On a [Machine] these are the nodes that gorgonia.Grad was asked for. On the CPU a run changes their values in place, in
// the memory of the nodes themselves, so Node.Value is always current and may be set between runs. On a device they stay
// on the device: Node.Value is current after [Machine.Sync], and after what syncs by itself, and may be changed in place
// from then until the next run; a new value, as gorgonia.Let gives, is taken up at any time. Their gradients are
// handed out only where gorgonia.BindDualValues, a Read or a watch asks for them; a run after a solver of Gorgonia's has
// used them is refused, since the step would be made twice. With [Compile] they are all parameters
// that the graph's one output of a single number, the cost, depends on; give their first values with [Program.Set] and
// read them with [Program.State].
//
// A run whose gradients or costs are not finite changes no parameter and no moment; see [StepStats.Skipped]. Everything
// that the optimiser keeps is state of the program; see [Machine.State].
func WithOptimizer(o *optim.Optimizer) Option {
	return own(func(c *config) {
		if c.optimizer != nil && c.err == nil {
			c.err = errors.New("WithOptimizer is given twice")
		}
		if err := o.Check(); err != nil && c.err == nil {
			c.err = fmt.Errorf("WithOptimizer: %w", err)
		}
		c.optimizer = o
	})
}

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
	if err := p.exe.Bind(p.named[optim.RateInput], s.rate); err != nil {
		return err
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

// StepStats are those of a program with an optimiser; else they are zero.
func (p *Program) StepStats() StepStats {
	s := p.stepper
	if s == nil {
		return StepStats{}
	}
	st := StepStats{Steps: s.steps.Data.([]int64)[0], Skipped: s.skipped.Data.([]int64)[0],
		Rate: s.rate.Float(0), LossScale: 1, Norm: s.norm.Float(0)}
	runtime.KeepAlive(p) // which has the norm
	if s.scale != nil {
		st.LossScale = s.scale.Float(0)
	}
	return st
}

// States lists the names of the program's states in order, those of an optimiser included. [Program.State] gives their
// values, and [Program.Set] changes them.
func (p *Program) States() []string {
	var names []string
	for name, i := range p.named {
		if p.program.Buffers[i].Role == lowering.State {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// lend is [Program.Set] for a parameter or state that the program may change where it stands.
func (p *Program) lend(name string, t *graph.Tensor) error {
	i := p.named[name]
	if err := p.exe.Bind(i, t); err != nil {
		return err
	}
	p.own[i] = t
	return nil
}

// inherit takes over the state of the program that p replaces; nil for none.
func (p *Program) inherit(old *Program) error {
	if old == nil {
		return nil
	}
	for _, name := range p.States() {
		if t, err := old.State(name); err == nil && t.Type == p.own[p.named[name]].Type {
			if err := p.Set(name, t); err != nil {
				return err
			}
		}
	}
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

// StepStats are those of a machine with an optimiser; else they are zero.
func (m *Machine) StepStats() StepStats {
	if m.program == nil {
		return StepStats{}
	}
	return m.program.StepStats()
}

// State copies all that the machine keeps between runs besides the values of nodes, by name: an optimiser's moments and
// counters, running statistics, the counter of random draws. With the weights, and the same program, inputs and options,
// it is all that training needs to go on to the same bits. It syncs, as [Machine.Sync] does.
func (m *Machine) State() (map[string]*graph.Tensor, error) {
	if err := m.Sync(); err != nil {
		return nil, err
	}
	all := map[string]*graph.Tensor{}
	for _, name := range m.program.States() {
		t, err := m.program.State(name)
		if err != nil {
			return nil, err
		}
		all[name] = t.Clone()
	}
	for _, s := range m.states { // Gorgonia's operations own these
		if err := s.load(all[s.name]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// SetState puts back what [Machine.State] gave, of a machine of the same graph and options. If a value is missing, not
// known or of another type, nothing is changed.
func (m *Machine) SetState(state map[string]*graph.Tensor) error {
	have, err := m.State()
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		t := state[name]
		if t == nil {
			return fmt.Errorf("the machine keeps %q, which the given state lacks", name)
		}
		if err := t.Check(); err != nil {
			return fmt.Errorf("value of %q: %w", name, err)
		}
		if t.Type != have[name].Type {
			return fmt.Errorf("%q is %v; it was given a value of type %v", name, have[name].Type, t.Type)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(state)) {
		if have[name] == nil {
			return fmt.Errorf("the machine keeps no %q", name)
		}
	}
	for name, t := range state {
		if err := m.program.Set(name, t); err != nil {
			return err
		}
	}
	for _, s := range m.states {
		if err := s.store(state[s.name]); err != nil {
			return err
		}
	}
	return nil
}
