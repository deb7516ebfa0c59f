package fusec

import (
	"fmt"

	"fusec/lowering"
)

// A QueuedRun is a run in the caller's memory on the program's device; see [Program.Queue]. Addresses are the device's, and
// multiples of [lowering.QueueAlign].
type QueuedRun struct {
	Stream  uintptr // the device's handle of a stream, such as a CUstream; 0 is the default stream
	Scratch uintptr // where [Program.QueueBytes] bytes begin, which are the run's until it has ended
	// Where the elements of the inputs and outputs are, by name: contiguous, in row-major order. Outputs do not overlap with
	// anything.
	Inputs, Outputs map[string]uintptr
}

// QueueBytes is the size of the memory that a run of [Program.Queue] needs for temporary values, in bytes.
func (p *Program) QueueBytes() (int64, error) {
	q, ok := lowering.QueuerOf(p.exe)
	if !ok {
		return 0, p.notQueued()
	}
	return q.QueueBytes(), nil
}

func (p *Program) notQueued() error {
	return fmt.Errorf("target %q was not compiled for runs in the caller's memory, which cuda.Queued of lowering/cuda asks for",
		p.cfg.target)
}

// Queue queues a run in a stream of the caller's, on memory of the caller's, and returns before the run has ended. It is for
// programs of target cuda with the option cuda.Queued: they share a GPU with another library without copies. Parameters are
// given by [Program.Set] as usual. Runs must not overlap: who queues them in several streams has one wait for another. What
// goes wrong in a run, such as an index that is out of range, is the error of a later Queue, or of [Program.Wait], which
// waits for all runs. Streams must live until the program is closed.
func (p *Program) Queue(r *QueuedRun) error {
	q, ok := lowering.QueuerOf(p.exe)
	if !ok {
		return p.notQueued()
	}
	if p.queued.At == nil {
		p.queued.At = make([]uintptr, len(p.program.Buffers))
	}
	run := &p.queued
	run.Stream, run.Scratch = r.Stream, r.Scratch
	clear(run.At)
	for name, at := range r.Inputs {
		i, ok := p.named[name]
		switch _, unread := p.unread[name]; {
		case ok && p.program.Buffers[i].Role == lowering.Input:
			run.At[i] = at
		case !unread:
			return fmt.Errorf("the program has no input %q", name)
		}
	}
	for name, at := range r.Outputs {
		i, ok := p.outputs[name]
		if !ok {
			return fmt.Errorf("the program has no output %q", name)
		}
		run.At[i] = at
	}
	return p.explain(q.Queue(run))
}
