package train

import (
	"errors"
	"fmt"
	"math"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph/optim"
)

// Settings are what a user chooses for a run. All but Workers and Target decide the result, bit for bit.
type Settings struct {
	Steps   int
	Batch   int     // samples of a step
	Rate    float64 // the learning rate's maximum
	Seed    uint64  // of the first weights, the batches and dropout
	Workers int     // cores; 0 for all
	Target  string  // that fusec compiles for; empty for the CPU
	// Precision is what contractions may be rounded to.
	Precision fusec.Precision
}

// Check reports settings that make no sense.
func (s Settings) Check() error {
	switch {
	case s.Steps < 1:
		return fmt.Errorf("%d steps: want at least 1", s.Steps)
	case s.Batch < 1:
		return fmt.Errorf("batches of %d samples: want at least 1", s.Batch)
	case !(s.Rate > 0) || math.IsInf(s.Rate, 0):
		return fmt.Errorf("a learning rate of %v: want a positive number", s.Rate)
	case s.Workers < 0:
		return fmt.Errorf("%d workers: want a positive number, or 0 for all", s.Workers)
	}
	return nil
}

// Model is a network as a Gorgonia graph.
type Model struct {
	Graph      *gorgonia.ExprGraph
	Inputs     gorgonia.Nodes // what a batch fills
	Output     *gorgonia.Node // the prediction
	Cost       *gorgonia.Node // a scalar, or nil in a model that only predicts
	Learnables gorgonia.Nodes
}

// Share gives the model the very values of another's learnables, matched by name: what trains one trains the other.
func (m *Model) Share(from *Model) error {
	values := map[string]gorgonia.Value{}
	for _, n := range from.Learnables {
		values[n.Name()] = n.Value()
	}
	for _, n := range m.Learnables {
		v := values[n.Name()]
		switch {
		case v == nil:
			return fmt.Errorf("there is no value of %q to share", n.Name())
		case !v.Shape().Eq(n.Shape()) || v.Dtype() != n.Dtype():
			return fmt.Errorf("%q is %v %v; it was to share a value of %v %v", n.Name(), n.Dtype(), n.Shape(), v.Dtype(),
				v.Shape())
		}
		if err := gorgonia.Let(n, v); err != nil {
			return err
		}
	}
	return nil
}

// Parameters counts the numbers that are learnt.
func (m *Model) Parameters() int {
	total := 0
	for _, n := range m.Learnables {
		total += n.Shape().TotalSize()
	}
	return total
}

// Zeroed gives an input a value of zeros, to be filled in place, and returns it.
func Zeroed(n *gorgonia.Node) (*tensor.Dense, error) {
	v := tensor.New(tensor.Of(n.Dtype()), tensor.WithShape(n.Shape()...))
	return v, gorgonia.Let(n, v)
}

// Score is one number that says how good a model is.
type Score struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// Task is a model with its data, ready to be trained.
type Task struct {
	Model     *Model
	Optimizer *optim.Optimizer
	// Fill puts the batch of a step into the values of the model's inputs. The same step gets the same batch.
	Fill func(step int) error
	// Evaluate scores the present weights on data that is not trained on, the most telling score first.
	Evaluate func() ([]Score, error)
	// Forward is the model without its cost, sharing the weights: what is saved when training is done.
	Forward *Model
	// Release lets go of what Evaluate holds; nil for nothing.
	Release func() error
}

// Close lets go of what the task holds.
func (t *Task) Close() error {
	if t == nil || t.Release == nil {
		return nil
	}
	return t.Release()
}

// check reports a task that cannot be trained.
func (t *Task) check() error {
	switch {
	case t == nil || t.Model == nil || t.Model.Cost == nil || len(t.Model.Learnables) == 0:
		return errors.New("the task has no model with a cost and learnables")
	case t.Fill == nil:
		return errors.New("the task has no batches: Fill is nil")
	}
	return nil
}
