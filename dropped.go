package fusec

import (
	"errors"
	"runtime"
	"time"

	"fusec/graph"
	"fusec/lowering"
)

// Programs that are dropped without Close give back what they hold: on the CPU the goroutines, and on a device all of it.
//
//	Machine ─► Program ─► owned ─► executable ◄─ leftovers, closed once nothing refers to owned any more
//	nodes ─► inner values ─► lastRun ─────────────┘
//
// A program that has handed out a tensor of its own, by [Program.Output], is not closed so: that may lie in memory of the
// device's. Neither is one with [WithWatchNonFinite], to which its executable refers.

// owned is an executable on a device. What uses the device keeps it alive.
type owned struct {
	lowering.Executable
	left    *leftovers
	dropped runtime.Cleanup
}

// leftovers are what is left of a program that was dropped. They do not refer to it.
type leftovers struct {
	exe     lowering.Executable
	program *lowering.Program
	last    *lastRun // that reads what the executable holds, or nil
}

// newOwned closes exe when it is dropped.
func newOwned(exe lowering.Executable, p *lowering.Program) *owned {
	o := &owned{Executable: exe, left: &leftovers{exe: exe, program: p}}
	o.dropped = runtime.AddCleanup(o, func(l *leftovers) { go l.close() }, o.left)
	return o
}

// close closes the executable. Nothing that the device has changed is brought back: the tensors are the user's, who may
// be using them.
func (l *leftovers) close() {
	_ = l.exe.Wait() // there is nobody to tell of errors
	if l.last != nil {
		l.last.drop()
	}
	for _, u := range l.program.Updates {
		_ = l.exe.Bind(u.Target, graph.NewTensor(l.program.Buffers[u.Target].Type))
	}
	_ = l.exe.Close()
}

// Bind implements lowering.Executable.
func (o *owned) Bind(buffer int, t *graph.Tensor) error {
	defer runtime.KeepAlive(o)
	return o.Executable.Bind(buffer, t)
}

// Run implements lowering.Executable.
func (o *owned) Run() error {
	defer runtime.KeepAlive(o)
	return o.Executable.Run()
}

// Start implements lowering.Executable.
func (o *owned) Start() error {
	defer runtime.KeepAlive(o)
	return o.Executable.Start()
}

// Wait implements lowering.Executable.
func (o *owned) Wait() error {
	defer runtime.KeepAlive(o)
	return o.Executable.Wait()
}

// Prefetch implements lowering.Executable.
func (o *owned) Prefetch(buffer int, t *graph.Tensor) (bool, error) {
	defer runtime.KeepAlive(o)
	return o.Executable.Prefetch(buffer, t)
}

// Sync implements lowering.Executable.
func (o *owned) Sync(buffers ...int) error {
	defer runtime.KeepAlive(o)
	return o.Executable.Sync(buffers...)
}

// Measure implements lowering.Executable.
func (o *owned) Measure(n int) ([]time.Duration, error) {
	defer runtime.KeepAlive(o)
	return o.Executable.Measure(n)
}

// Inspect implements lowering.Executable.
func (o *owned) Inspect() (*lowering.Inspection, error) {
	defer runtime.KeepAlive(o)
	return o.Executable.Inspect()
}

// Close implements lowering.Executable.
func (o *owned) Close() error {
	defer runtime.KeepAlive(o)
	o.dropped.Stop()
	return o.Executable.Close()
}

var errDropped = errors.New("the machine was dropped without Close, and what its last run has changed went with it")

// drop lets go of the device. What it has changed is not brought back, and values that need it cannot be computed.
func (l *lastRun) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for v, t := range l.stored {
		l.stored[v] = t.Clone()
	}
	l.sync = func(...int) error { return errDropped }
	_ = l.program.Close() // which reads what was stored
	l.program, l.fresh = nil, false
}
