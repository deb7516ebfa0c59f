package gorgonia

import (
	"fmt"
	"slices"

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

// A Holder is a Builder that keeps values between runs, of any type. In an imported graph they are states, which Build
// gets as operands more, behind the others.
//
// Machines work on the values where they stand: no run copies them, several machines may take turns at them, and the
// owner may change them between runs. Operations that keep the same value share its state: one reads what the one
// before it in the graph left.
type Holder interface {
	Builder
	// Held are the values, always the same ones, or nil if the operation keeps none.
	Held() []Held
	// Next are the values after a run that succeeds, in the order of Held: nodes of their types. V is what Build
	// returned. Nil means that they stay as they are.
	Next(b *graph.Builder, v *graph.Node) []*graph.Node
}

// Held is a value that an operation keeps. In an imported graph its name follows that of the operation's node.
type Held struct {
	Name  string
	Value *graph.Tensor
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
	var held []Held
	h, holds := op.(Holder)
	if holds {
		held = h.Held()
	}
	args = args[:len(args):len(args)]
	for _, k := range held {
		args = append(args, c.hold(k))
	}
	v, err := op.Build(c.b, args)
	if err == nil {
		err = c.b.Err()
	}
	if err == nil && v == nil {
		err = fmt.Errorf("%s built nothing", describe(c.op))
	}
	if err != nil || len(held) == 0 {
		return v, err
	}
	next := h.Next(c.b, v)
	if v, err = c.conform(v); err == nil {
		err = c.change(held, next)
	}
	return v, err
}

// change updates the states of what an operation holds.
func (c *call) change(held []Held, next []*graph.Node) error {
	if err := c.b.Err(); err != nil || next == nil {
		return err
	}
	if len(next) != len(held) {
		return fmt.Errorf("%s built %d values for the %d that it holds", describe(c.op), len(next), len(held))
	}
	for i, k := range held {
		if next[i].Type != k.Value.Type {
			return fmt.Errorf("%s built %v of what it holds, %v", describe(c.op), next[i].Type, k.Value.Type)
		}
	}
	for i, k := range held {
		s := c.shared[k.Value]
		switch {
		case next[i] == s[1]:
			continue
		case s[0] == s[1]:
			c.b.Update(s[0], next[i])
		default:
			at := slices.IndexFunc(c.Graph.Updates, func(u graph.Update) bool { return u.Target == s[0] })
			c.Graph.Updates[at].Value = next[i]
		}
		c.shared[k.Value] = [2]*graph.Node{s[0], next[i]}
	}
	return nil
}

// hold is a value that an operation keeps, as the operation finds it: a state, or what an operation that keeps the same
// value makes of that.
func (c *call) hold(k Held) *graph.Node {
	if s, ok := c.shared[k.Value]; ok {
		return s[1]
	}
	held := k.Value
	s := c.b.State(c.unique(c.base("held")+"."+k.Name), held.Type)
	c.shared[held] = [2]*graph.Node{s, s}
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
