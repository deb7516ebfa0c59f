package bench

import (
	"errors"
	"fmt"

	"gorgonia.org/gorgonia"

	"fusec/cmd/internal/modelio"
	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/graph/optim"
)

// tape is the rival: Gorgonia's TapeMachine on the same graph with the same values. Gradients that a file asks for are made
// by gorgonia.Grad, and an optimiser is Gorgonia's own solver, which changes the parameters after each run.
type tape struct {
	vm      gorgonia.VM
	outputs map[string]*gorgonia.Value
	solver  gorgonia.Solver // or nil
	params  []gorgonia.ValueGrad
}

// newTape writes the graph as an expression graph and makes a machine for it. The error says why that cannot be done.
func newTape(g *graph.Graph, vals *modelio.Values) (t *tape, err error) {
	defer func() {
		if r := recover(); r != nil {
			t, err = nil, fmt.Errorf("a panic in Gorgonia: %v", r)
		}
	}()
	for _, n := range g.Nodes {
		if n.Type.Shape.Elems() == 0 { // such a value ends the process: the machine panics in a goroutine of its own
			return nil, fmt.Errorf("%s is a value without elements, which Gorgonia cannot run", n)
		}
	}
	if g.Training == nil && len(g.OutputNames()) == len(g.Outputs) {
		return buildTape(g, vals, nil)
	}
	a, err := askedOf(g)
	if err != nil {
		return nil, err
	}
	// Gorgonia has bugs that show in the first run. It is made on a machine of its own, since a step changes the parameters.
	if t, err = buildTape(a.forward, vals, a); err == nil {
		err = t.run()
		t.close()
	}
	if err != nil {
		return nil, err
	}
	return buildTape(a.forward, vals, a)
}

// asked is what a file asks for besides the forward pass.
type asked struct {
	forward  *graph.Graph
	cost     string                 // the output of forward that is differentiated
	outputs  map[string]*graph.Node // gradients that are handed out, by the source
	training *graph.Training        // or nil
}

// askedOf takes a graph apart into its forward pass and the gradients that it asks for or has.
func askedOf(g *graph.Graph) (*asked, error) {
	c, _ := g.Clone()
	a := &asked{forward: c, outputs: map[string]*graph.Node{}, training: c.Training}
	var cost *graph.Node
	add := func(of, by, seed *graph.Node) error {
		switch {
		case of == nil:
			return fmt.Errorf("the cost of the gradient by %s is not known", by.Where())
		case seed != nil:
			return fmt.Errorf("the gradient by %s has a seed, which gorgonia.Grad does not take", by.Where())
		case cost != nil && cost != of:
			return errors.New("the file asks for gradients of several costs, of which gorgonia.Grad makes those of the first")
		case graph.ClassOf(by.Op) != graph.ClassSource:
			return fmt.Errorf("the file asks for a gradient by %s, which gorgonia.Grad makes of inputs and parameters only",
				by.Where())
		}
		cost = of
		return nil
	}
	marks := map[*graph.Node]graph.GradMark{} // by the gradient, those by sources
	for _, d := range c.Gradients {
		if d.Value != nil && d.Cost != nil && graph.ClassOf(d.Of.Op) == graph.ClassSource {
			marks[d.Value] = d
		}
		if d.Output != "" {
			if err := add(d.Cost, d.Of, d.Seed); err != nil {
				return nil, err
			}
			a.outputs[d.Output] = d.Of
		}
	}
	var outputs []graph.Output
	for _, o := range c.Outputs {
		d, ok := marks[o.Node]
		if !ok {
			outputs = append(outputs, o)
			continue
		}
		if err := add(d.Cost, d.Of, d.Seed); err != nil {
			return nil, err
		}
		a.outputs[o.Name] = d.Of
	}
	if c.Training != nil {
		for _, s := range c.Training.Steps {
			if err := add(s.Cost, s.Param, s.Seed); err != nil {
				return nil, err
			}
		}
	}
	a.cost = "the cost of gorgonia.Grad"
	c.Outputs, c.Gradients, c.Training, c.Updates = append(outputs, graph.Output{Name: a.cost, Node: cost}), nil, nil, nil
	return a, c.Tidy()
}

