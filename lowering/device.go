package lowering

import (
	"errors"
	"fmt"
	"io"
	"time"

	"fusec/graph"
	"fusec/graph/trace"
)

// Device makes programs executable on one kind of hardware. A device embeds [Defaults], and overrides the methods in
// which it differs.
type Device interface {
	// Name is the target's name, such as "cpu".
	Name() string
	// Accepts reports whether the device has a kernel for op with operands and results of these types. The error says
	// what is missing.
	Accepts(op graph.Op, args, results []graph.Type) error
	// Lowering is the options with which programs are lowered for the device.
	Lowering() []Option
	// Place sets Device and Reason of each launch that runs elsewhere, and Refusal if the program does not fit on the
	// device.
	Place(p *Program)
	// Describe adds information on the device, and on the program that it has placed, to the record of a compilation.
	Describe(t *trace.Trace, p *Program)
	// Compile makes an executable. The error names the launch that cannot be compiled.
	Compile(p *Program) (Executable, error)
	// Shared is a value that is equal, by [reflect.DeepEqual], for two devices that can use each other's programs and
	// [Spare]s; nil if a program serves one executable only. If it is not nil, executables that are dropped without
	// Close release their resources.
	Shared() any
	// Close releases the device's resources that no executable uses.
	Close() error
}

