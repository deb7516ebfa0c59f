// Package train is a training loop for Gorgonia graphs on fusec's machine: what the examples and the command fusec
// train share, and small enough to copy.
//
//	run, err := train.Start(task, settings)          // compiles cost, gradients and optimiser into one program
//	defer run.Close()
//	for run.Step() < settings.Steps {
//		record, err := run.Next()                // a batch, a step
//	}
//	scores, err := task.Evaluate()
//
// A batch is a function of the seed and the number of the step, and all else that a step depends on stands in a
// checkpoint; so a run that [Run.Restore] brings back computes the same bits as one that never stopped.
package train
