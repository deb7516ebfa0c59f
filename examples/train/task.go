package train

import (
	"errors"
	"fmt"
	"math"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph/nn"
	"fusec/graph/optim"
	"fusec/kernels/group"
)

// Settings are the user's choices for a run. All determine the result, bit for bit, but
// Workers and Target; where several participants share the work, Target, Group, Microbatches and Mesh decide the order of sums.
type Settings struct {
	Steps   int
	Batch   int     // samples of a step
	Rate    float64 // the learning rate's maximum
	Seed    uint64  // of the initial weights, the batches and dropout
	Workers int     // cores; 0 for all
	Target  string  // of fusec; empty for the CPU
	// Precision is the format to which contractions may round.
	Precision fusec.Precision
	// Group is the participants that share the work, each of which has a part of every batch; nil for one alone.
	Group *group.Group
	// Microbatches, if above 0, cuts the network into a stage for each participant, of Group or of the devices of Target, and a
	// batch into so many microbatches; see [fusec.WithPipeline]. Ends names the values with which stages end, with commas between.
	Microbatches int
	Ends         string
	// Mesh arranges the participants; see [fusec.WithMesh]. Empty stands for one axis.
	Mesh string
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
	case s.Microbatches > 0 && s.Batch%s.Microbatches != 0:
		return fmt.Errorf("batches of %d samples cannot be divided into %d microbatches: change the batch", s.Batch, s.Microbatches)
	case s.Group != nil && s.Microbatches == 0 && s.Batch%s.Group.Size() != 0:
		return fmt.Errorf("batches of %d samples cannot be divided among %d participants: change the batch", s.Batch, s.Group.Size())
	case s.Workers < 0:
		return fmt.Errorf("%d workers: want a positive number, or 0 for all", s.Workers)
	}
	return nil
}

// Model is a network as a Gorgonia graph.
type Model struct {
	Graph      *gorgonia.ExprGraph
	Inputs     gorgonia.Nodes // set for each batch
	Output     *gorgonia.Node // the prediction
	Cost       *gorgonia.Node // a scalar, or nil in a model that only predicts
	Learnables gorgonia.Nodes
	Gates      []Gate          // of mixtures of experts
	Norms      []*nn.BatchNorm // whose running statistics Share shares
}

// Gate is the node of a mixture of experts that has the weights [tokens, experts] of each token's experts: 0 for those
// that it does not use.
type Gate struct {
	Name string
	Node *gorgonia.Node
}

// Share makes the model use the same tensors as another model's learnables, matched by name, and the running statistics
// of its norms, in their order: training one trains the other. It is called before a machine is made of the model.
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
	if len(m.Norms) != len(from.Norms) {
		return fmt.Errorf("there are %d norms to share for %d", len(from.Norms), len(m.Norms))
	}
	for i, n := range m.Norms {
		if err := n.Share(from.Norms[i]); err != nil {
			return err
		}
	}
	return nil
}

// Parameters is the number of learnt elements.
func (m *Model) Parameters() int {
	total := 0
	for _, n := range m.Learnables {
		total += n.Shape().TotalSize()
	}
	return total
}

// Zeroed sets an input to a tensor of zeros, to be filled in place, and returns the tensor.
func Zeroed(n *gorgonia.Node) (*tensor.Dense, error) {
	v := tensor.New(tensor.Of(n.Dtype()), tensor.WithShape(n.Shape()...))
	return v, gorgonia.Let(n, v)
}

// Score is one measure of a model's quality.
type Score struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// Task is a model with its data, ready to be trained.
type Task struct {
	Model     *Model
	Optimizer *optim.Optimizer
	// Fill writes the batch of a step into the values of the model's inputs. The same step gets the same batch.
	Fill func(step int) error
	// Evaluate scores the current weights on data that is not trained on, with the most important score first.
	Evaluate func() ([]Score, error)
	// Forward is the model without its cost, with shared weights. It is saved after training.
	Forward *Model
	// Release frees what Evaluate holds; nil for nothing.
	Release func() error
}

// Close frees what the task holds.
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
