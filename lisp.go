package fusec

import (
	"errors"
	"fmt"

	"gorgonia.org/gorgonia"

	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/passes"
)

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
