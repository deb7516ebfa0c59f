package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"fusec/examples"
	"fusec/examples/train"
)

// digitsMLP trains the example of that name and gives it for as many images as there are test images, with its accuracy
// on them.
func digitsMLP(steps int, log io.Writer) (m *train.Model, accuracy float64, err error) {
	x, err := examples.Find("digits-mlp")
	if err != nil {
		return nil, 0, err
	}
	s := x.Defaults
	if steps > 0 {
		s.Steps = steps
	}
	task, err := x.Open(s)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, task.Close()) }()
	run, err := train.Start(task, s)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, run.Close()) }()
	err = run.Loop(context.Background(), train.Plan{Evaluate: max(s.Steps/10, 1), Each: func(r train.Record) error {
		if r.Scores != nil {
			accuracy = r.Scores[0].Value
			fmt.Fprintf(log, "digits-mlp: step %d of %d, loss %.4f\n", r.Step, s.Steps, r.Loss)
		}
		return nil
	}})
	return task.Forward, accuracy, err
}
