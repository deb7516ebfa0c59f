// Package optim describes optimisers and writes their steps into a graph.
//
// An [Optimizer] consists of a [Rule], which is the mathematics of one parameter's update, and of options for all
// rules: the learning rate's schedule, clipping, accumulation, loss scaling, groups of parameters. [Optimizer.Append]
// turns it into ordinary nodes: new values of the parameters and of the rule's states, as updates that are committed
// when a run has succeeded.
//
//	gradients ─► squared norm ─► finite? clip, 1 ÷ (scale · runs) ─┐          scalars
//	    │                                                           ▼
//	    └───────────────────────────────► rule: parameter, moments ─► select ─► update
//
// A step whose gradients or costs are not finite is skipped completely: parameters and moments keep their values, bit
// for bit, and the skip is counted.
package optim

import (
	"errors"
	"fmt"
	"math"

	"fusec/graph"
)

// Optimizer says how parameters are changed by their gradients. Rule and Rate are required.
type Optimizer struct {
	Rule Rule
	// Rate is the learning rate of each step.
	Rate Schedule
	// Clip is the maximum of the norm of all gradients together; larger gradients are scaled down to it; 0 does not
	// clip (R. Pascanu, T. Mikolov, Y. Bengio, "On the difficulty of training recurrent neural networks", arXiv
	// 1211.5063).
	Clip float64
	// Accumulate is the number of runs whose gradients are averaged into one step; 0 counts as 1. With a cost that is a
	// mean, k runs of small batches make the step of one large batch.
	Accumulate int
	// LossScale multiplies the cost before it is differentiated, and divides its gradients afterwards.
	LossScale LossScale
	// Group assigns a parameter to a group; nil treats all parameters the same.
	Group func(name string, t graph.Type) Group
}

// LossScale keeps small gradients from underflow in low precision (P. Micikevicius et al., "Mixed Precision Training",
// arXiv 1710.03740). It is halved when a step is skipped.
type LossScale struct {
	Initial float64 // the initial scale, preferably a power of two; 0 does not scale
	// GrowAfter is the number of consecutive steps without a skip after which the scale doubles; 0 for never.
	GrowAfter int
}

// Group has options for a group of parameters. The zero value changes nothing.
type Group struct {
	Rate    float64 // factor of the learning rate; 0 counts as 1
	NoDecay bool    // no weight decay
	Frozen  bool    // not changed at all
}

// DecayMatrices is an [Optimizer.Group] without weight decay for parameters with fewer than two axes of more than one
// element: biases, and gains of norms.
func DecayMatrices(_ string, t graph.Type) Group {
	long := 0
	for i := range t.Shape.Rank() {
		if t.Shape.At(i) > 1 {
			long++
		}
	}
	return Group{NoDecay: long < 2}
}

// Check reports a setting that makes no sense.
func (o *Optimizer) Check() error {
	if o == nil || o.Rule == nil {
		return errors.New("the optimiser has no rule, such as optim.AdamW{}")
	}
	var errs []error
	fail := func(format string, a ...any) { errs = append(errs, fmt.Errorf("the optimiser's "+format, a...)) }
	if o.Rate == nil {
		fail("learning rate is missing: give it a schedule, such as optim.Constant(1e-3)")
	}
	if !(o.Clip >= 0) {
		fail("clipping norm %v is not a positive number", o.Clip)
	}
	if o.Accumulate < 0 {
		fail("number of runs to accumulate is %d", o.Accumulate)
	}
	if s := o.LossScale; !(s.Initial >= 0) || math.IsInf(s.Initial, 0) || s.GrowAfter < 0 || s.Initial == 0 &&
		s.GrowAfter > 0 {
		fail("loss scale is %v, growing after %d steps", s.Initial, s.GrowAfter)
	}
	if err := o.Rule.Check(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Of is the group of a parameter.
func (o *Optimizer) Of(name string, t graph.Type) (Group, error) {
	var p Group
	if o.Group != nil {
		p = o.Group(name, t)
	}
	if !(p.Rate >= 0) || math.IsInf(p.Rate, 0) {
		return p, fmt.Errorf("the learning rate's factor of %q is %v", name, p.Rate)
	}
	if p.Rate == 0 {
		p.Rate = 1
	}
	return p, nil
}

// RateAt is the learning rate of a step, or an error if the schedule gives none.
func (o *Optimizer) RateAt(step int) (float64, error) {
	r := o.Rate(step)
	if !(r >= 0) || math.IsInf(r, 0) {
		return 0, fmt.Errorf("the schedule gives the learning rate %v at step %d", r, step)
	}
	return r, nil
}

// runs is the number of runs that make a step.
func (o *Optimizer) runs() int { return max(o.Accumulate, 1) }
