package gorgonia

import (
	"fmt"

	"fusec/graph"

	gorg "gorgonia.org/gorgonia"
)

// A Builder is an operation, of whatever package, that says itself what it computes in terms of fusec's operations.
// [Import] asks it, where it would run another unknown operation on the host.
type Builder interface {
	gorg.Op
	// Build appends what the operation computes of args to b. The value has the type that Gorgonia inferred for the
	// node, axes of size 1 aside.
	Build(b *graph.Builder, args []*graph.Node) (*graph.Node, error)
}

// A Modal is a Builder that builds something else in training than in evaluation.
type Modal interface {
	Builder
	gorg.TrainModeOp
	// Training tells what SetTraining set.
	Training() bool
}

// A Stepper is a Builder that counts how often it has run. In an imported graph the count is a state: an I64 scalar,
// which Build gets as one operand more, behind the others, and which advances by one with each run that succeeds.
type Stepper interface {
	Builder
	// Steps is where the operation keeps its count, or nil if it keeps none.
	Steps() *int64
}

// A Holder is a Builder that keeps a value between runs, of any type. In an imported graph that is a state, which Build
// gets as one operand more, behind the others; what Build returns is the node's value and what the state holds after a
// run that succeeds. As its type is the state's, so is the node's.
//
// Machines work on the value where it stands: no run copies it, several machines may take turns at one value, and the
// owner may change it between runs.
type Holder interface {
	Builder
	// Held is the value, always in the same memory, or nil if the operation keeps none.
	Held() *graph.Tensor
}

// build imports an operation that builds itself.
func (c *call) build() (*graph.Node, error) {
	op, args := c.op.(Builder), c.args
	if m, ok := op.(Modal); ok {
		c.staleMode(m.Training)
	}
	if s, ok := op.(Stepper); ok && s.Steps() != nil {
		args = append(args[:len(args):len(args)], c.step(s.Steps()))
	}
	var held *graph.Node
	if h, ok := op.(Holder); ok && h.Held() != nil {
		held = c.hold(h.Held())
		args = append(args[:len(args):len(args)], held)
	}
	v, err := op.Build(c.b, args)
	if err == nil {
		err = c.b.Err()
	}
	if err == nil && v == nil {
		err = fmt.Errorf("%s built nothing", describe(c.op))
	}
	if err != nil || held == nil {
		return v, err
	}
	if v.Type != held.Type {
		return nil, fmt.Errorf("%s built %v of what it holds, %v", describe(c.op), v.Type, held.Type)
	}
	c.b.Update(held, v)
	return v, c.b.Err()
}

// hold is the state of a value that an operation keeps.
func (c *call) hold(held *graph.Tensor) *graph.Node {
	s := c.b.State(c.unique(c.base("held")+".held"), held.Type)
	c.States = append(c.States, State{
		Value: s,
		Held:  held,
		Load: func(t *graph.Tensor) error {
			t.CopyFrom(held)
			return nil
		},
		Store: func(t *graph.Tensor) error {
			held.CopyFrom(t)
			return nil
		},
	})
	return s
}

// base begins the names of an operation's states: the user's name for the node, or a name of its own.
func (c *call) base(otherwise string) string {
	if name := nameOf(c.n); name != "" {
		return name
	}
	return fmt.Sprintf("%s%d", otherwise, c.n.ID())
}

// step is the state of an operation's count.
func (c *call) step(count *int64) *graph.Node {
	s := c.counter(c.base("steps")+".steps", count)
	c.b.Update(s, c.b.BinaryScalar(graph.Add, s, 1))
	return s
}

// counter is a state whose value is kept in count between runs.
func (c *call) counter(name string, count *int64) *graph.Node {
	s := c.b.State(c.unique(name), graph.Type{DType: graph.I64})
	c.States = append(c.States, State{
		Value: s,
		Load: func(t *graph.Tensor) error {
			t.Data.([]int64)[0] = *count
			return nil
		},
		Store: func(t *graph.Tensor) error {
			*count = t.Data.([]int64)[0]
			return nil
		},
	})
	return s
}
