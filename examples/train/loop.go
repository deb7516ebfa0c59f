package train

import (
	"context"
	"fmt"

	"fusec/graph/checkpoint"
)

// Plan says what [Run.Loop] does besides steps.
type Plan struct {
	Name        string         // of the task, for checkpoints
	Checkpoints checkpoint.Dir // no Path, no checkpoints
	Evaluate    int            // interval in steps, and after the last; 0 for only after the last
	// Each, if not nil, gets the record of every step.
	Each func(Record) error
}

// Loop does the remaining steps, and saves checkpoints when they are due and after the last step. When ctx is
// cancelled, it finishes the current step, saves a checkpoint, and returns the context's error, or that of saving.
func (r *Run) Loop(ctx context.Context, p Plan) error {
	for r.step < r.settings.Steps {
		if err := ctx.Err(); err != nil {
			if failed := r.save(p); failed != nil {
				return fmt.Errorf("the checkpoint after step %d: %w", r.step, failed)
			}
			return err
		}
		record, err := r.Next()
		if err != nil {
			return err
		}
		last := r.step == r.settings.Steps
		evaluates := r.task.Evaluate != nil && (last || p.Evaluate > 0 && r.step%p.Evaluate == 0)
		if last || evaluates {
			if err := r.vm.Sync(); err != nil {
				return err
			}
		}
		if evaluates {
			if record.Loads, err = r.loads(); err != nil {
				return err
			}
			if record.Scores, err = r.task.Evaluate(); err != nil {
				return err
			}
		}
		if p.Each != nil {
			if err := p.Each(record); err != nil {
				return err
			}
		}
		if last || p.Checkpoints.Due(int64(r.step)) {
			if err := r.save(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// save writes a checkpoint if there is a folder for them.
func (r *Run) save(p Plan) error {
	if p.Checkpoints.Path == "" {
		return nil
	}
	s, err := r.Checkpoint(p.Name)
	if err != nil {
		return err
	}
	_, err = p.Checkpoints.Save(s)
	return err
}
