package examples

import (
	"gorgonia.org/gorgonia"

	"fusec/cmd/models/zoo"
	"fusec/examples/train"
	"fusec/graph/optim"
)

var digitsMLPExample = &Example{
	Name:     "digits-mlp",
	Summary:  "two hidden layers on images of handwritten digits",
	Reaches:  "96 % of the test images right, in a second",
	Samples:  digitsTrain,
	Defaults: train.Settings{Steps: 4000, Batch: 32, Rate: 3e-3, Seed: 1},
	Open: func(s train.Settings) (*train.Task, error) {
		return digitsTask(s, oneDigit, 0.5, optim.AdamW{Decay: 0.1}, DigitsMLP)
	},
}

// DigitsMLP is zoo.DigitsMLP, which uses Gorgonia's operations only.
func DigitsMLP(batch int) (*train.Model, error) {
	m := zoo.DigitsMLP(batch)
	return &train.Model{Graph: m.Graph, Inputs: gorgonia.Nodes{m.Input}, Output: m.Output, Learnables: m.Params}, nil
}
