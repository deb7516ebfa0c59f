package lowering

import (
	"errors"
	"fmt"
	"time"

	"fusec/graph"
	"fusec/graph/trace"
)

// Device makes programs executable on one kind of hardware. A device embeds [Defaults], and has of the methods that
// those give only the ones in which it differs.
type Device interface {
	// Name is the target's name, such as "cpu".
	Name() string
	// Accepts reports whether the device has a kernel for op with operands and results of these types. The error says
	// what it lacks.
	Accepts(op graph.Op, args, results []graph.Type) error
	// Lowering is how programs are lowered for the device.
	Lowering() []Option
	// Place says of each launch of the program, in its Device and Reason, whether it runs elsewhere, and in Refusal if the
	// device has no room for the program.
	Place(p *Program)
	// Describe adds to the record of a compilation what the device says of itself and of the program that it has placed.
	Describe(t *trace.Trace, p *Program)
	// Compile makes an executable. The error names the launch that cannot be compiled.
	Compile(p *Program) (Executable, error)
	// Shared is a value that two devices have alike, by [reflect.DeepEqual], if each can take over the programs and the
	// [Spare] of the other; nil if a program serves one executable only. Executables of a device that shares give back what
	// they hold when they are dropped without Close.
	Shared() any
	// Close releases what the device holds and no executable has taken over.
	Close() error
}

// Defaults is a device that runs all launches itself, says nothing and holds nothing.
type Defaults struct{}

// Lowering implements [Device].
func (Defaults) Lowering() []Option { return nil }

// Place implements [Device].
func (Defaults) Place(*Program) {}

// Describe implements [Device].
func (Defaults) Describe(*trace.Trace, *Program) {}

// Shared implements [Device].
func (Defaults) Shared() any { return nil }

// Close implements [Device].
func (Defaults) Close() error { return nil }

// Executable is a program ready to run. One goroutine uses it at a time. It embeds [ExecutableDefaults] if it is not
// asynchronous, has no memory and clock of its own, or counts nothing.
type Executable interface {
	// Bind gives an Input, Param or State buffer its memory. The tensor is read in place by each run, and written in
	// place by an update; one that is updated may not be bound to another buffer as well.
	Bind(buffer int, t *graph.Tensor) error
	// Run executes all launches, and then, if none failed, the updates; if one failed, all state is as it was. The error names the launch and the user's
	// node. After the first run it allocates nothing, the user's own operations aside.
	Run() error
	// Start is the first half of Run: it returns when the run is on its way and all that is bound has been read, so that
	// it may be changed. The Outputs hold nothing until Wait, the second half, which gives the error of the run; without a
	// run that was started it does nothing. What else asks for values waits, too. On a device that computes in the caller's
	// goroutine Start does all the work.
	Start() error
	Wait() error
	// Prefetch copies what a buffer that each run reads again, such as an Input, is to hold from the next run on, while the
	// run that was started computes. The tensor may be changed as soon as it returns. Binding the buffer takes it back; so
	// does another Prefetch. It reports false where there is nothing to copy to.
	Prefetch(buffer int, t *graph.Tensor) (bool, error)
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
	// Measure runs the launches and updates n times on the values that the device holds, without the copies from and to
	// the host that Run makes, and returns the time of each by the device's clock. A Run has to come before. It returns
	// [ErrNoClock] where the device has no clock.
	Measure(n int) ([]time.Duration, error)
	// Inspect describes the device, and what the program takes of it; nil for devices without memory of their own.
	Inspect() (*Inspection, error)
	// Timeline is what the last run did that was measured, if the device tells more than Times.
	Timeline() []Span
	// Counts are those of the last run, launch by launch; nil where the device counts nothing. The errors are known once a
	// run was profiled.
	Counts() []Count
	// Quantised is how often weights were made integers: once, and again for each run that finds others; 0 for devices
	// that compute in floating point.
	Quantised() int
	Close() error
	// Spare is what the closed executable leaves to the next one, or nil. It is called once, and nothing else after it but
	// Output.
	Spare() Spare
}

// ErrNoClock is returned by devices that are timed by running programs on them.
var ErrNoClock = errors.New("the device has no clock of its own; time runs")

// ExecutableDefaults is what an [Executable] has that computes in the caller's goroutine and memory.
type ExecutableDefaults struct{}

// Wait implements [Executable].
func (ExecutableDefaults) Wait() error { return nil }

// Prefetch implements [Executable].
func (ExecutableDefaults) Prefetch(int, *graph.Tensor) (bool, error) { return false, nil }

// Measure implements [Executable].
func (ExecutableDefaults) Measure(int) ([]time.Duration, error) { return nil, ErrNoClock }

// Inspect implements [Executable].
func (ExecutableDefaults) Inspect() (*Inspection, error) { return nil, nil }

// Timeline implements [Executable].
func (ExecutableDefaults) Timeline() []Span { return nil }

// Counts implements [Executable].
func (ExecutableDefaults) Counts() []Count { return nil }

// Quantised implements [Executable].
func (ExecutableDefaults) Quantised() int { return 0 }

// Spare implements [Executable].
func (ExecutableDefaults) Spare() Spare { return nil }

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

// A Spare is the kernels and memory of a closed executable, which another one takes over at much less cost than to compile
// them. Nothing else is shared with it.
type Spare interface {
	// Executable is one for a program that differs from that of the closed one at most in names. It is called once.
	Executable(p *Program) Executable
	// Bytes is the memory that is kept.
	Bytes() int64
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
