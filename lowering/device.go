package lowering

import (
	"fmt"
	"time"

	"fusec/graph"
)

// Device makes programs executable on one kind of hardware.
type Device interface {
	// Name is the target's name, such as "cpu".
	Name() string
	// Accepts reports whether the device has a kernel for op with operands and results of these types. The error says
	// what it lacks.
	Accepts(op graph.Op, args, results []graph.Type) error
	// Compile makes an executable. The error names the launch that cannot be compiled.
	Compile(p *Program) (Executable, error)
}

// A Placer is a device that has not got a kernel for everything.
type Placer interface {
	// Place says of each launch of the program, in its Device and Reason, whether it runs elsewhere, and in Refusal if the
	// device has not got room for the program.
	Place(p *Program)
}

// A Noter is a device with something to tell of a program that it has placed.
type Noter interface{ Notes(p *Program) []string }

// Executable is a program ready to run. One goroutine uses it at a time.
type Executable interface {
	// Bind gives an Input, Param or State buffer its memory. The tensor is read in place by each run, and written in
	// place by an update; one that is updated may not be bound to another buffer as well.
	Bind(buffer int, t *graph.Tensor) error
	// Run executes all launches, and then, if none failed, the updates; if one failed, all state is as it was. The error names the launch and the user's
	// node. After the first run it allocates nothing, the user's own operations aside.
	Run() error
	// Sync brings what updates have written to the given State and Param buffers, to all of them if none is given, back to
	// the tensors that are bound to them. Until then an executable that keeps values in memory of its own may leave the
	// tensors as they are; on the CPU they are always current. Binding a buffer again gives it the tensor's value. Close
	// syncs, and after it Sync does nothing.
	Sync(buffers ...int) error
	// Watch makes runs call check after every launch, with a function that reads what the launch read and wrote; the
	// tensors hold until check returns. Its error ends the run before any update, if the program was lowered with
	// [CopyUpdates]. Nil stops it. A run that is watched allocates.
	Watch(check func(l *Launch, value func(View) (*graph.Tensor, error)) error)
	// Output is the value of an Output buffer after a run, valid until the next one.
	Output(buffer int) *graph.Tensor
	// Profile makes runs measure every launch from now on, or stop doing so; Times are those of the last run.
	Profile(on bool)
	Times() []time.Duration
	// Memory is what the executable holds besides what is bound to it.
	Memory() Memory
	Close() error
}

// A LaunchError is why a run ended before its last launch.
type LaunchError struct {
	Launch int // its number, from 0
	Node   *graph.Node
	Err    error
}

// Error names the launch, counted from 1, and the user's node.
func (e *LaunchError) Error() string {
	return fmt.Sprintf("launch %d, %s: %v", e.Launch+1, e.Node.Where(), e.Err)
}

// Unwrap is the kernel's own error.
func (e *LaunchError) Unwrap() error { return e.Err }

// A Recycler is an Executable whose kernels another one can take over when it is closed, which costs much less than to
// compile them.
type Recycler interface {
	// Recycle is Close, and gives what the next executable can be made of; nil if nothing can. The closed executable keeps
	// its outputs, and nothing else is shared with the next one.
	Recycle() (Spare, error)
}

// A Spare is what a closed executable has left.
type Spare interface {
	// Executable is one for a program that differs from that of the closed one at most in names. It is called once.
	Executable(p *Program) Executable
	// Bytes is the memory that is kept.
	Bytes() int64
}

// A Starter is an Executable on a device that computes by itself once it has been told what: the processor is free until
// the run is waited for.
type Starter interface {
	// Start is the first half of Run: it returns when the run is on its way and all that is bound has been read, so that
	// it may be changed. The Outputs hold nothing until Wait, the second half, which gives the error of the run; without a
	// run that was started it does nothing. What else asks for values waits, too.
	Start() error
	Wait() error
	// Prefetch copies what a buffer that each run reads anew, such as an Input, is to hold from the next run on, while the
	// one that was started computes. The tensor may be changed as soon as it returns. Binding the buffer takes it back; so
	// does another Prefetch.
	Prefetch(buffer int, t *graph.Tensor) error
}

// A Measurer is an Executable on a device that has memory and a clock of its own.
type Measurer interface {
	// Measure runs the launches and updates n times on the values that the device holds, without the copies from and to
	// the host that Run makes, and returns the time of each by the device's clock. A Run has to come before.
	Measure(n int) ([]time.Duration, error)
}

// A Counter is an Executable on a device that counts cycles, and rounds to fewer digits than the program has.
type Counter interface {
	// Counts are those of the last run, launch by launch; the errors are known once a run was profiled.
	Counts() []Count
	// Quantised is how often weights were made integers: once, and again for each run that finds others.
	Quantised() int
}

// Count is what the device counted of a launch.
type Count struct {
	Cycles   int64 // that it took, what it did beside the launch before not counted twice
	Multiply int64 // of them, how many the multipliers worked in
	// MaxError and RMSError are by how much the results depart from those of the float program: the greatest difference,
	// and the root of the mean square, both as parts of the range of the values.
	MaxError, RMSError float64
}

// Memory is the memory that an executable holds, in bytes.
type Memory struct {
	Arena   int64 // of intermediate values, which share it
	Outputs int64
	Scratch int64 // of the kernels, which share it
	Kernels int64 // what they keep between runs: packed weights, partial sums
}

// Bytes is all of it.
func (m Memory) Bytes() int64 { return m.Arena + m.Outputs + m.Scratch + m.Kernels }
