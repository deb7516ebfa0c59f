package passes

import (
	"errors"
	"fmt"

	"fusec/graph"
	"fusec/graph/optim"
)

// Step asks the optimiser to change a parameter by the gradient of a cost.
type Step struct {
	Param *graph.Node
	Cost  *graph.Node // nil if unknown: then Value is taken as it is
	Seed  *graph.Node // d(Cost)/d(Cost); nil for 1
	Value *graph.Node // the gradient, if the graph has it already
}

// stepOutput names the output under which a gradient waits for optimise-step, and costOutput a cost.
func stepOutput(i int) string { return fmt.Sprintf("optim/gradient %d", i) }
func costOutput(i int) string { return fmt.Sprintf("optim/cost %d", i) }

// askSteps prepares a graph for optimise-step before the first pass: the gradients and costs become outputs, so that
// every pass keeps them. A gradient that the graph has is taken as it is, and shared with what else reads it; with loss
// scaling, or if there is none, a new one is requested.
func (c *Context) askSteps() error {
	if len(c.steps) == 0 {
		return nil
	}
	g := c.Graph
	taken := map[string]bool{}
	for _, o := range g.Outputs {
		taken[o.Name] = true
	}
	for _, r := range c.gradients {
		taken[r.Output] = true
	}
	for i := range len(c.steps) + 1 {
		for _, name := range []string{stepOutput(i), costOutput(i)} {
			if taken[name] {
				return fmt.Errorf("the graph has an output named %q, which the optimiser needs for itself", name)
			}
		}
	}
	for i, s := range c.steps {
		seed, err := s.Seed, error(nil)
		if s.Cost != nil {
			if seed, err = c.cfg.Optimizer.Seed(g, s.Cost, s.Seed); err != nil {
				return err
			}
		}
		switch {
		case !s.makes(c.cfg.Optimizer):
			g.Outputs = append(g.Outputs, graph.Output{Name: stepOutput(i), Node: s.Value})
		case s.Cost == nil:
			return fmt.Errorf("the gradient of %s cannot be made again, as loss scaling needs: its cost is not known",
				s.Param.Where())
		default:
			c.gradients = append(c.gradients, Gradient{Cost: s.Cost, Of: s.Param, Seed: seed, Output: stepOutput(i)})
		}
	}
	costs := map[*graph.Node]bool{}
	for _, s := range c.steps {
		if s.Cost != nil && !costs[s.Cost] {
			g.Outputs = append(g.Outputs, graph.Output{Name: costOutput(len(costs)), Node: s.Cost})
			costs[s.Cost] = true
		}
	}
	return g.Tidy()
}

// optimiseStep appends the optimiser's step as ordinary nodes:
//
//	w ─ forward ─ cost                     w ─ forward ─ cost ─────────┐
//	│                │                     │                │          ▼
//	└─ backward ─────┴─ d(cost)/d(w)       └─ backward ─ gradient ─► step ─► update of w, moments
//
// [optim.Optimizer.Append] defines the step.
func optimiseStep(c *Context) error {
	if c.cfg.Optimizer == nil {
		return nil
	}
	g := c.Graph
	waiting := map[string]*graph.Node{}
	for _, o := range g.Outputs {
		waiting[o.Name] = o.Node
	}
	var pairs []optim.Pair
	mine, sources := map[string]bool{}, g.SourcesByName()
	for i, s := range c.steps {
		param, name := sources[s.Param.Name], stepOutput(i)
		if param == nil || waiting[name] == nil {
			return fmt.Errorf("%s has no gradient", s.Param.Where())
		}
		mine[name] = true
		pairs = append(pairs, optim.Pair{Param: param, Grad: waiting[name]})
	}
	var costs []*graph.Node
	for i := 0; waiting[costOutput(i)] != nil; i++ {
		mine[costOutput(i)] = true
		costs = append(costs, waiting[costOutput(i)])
	}
	outputs := g.Outputs
	g.Outputs = nil
	for _, o := range outputs {
		if !mine[o.Name] {
			g.Outputs = append(g.Outputs, o)
		}
	}
	before := len(g.Nodes)
	if err := c.cfg.Optimizer.Append(g, pairs, costs); err != nil {
		return err
	}
	if err := g.Tidy(); err != nil {
		return err
	}
	c.Note(nil, "%T changes %d parameters in each run: %d nodes", c.cfg.Optimizer.Rule, len(pairs), len(g.Nodes)-before)
	return nil
}

// stepsBy says why optimise-step is needed: an optimiser is to change parameters.
func (cfg Config) stepsBy() string {
	if cfg.Optimizer == nil {
		return ""
	}
	return fmt.Sprintf("%T is to change %v", cfg.Optimizer.Rule, cfg.Steps[0].Param)
}

// checkSteps refuses an optimiser without parameters to change, and the reverse.
func (cfg Config) checkSteps() error {
	switch {
	case cfg.Optimizer == nil && len(cfg.Steps) > 0:
		return errors.New("parameters are to be changed, but there is no optimiser")
	case cfg.Optimizer == nil:
		return nil
	case len(cfg.Steps) == 0:
		return errors.New("the optimiser has no parameter to change")
	}
	return cfg.Optimizer.Check()
}

// makes reports whether the gradient is made, and not taken from the graph.
func (s Step) makes(o *optim.Optimizer) bool { return s.Value == nil || o.LossScale.Initial != 0 }

// in translates the request to the nodes of a cloned graph.
func (s Step) in(to map[*graph.Node]*graph.Node) (Step, error) {
	if err := translate(to, "step", &s.Param, &s.Cost, &s.Seed, &s.Value); err != nil {
		return s, err
	}
	switch {
	case s.Param == nil:
		return s, errors.New("a step was asked for without saying of what")
	case s.Cost == nil && s.Value == nil:
		return s, fmt.Errorf("a step of %v was asked for without a cost or a gradient", s.Param)
	}
	if _, ok := s.Param.Op.(graph.Param); !ok {
		return s, fmt.Errorf("a step of %s was asked for, which is not a parameter", s.Param.Where())
	}
	return s, nil
}
