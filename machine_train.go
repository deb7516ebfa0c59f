package fusec

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"gorgonia.org/gorgonia"

	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/lowering/pipeline"
	"fusec/passes"
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
	if e := m.stages(); e != nil {
		names, state := e.Kept()
		for i, name := range names {
			if !state[i] {
				continue
			}
			t, err := e.Whole(name)
			if err != nil {
				return nil, err
			}
			all[name] = t
		}
		return all, nil
	}
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
	if m.closed {
		return errClosed
	}
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

// Where values are current. On the CPU runs read and change weights and state in place, so nothing here has
// anything to do. A device has memory of its own: weights that an optimiser changes and the state of operations stay
// there from run to run. Everything that a run hands out, and the counters of [StepStats], comes back with the run.

// Sync brings the weights that an optimiser changes, and all state, back from the device to their nodes and operations.
// From then until the next run they may be changed in place, and the next run takes them up again. [Machine.State],
// [Machine.Save] and [Machine.Close] sync by themselves.
func (m *Machine) Sync() error {
	if m.err != nil {
		return m.err
	}
	if err := errors.Join(m.program.Sync(), m.gather()); err != nil {
		return err
	}
	for i := range m.inputs {
		m.inputs[i].synced = true
	}
	m.synced = true
	return nil
}

// stages is the pipeline of a machine in a group, whose participants each keep what belongs to their stage; or nil.
func (m *Machine) stages() *pipeline.Executable {
	if m.cfg.group == nil {
		return nil
	}
	return m.program.pipeline()
}

// gather brings the weights that other stages of a pipeline keep to their nodes.
func (m *Machine) gather() error {
	e := m.stages()
	if e == nil || !m.changed { // no stage has changed any
		return nil
	}
	for _, s := range m.im.Sources {
		_, here := m.program.named[s.Value.Name]
		if e.Home(s.Value.Name) < 0 {
			continue
		}
		if here && s.Node.Value() == nil {
			return fmt.Errorf("node %s has no value", fgorgonia.Called(s.Node))
		}
		t, err := e.Whole(s.Value.Name)
		if err != nil {
			return err
		}
		if err := fgorgonia.Store(s.Node.Value(), t); err != nil {
			return fmt.Errorf("%s: %w", fgorgonia.Called(s.Node), err)
		}
	}
	return nil
}

// Value is the present value of a node of the graph: of a weight, an input, or of what a run has computed. It is what
// Node.Value gives, after a weight that an optimiser changes on a device has been brought back, and a plain value where
// that is an [UnstoredTensor] or [UnstoredScalar].
func (m *Machine) Value(n *gorgonia.Node) (gorgonia.Value, error) {
	if err := m.has(n); err != nil {
		return nil, err
	}
	for i := range m.inputs {
		if in := &m.inputs[i]; in.node == n && in.steps {
			if err := m.program.sync(in.name); err != nil {
				return nil, err
			}
			in.synced = true
		}
	}
	if n.Value() == nil {
		return nil, fmt.Errorf("node %v has no value: runs hand out roots, gradients and what gorgonia.Read asks for", n)
	}
	return fgorgonia.Plain(n.Value())
}

// bindHeld hands the program the state that it has been lent, if that may have changed.
func (m *Machine) bindHeld() error {
	if !m.synced {
		return nil
	}
	for name, t := range m.held {
		if err := m.program.lend(name, t); err != nil {
			return err
		}
	}
	m.synced = false
	return nil
}

// LispMachine is a [Machine] that differentiates by itself, and replaces what gorgonia.NewLispMachine gives.
type LispMachine struct{ *Machine }

// NewLispMachine compiles a graph without a backward pass, and the derivatives of its roots by all inputs of
// floating-point type: after a run every such input has its gradient beside its value, as gorgonia.BindDualValues binds
// it, and solvers take it from there. Gradients add up until a solver has zeroed them. Roots must be scalars; of several
// roots the gradients are those of their sum. An input that no root depends on gets zeros. Gradients of inner nodes are
// not bound.
//
// Unlike Gorgonia's, the machine can be run again after [Machine.Reset].
//
// Of Gorgonia's options EvalMode, ExecuteFwdOnly, LogFwd, LogBwd, LogBothDir, WithLogger, WithValueFmt, WithWatchlist,
// WithNaNWatch and WithInfWatch work. With WithManualGradient roots may have any shape; the gradient of a root is what is
// bound to it, as gorgonia.WithGrad does it, before a run, and ones if nothing is. BindDualValues, WithPrecompiled,
// UseCudaFor and WithPointerWatch have nothing to do, which a note of the trace says. ExecuteBwdOnly, TraceExec and
// engines that are not of Gorgonia's tensor package are refused by name. fusec's own options work but WithOptimizer,
// which has to know which inputs are weights: call gorgonia.Grad and use [NewMachine].
//
// The graph may not have been differentiated by gorgonia.Grad, except with ExecuteFwdOnly.
func NewLispMachine(g *gorgonia.ExprGraph, opts ...MachineOption) *LispMachine {
	return &LispMachine{newMachine(g, fgorgonia.LispMachine, opts)}
}

