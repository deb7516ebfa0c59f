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

// build imports an operation that builds itself.
func (c *call) build() (*graph.Node, error) {
	op, args := c.op.(Builder), c.args
	if m, ok := op.(Modal); ok {
		c.staleMode(m.Training)
	}
	if s, ok := op.(Stepper); ok && s.Steps() != nil {
		args = append(args[:len(args):len(args)], c.step(s.Steps()))
	}
	v, err := op.Build(c.b, args)
	if err == nil {
		err = c.b.Err()
	}
	if err == nil && v == nil {
		err = fmt.Errorf("%s built nothing", describe(c.op))
	}
	return v, err
}

// step is the state of an operation's count.
func (c *call) step(count *int64) *graph.Node {
	base := nameOf(c.n)
	if base == "" {
		base = fmt.Sprintf("steps%d", c.n.ID())
	}
	s := c.counter(base+".steps", count)
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
