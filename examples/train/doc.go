// Package train is a training loop for Gorgonia graphs on fusec's machine: the examples and the command fusec train
// share it, and it is small enough to copy.
//
//	run, err := train.Start(task, settings)          // compiles cost, gradients and optimiser into one program
//	defer run.Close()
//	for run.Step() < settings.Steps {
//		record, err := run.Next()                // a batch, a step
//	}
//	scores, err := task.Evaluate()
//
// A batch is a function of the seed and the number of the step. Everything else that a step depends on is in a
// checkpoint. So a run that [Run.Restore] resumes computes the same bits as one that never stopped.
package train