// CloseAll closes all of a list.
func CloseAll[T io.Closer](list []T) error {
	var errs []error
	for _, c := range list {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// Defaults is a device that runs all launches itself, adds no information and has no resources.
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
// asynchronous, has no separate memory or clock, or counts nothing.
type Executable interface {
	// Bind gives an Input, Param or State buffer its memory. The tensor is read in place by each run, and written in
	// place by an update; a tensor that is updated must not be bound to another buffer as well.
	Bind(buffer int, t *graph.Tensor) error
	// Run executes all launches, and then, if none failed, the updates. It leaves out the prepared part if that has run
	// since the parameters that it reads were bound, unless a function watches. If a launch failed, all state is unchanged.
	// The error names the launch and the user's node. After the first run it allocates nothing, except in user-defined
	// operations.
	Run() error
	// Start is the first half of Run: it returns when the run has started and all bound tensors have been read, so that
	// they may be changed. Outputs are undefined until Wait, the second half, which returns the error of the run.
	// Without a started run Wait does nothing. Other methods that return values wait, too. On a device that computes in
	// the caller's goroutine Start does all the work.
	Start() error
	Wait() error
	// Prefetch copies the value that a buffer, such as an Input, has from the next run on, while the started run
	// computes. The tensor may be changed as soon as Prefetch returns. Binding the buffer, or another Prefetch,
	// replaces the value. Prefetch reports false if the device has no memory to copy to.
	Prefetch(buffer int, t *graph.Tensor) (bool, error)
	// OpenFile opens a file for PrefetchFile. The error says why the device does not read it. Opening it again does nothing.
	OpenFile(path string) error
	// PrefetchFile is Prefetch of the value whose bytes are parts of open files, one after another. It returns when they have
	// been read into the device's memory. If it fails, the buffer has no value until another is given.
	PrefetchFile(buffer int, parts []graph.FilePart) error
	// Sync copies the updated values of the given State and Param buffers, or of all if none is given, to the tensors
	// that are bound to them. Until then an executable with separate memory may leave the tensors unchanged; on the CPU
	// they are always current. Binding a buffer again sets it to the tensor's value. Close syncs, and after it Sync
	// does nothing.
	Sync(buffers ...int) error
	// Watch makes runs call check after every launch, with a function that returns the launch's operands and results;
	// the tensors are valid until check returns. An error of check ends the run before any update, if the program was
	// lowered with [CopyUpdates]. Watch(nil) turns it off. A watched run allocates.
	Watch(check func(l *Launch, value func(View) (*graph.Tensor, error)) error)
	// Output is the value of an Output buffer after a run, valid until the next one. The tensor is the same after each run,
	// unless BindOutput gives another, and can be had before the first.
	Output(buffer int) *graph.Tensor
	// BindOutput gives an Output buffer its memory: from the next run on, runs write into the tensor. It reports false if the
	// device writes results into memory of its own.
	BindOutput(buffer int, t *graph.Tensor) (bool, error)
	// Profile turns the measurement of every launch on or off for later runs. Times returns the times of the last run; they
	// are 0 for the prepared part if that run left it out.
	Profile(on bool)
	Times() []time.Duration
	// Memory is the executable's memory, without bound tensors.
	Memory() Memory
	// Measure runs the launches and updates n times on the values that the device holds, without Run's copies from and
	// to the host, and returns the time of each by the device's clock. It requires a Run before. It returns
	// [ErrNoClock] if the device has no clock.
	Measure(n int) ([]time.Duration, error)
	// TakeState gives a State the value that another executable has of the same State, in its buffer of, and to whose tensor it
	// is bound: without a way over the tensor. It reports false if it cannot, or the tensor has the value.
	TakeState(buffer int, from Executable, of int) (bool, error)
	// Prepare runs the prepared part, if it has not run with the present parameters, and lets go of the tensors of those that
	// nothing else reads. After one of these is bound again, all that the prepared part reads have to be. A device that copies
	// parameters may do nothing.
	Prepare() error
	// TakePrepared makes the executable read the Prepared values of another one, which has run its prepared part, in their memory.
	// Parameters that only the prepared part reads need no value then, until one of them is bound. It reports false, and does
	// nothing, if one of the values is not among those of the other.
	TakePrepared(from Executable) bool
	// Inspect describes the device and the program's use of it; nil for devices without separate memory.
	Inspect() (*Inspection, error)
	// Timeline describes the last measured run, if the device records more than Times.
	Timeline() []Span
	// Counts are what the device has counted in the last run; none if it counts nothing.
	Counts() Counts
	// Rounded is how the device keeps a buffer's numbers by itself: as multiples of step from lo to hi. The step is 0 where
	// they are as the buffer's type has them, or where it is not known.
	Rounded(buffer int) (step, lo, hi float64)
	Close() error
	// Spare is the part of a closed executable that the next one can reuse, or nil. It is called once, and only Output
	// may be called after it.
	Spare() Spare
}

// ErrNoClock is returned by devices that are timed by running programs on them.
var ErrNoClock = errors.New("the device has no clock of its own; time runs")

// ExecutableDefaults implements methods of an [Executable] that computes in the caller's goroutine and memory.
type ExecutableDefaults struct{}

// Wait implements [Executable].
func (ExecutableDefaults) Wait() error { return nil }

// Prefetch implements [Executable].
func (ExecutableDefaults) Prefetch(int, *graph.Tensor) (bool, error) { return false, nil }

// errNoFiles is the error of devices that read no files.
var errNoFiles = errors.New("programs on this target read no files by themselves")

// OpenFile implements [Executable].
func (ExecutableDefaults) OpenFile(string) error { return errNoFiles }

// PrefetchFile implements [Executable].
func (ExecutableDefaults) PrefetchFile(int, []graph.FilePart) error { return errNoFiles }

// BindOutput implements [Executable].
func (ExecutableDefaults) BindOutput(int, *graph.Tensor) (bool, error) { return false, nil }

// TakeState implements [Executable].
func (ExecutableDefaults) TakeState(int, Executable, int) (bool, error) { return false, nil }

// Prepare implements [Executable].
func (ExecutableDefaults) Prepare() error { return nil }

// TakePrepared implements [Executable].
func (ExecutableDefaults) TakePrepared(Executable) bool { return false }

// Measure implements [Executable].
func (ExecutableDefaults) Measure(int) ([]time.Duration, error) { return nil, ErrNoClock }

// Inspect implements [Executable].
func (ExecutableDefaults) Inspect() (*Inspection, error) { return nil, nil }

// Timeline implements [Executable].
func (ExecutableDefaults) Timeline() []Span { return nil }

// Counts implements [Executable].
func (ExecutableDefaults) Counts() Counts { return Counts{} }

// Rounded implements [Executable].
func (ExecutableDefaults) Rounded(int) (step, lo, hi float64) { return 0, 0, 0 }

// Spare implements [Executable].
func (ExecutableDefaults) Spare() Spare { return nil }

// A LaunchError is an error of a launch, which ended the run.
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

// A Spare is the kernels and memory of a closed executable. Another executable can reuse them, which is much cheaper
// than compiling.
type Spare interface {
	// Executable makes an executable for a program that differs from that of the closed one only in names. It is called
	// once.
	Executable(p *Program) Executable
	// Bytes is the memory that is kept.
	Bytes() int64
}

// Counts are what a device has counted. The target's package says which measures there are.
type Counts struct {
	Program  trace.Measures   // of the program, since it was made
	Launches []trace.Measures // of each launch in the last run; nil on devices that count nothing
}

// Memory is the memory that an executable holds, in bytes.
type Memory struct {
	Arena   int64 // of intermediate values, which share it
	Outputs int64
	Scratch int64 // of the kernels, which share it
	Kernels int64 // kept by kernels between runs: packed weights, partial sums
	// Prepared is the memory of what the prepared part has made.
	Prepared int64
}

// Add adds the memory of another executable.
func (m *Memory) Add(n Memory) {
	m.Arena += n.Arena
	m.Outputs += n.Outputs
	m.Scratch += n.Scratch
	m.Kernels += n.Kernels
	m.Prepared += n.Prepared
}

// Bytes is all of it.
func (m Memory) Bytes() int64 { return m.Arena + m.Outputs + m.Scratch + m.Kernels + m.Prepared }