// buildTape makes a machine for a graph, and for the gradients and steps of a unless that is nil.
func buildTape(g *graph.Graph, vals *modelio.Values, a *asked) (*tape, error) {
	x, err := fgorgonia.Export(g, vals.Weights)
	if err != nil {
		return nil, err
	}
	for _, name := range modelio.SortedKeys(vals.Inputs) {
		n := x.Sources[name]
		if n == nil {
			continue // only the gradients would read it
		}
		v, err := fgorgonia.NewValue(n, vals.Inputs[name])
		if err == nil {
			err = gorgonia.Let(n, v)
		}
		if err != nil {
			return nil, fmt.Errorf("input %s: %w", name, err)
		}
	}
	t := &tape{outputs: map[string]*gorgonia.Value{}}
	read := func(name string, n *gorgonia.Node) {
		t.outputs[name] = new(gorgonia.Value)
		gorgonia.Read(n, t.outputs[name])
	}
	for _, o := range g.Outputs {
		read(o.Name, x.Outputs[o.Name])
	}
	if a == nil {
		t.vm = gorgonia.NewTapeMachine(x.Graph)
		return t, nil
	}
	var of gorgonia.Nodes
	grads := map[*gorgonia.Node]*gorgonia.Node{}
	want := func(n *graph.Node) (*gorgonia.Node, error) {
		s := x.Sources[n.Name]
		if s == nil {
			return nil, fmt.Errorf("the cost does not depend on %s, of which gorgonia.Grad makes no gradient", n.Where())
		}
		if _, ok := grads[s]; !ok {
			grads[s] = nil
			of = append(of, s)
		}
		return s, nil
	}
	for _, name := range modelio.SortedKeys(a.outputs) {
		if _, err := want(a.outputs[name]); err != nil {
			return nil, err
		}
	}
	var params gorgonia.Nodes
	if a.training != nil {
		if t.solver, err = solverOf(a.training); err != nil {
			return nil, err
		}
		for _, s := range a.training.Steps {
			n, err := want(s.Param)
			if err != nil {
				return nil, err
			}
			params = append(params, n)
		}
	}
	made, err := gorgonia.Grad(x.Outputs[a.cost], of...)
	if err != nil {
		return nil, fmt.Errorf("gorgonia.Grad: %w", err)
	}
	for i, n := range made {
		grads[of[i]] = n
	}
	for name, n := range a.outputs {
		read(name, grads[x.Sources[n.Name]])
	}
	t.params = gorgonia.NodesToValueGrads(params)
	t.vm = gorgonia.NewTapeMachine(x.Graph, gorgonia.BindDualValues(params...))
	return t, nil
}

// solverOf is Gorgonia's solver for the rule of a file.
func solverOf(t *graph.Training) (gorgonia.Solver, error) {
	o, err := optim.FromTraining(t)
	if err != nil {
		return nil, err
	}
	if o.Accumulate > 1 {
		return nil, errors.New("no solver of Gorgonia adds up the gradients of several runs")
	}
	rate, err := o.RateAt(0)
	if err != nil {
		return nil, err
	}
	opts := []gorgonia.SolverOpt{gorgonia.WithLearnRate(rate)}
	if o.Clip > 0 {
		opts = append(opts, gorgonia.WithClip(o.Clip))
	}
	switch r := o.Rule.(type) {
	case optim.SGD:
		return gorgonia.NewVanillaSolver(opts...), nil
	case optim.Momentum:
		return gorgonia.NewMomentum(append(opts, gorgonia.WithMomentum(r.Mu))...), nil
	case optim.Adam, optim.AdamW: // Gorgonia's AdamW does not take parameters of one element
		return gorgonia.NewAdamSolver(opts...), nil
	}
	return nil, fmt.Errorf("no solver of Gorgonia is the optimiser %s", t.Rule)
}

// once runs the machine and makes it ready for the next time. Parameters stay as they are.
func (t *tape) once() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("a panic in Gorgonia: %v", r)
		}
	}()
	err = t.vm.RunAll()
	t.vm.Reset()
	return err
}

// run is once and the step of the solver, which sets gradients to zero.
func (t *tape) run() (err error) {
	if err = t.once(); err != nil || t.solver == nil {
		return err
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("a panic in Gorgonia's solver: %v", r)
		}
	}()
	return t.solver.Step(t.params)
}

// output is the value of an output after a run.
func (t *tape) output(name string) (*graph.Tensor, error) {
	v := *t.outputs[name]
	if v == nil {
		return nil, errors.New("it has no value")
	}
	return fgorgonia.ToTensor(v)
}

func (t *tape) close() { t.vm.Close() }
