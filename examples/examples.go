// Package examples has small programs that train real networks with Gorgonia on fusec's machine, to be read and copied
// from. Each builds its graph with gorgonia.org/gorgonia and fusec/graph/nn, trains it on embedded data, and reports
// its scores:
//
//	digits_mlp.go   two hidden layers on images of handwritten digits
//	digits_vit.go   a vision transformer on the same images
//	resnet.go       a residual network on the same images
//	unet.go         a U-Net that finds the pixels of a digit in a noisy picture
//	language.go     an autoregressive transformer on the bytes of a novel; generate.go generates text
//	moe.go          the same with a mixture of experts in each layer
//	karate.go       a graph convolutional network on a karate club's friendships
//
// transformer.go has the layer that three of them share, and package examples/train has the training loop. The command
// fusec train runs the examples by name.
package examples

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"gorgonia.org/gorgonia"

	"fusec"
	"fusec/examples/train"
)

// Example is a program of this package.
type Example struct {
	Name     string
	Summary  string         // one line
	Reaches  string         // its score and time with Defaults
	Samples  int            // in an epoch
	Defaults train.Settings // chosen so that two cores take seconds, or a minute or two
	// Open builds the model and its data.
	Open func(train.Settings) (*train.Task, error)
}

// All lists the examples.
func All() []*Example {
	return []*Example{digitsMLPExample, digitsViTExample, resnetExample, unetExample, languageExample, moeExample, karateExample}
}

// Find returns the example with the given name.
func Find(name string) (*Example, error) {
	for _, x := range All() {
		if x.Name == name {
			return x, nil
		}
	}
	return nil, fmt.Errorf("there is no example %q", name)
}

// A scorer runs a model that is not trained itself.
type scorer struct {
	model *train.Model
	vm    *fusec.Machine
}

// newScorer compiles a model that shares the weights of the trained one.
func newScorer(m, trained *train.Model, s train.Settings) (*scorer, error) {
	if err := m.Share(trained); err != nil {
		return nil, err
	}
	opts := []gorgonia.VMOpt{gorgonia.EvalMode()}
	if s.Workers > 0 {
		opts = append(opts, fusec.WithWorkers(s.Workers))
	}
	vm := fusec.NewMachine(m.Graph, opts...)
	if err := vm.Err(); err != nil {
		return nil, errors.Join(err, vm.Close())
	}
	return &scorer{m, vm}, nil
}

// run computes the model's cost, or its output if it has no cost, from the values of its inputs.
func (s *scorer) run() (gorgonia.Value, error) {
	s.vm.Reset()
	if err := s.vm.RunAll(); err != nil {
		return nil, err
	}
	if s.model.Cost != nil {
		return s.model.Cost.Value(), nil
	}
	return s.model.Output.Value(), nil
}

// shuffler chooses the samples of each step. Every epoch has all of them, in another order.
type shuffler struct {
	seed    uint64
	samples int
	batch   int
	epoch   int
	order   []int
}

// newShuffler makes a shuffler of n samples in batches.
func newShuffler(n int, s train.Settings) *shuffler {
	return &shuffler{seed: s.Seed, samples: n, batch: s.Batch, epoch: -1, order: make([]int, n)}
}

// perEpoch is the number of complete batches in an epoch.
func (s *shuffler) perEpoch() int { return s.samples / s.batch }

// at returns the samples of a step.
func (s *shuffler) at(step int) []int {
	epoch, place := step/s.perEpoch(), step%s.perEpoch()
	if epoch != s.epoch {
		s.epoch = epoch
		for i := range s.order {
			s.order[i] = i
		}
		r := rand.New(rand.NewPCG(s.seed, uint64(epoch)))
		r.Shuffle(len(s.order), func(i, j int) { s.order[i], s.order[j] = s.order[j], s.order[i] })
	}
	return s.order[place*s.batch:][:s.batch]
}