// ForceCPU does nothing: [WithTarget] says where a program runs, and the default is the processor.
func (m *LispMachine) ForceCPU() {}

// UnbindAll takes their values from all nodes but inputs.
func (m *LispMachine) UnbindAll() {
	if m.g == nil {
		return
	}
	for _, n := range m.g.AllNodes() {
		if n.Op() != nil {
			fgorgonia.Unbind(n)
		}
	}
}

// differentiates reports whether the machine makes gradients that nobody called gorgonia.Grad for.
func (m *Machine) differentiates() bool { return m.kind == fgorgonia.LispMachine && !m.vm.ForwardOnly }

// differentiate asks for the gradients of the roots' sum, and makes results of them.
func (m *Machine) differentiate() ([]passes.Gradient, error) {
	if len(m.im.Grads) > 0 {
		return nil, errors.New("gorgonia.Grad has differentiated this graph, and a LispMachine does so by itself: " +
			"use NewMachine, or give gorgonia.ExecuteFwdOnly")
	}
	if m.cfg.optimizer != nil {
		return nil, errors.New("WithOptimizer: a LispMachine does not know which inputs are weights: " +
			"call gorgonia.Grad(cost, weights...) and use NewMachine")
	}
	cost, err := m.sumOfRoots()
	if err != nil {
		return nil, err
	}
	needs := map[*graph.Node]bool{}
	mark(cost, needs)
	var gradients []passes.Gradient
	for _, s := range m.im.Sources {
		if !s.Value.Type.DType.IsFloat() {
			continue
		}
		r := machineResult{node: s.Node, grad: true, what: "gradient of", of: s.Value}
		if needs[s.Value] {
			r.output = fmt.Sprintf("gradient %d", len(m.results))
			gradients = append(gradients, passes.Gradient{Cost: cost, Of: s.Value, Output: r.output})
		} else {
			r.tensor = graph.NewTensor(s.Value.Type)
		}
		m.results = append(m.results, r)
	}
	return gradients, nil
}

// mark adds all that n is computed from.
func mark(n *graph.Node, into map[*graph.Node]bool) {
	for stack := []*graph.Node{n}; len(stack) > 0; {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if !into[n] {
			into[n] = true
			stack = append(stack, n.Args...)
		}
	}
}

// sumOfRoots adds the cost to the graph: the sum of the roots, each weighed by the gradient that the user gave it.
func (m *Machine) sumOfRoots() (*graph.Node, error) {
	b := graph.Extend(m.im.Graph)
	var cost *graph.Node
	for _, r := range m.im.Roots {
		v := r.Value
		switch {
		case !v.Type.DType.IsFloat():
			return nil, fmt.Errorf("root %s is of type %v: it has no gradient; give gorgonia.ExecuteFwdOnly", fgorgonia.Called(r.Node),
				v.Type)
		case m.vm.ManualGrad:
			name := fmt.Sprintf("gradient of root %d", r.Node.ID())
			seed := b.Input(name, v.Type)
			m.im.Fills = append(m.im.Fills, fgorgonia.Fill{Value: seed, Fill: seedOf(r.Node)})
			v = b.Binary(graph.Mul, v, seed)
			if n := v.Type.Shape.Rank(); n > 0 {
				axes := make([]int, n)
				for i := range axes {
					axes[i] = i
				}
				v = b.Reduce(graph.Sum, v, false, axes...)
			}
		case !r.Node.IsScalar() && v.Type.Shape.Rank() > 0:
			return nil, fmt.Errorf("root %s has shape %v: a cost is a scalar; give gorgonia.WithManualGradient or ExecuteFwdOnly",
				fgorgonia.Called(r.Node), v.Type.Shape)
		}
		v = b.Reshape(v)
		if cost == nil {
			cost = v
		} else if cost.Type != v.Type {
			return nil, fmt.Errorf("roots have element types %v and %v: of their sum there is no gradient", cost.Type.DType, v.Type.DType)
		} else {
			cost = b.Binary(graph.Add, cost, v)
		}
	}
	if cost == nil {
		return nil, errors.New("the graph has no root to differentiate")
	}
	return cost, b.Err()
}

// seedOf gives the gradient that is bound to a root, or ones.
func seedOf(root *gorgonia.Node) func(*graph.Tensor) error {
	return func(t *graph.Tensor) error {
		if g := fgorgonia.BoundGrad(root); g != nil {
			return fgorgonia.Load(t, g)
		}
		for i := range t.Type.Shape.Elems() {
			t.SetFloat(i, 1)
		}
		return nil
	}
}
