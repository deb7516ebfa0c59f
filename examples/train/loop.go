package train

import (
	"bytes"
	"cmp"
	"context"
	"fmt"

	"fusec/graph/checkpoint"
	"fusec/kernels/group"
)

// Plan says what [Run.Loop] does besides steps.
type Plan struct {
	Name        string         // of the task, for checkpoints
	Checkpoints checkpoint.Dir // no Path, no checkpoints
	Evaluate    int            // interval in steps, and after the last; 0 for only after the last
	// Each, if not nil, gets the record of every step.
	Each func(Record) error
	// Joint says that a participant without a folder for checkpoints joins those of the participant that has one: the stages of a
	// pipeline each have their own weights.
	Joint bool
}

// Loop does the remaining steps, and saves checkpoints when they are due and after the last step. When ctx is
// cancelled, it finishes the current step, saves a checkpoint, and returns the context's error, or that of saving.
func (r *Run) Loop(ctx context.Context, p Plan) error {
	for r.step < r.settings.Steps {
		err := r.interrupted(ctx)
		if group.IsLost(err) {
			return err
		}
		if err != nil {
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

// staged reports whether participants of a group have a stage of the network each.
func (r *Run) staged() bool { return r.settings.Microbatches > 0 && r.settings.Group != nil }

// interrupted is the error of a context that is cancelled. The stages of a pipeline end together, as each is needed for the last
// checkpoint: they tell each other before each step.
func (r *Run) interrupted(ctx context.Context) error {
	if !r.staged() {
		return ctx.Err()
	}
	own, all := []byte{0}, make([]byte, r.settings.Group.Size())
	if ctx.Err() != nil {
		own[0] = 1
	}
	if err := r.settings.Group.All().Gather(own, all); err != nil {
		return fmt.Errorf("step %d: %w", r.step+1, err)
	}
	if bytes.IndexByte(all, 1) >= 0 {
		return cmp.Or(ctx.Err(), context.Canceled)
	}
	return nil
}

// save writes a checkpoint if there is a folder for them.
func (r *Run) save(p Plan) error {
	if p.Checkpoints.Path == "" && !(p.Joint && r.staged()) {
		return nil
	}
	s, err := r.Checkpoint(p.Name)
	if err != nil || p.Checkpoints.Path == "" {
		return err
	}
	_, err = p.Checkpoints.Save(s)
	return err
}
