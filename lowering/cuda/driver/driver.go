// Package driver says what executables need of a GPU, in the terms of CUDA's driver API. Package gpu implements it on
// gorgonia.org/cu, package emulator on the processor, for tests without a GPU.
//
// All methods may be called from any goroutine; calls on one Stream are ordered by the caller. Errors name the call and
// have the driver's message; [ErrLost] marks those after which the GPU's memory is lost.
package driver

import (
	"errors"
	"runtime"
	"time"
	"unsafe"

	kernels "fusec/kernels/cuda"
	"fusec/kernels/group"
)

// Ptr is an address in a GPU's memory; 0 is none.
type Ptr uint64

// GPU is an opened device, with a separate context.
type GPU interface {
	Chip() kernels.Chip
	// Alloc allocates memory that begins at a multiple of 256 bytes; for 0 bytes it returns the address 0. If the GPU
	// has too little memory, the error wraps [ErrOutOfMemory].
	Alloc(bytes int64) (Ptr, error)
	Free(Ptr) error
	// AllocHost allocates pinned host memory, from and to which the GPU can copy while the processor does other work.
	AllocHost(bytes int64) (unsafe.Pointer, error)
	FreeHost(unsafe.Pointer) error
	// Memory is the driver's free and total memory.
	Memory() (free, total int64, err error)
	// Load loads an image that the compiler made for this chip.
	Load(image []byte) (Module, error)
	// OpenFile opens a file whose bytes go straight into the GPU's memory, without a copy on the host. The error says why they
	// do not.
	OpenFile(path string) (File, error)
	NewStream() (Stream, error)
	// NewUrgentStream makes a stream whose work is begun before that of others, where the GPU has room for one of them.
	NewUrgentStream() (Stream, error)
	// StreamAt is a stream that others have made on the GPU, in the context that the GPU has; its Close leaves it open. The
	// handle is the driver's; 0 is the default stream.
	StreamAt(handle uintptr) (Stream, error)
	NewEvent() (Event, error)
	// EncodeMap fills 128 bytes with the tensor map of a tensor at base.
	EncodeMap(m *kernels.TensorMap, base Ptr, to *[128]byte) error
	// Join makes a communicator of the participants of a team, each of which calls it with a GPU of its own. An exchange
	// takes the GPU's threads of at most some blocks; 0 leaves the number to the implementation.
	Join(t *group.Team, most int) (Comm, error)
	// Close frees the context with everything in it.
	Close() error
}

// A Borrower is a GPU that must be told of memory that others have allocated before its kernels use it. Other GPUs find out by
// themselves.
type Borrower interface {
	// Borrow tells of memory until the function that it returns is called.
	Borrow(list []Borrowed) (giveBack func(), err error)
}

// Borrowed is a part of others' memory. Parts may overlap.
type Borrowed struct {
	At      Ptr
	Bytes   int64
	Written bool // it has values
}

// Comm is participants whose GPUs exchange values. All come to the same exchanges in the same order.
type Comm interface {
	// Queue queues exchanges on a stream. None reads what another writes, so that they may be made as one.
	Queue(s Stream, list []Exchange) error
	// Copies reports whether copy engines make large exchanges, which so take hardly any multiprocessors from launches beside them.
	Copies() bool
	// Failed is the error of an exchange that has been queued, if one is known. It waits for nothing.
	Failed() error
	// Abort ends the exchanges that others do not come to. Only Close may be called after it, when they have ended.
	Abort() error
	// Close may wait until all participants have come to it, unless the exchanges were aborted.
	Close() error
}

// Exchange is an exchange of the value at X, whose result goes to Y.
type Exchange struct {
	*kernels.Exchange
	X, Y Ptr
}

// File is a file that the GPU reads. Several goroutines may use it.
type File interface {
	// Read reads bytes from off on to dst, and returns when they are there. A file that ends before is an error.
	Read(dst Ptr, off, bytes int64) error
	Close() error
}

// Module is a loaded image.
type Module interface {
	Function(entry string) (Function, error)
	Unload() error
}

// Function is an entry of a module.
type Function interface {
	// Resources are the resources that the compiler assigned to the function.
	Resources() Resources
	// Occupancy is how many blocks run on a multiprocessor at the same time.
	Occupancy(block, shared int) (int, error)
}

// An EarlyFunction may be told that its launches wait by themselves for those before them. While work is recorded, they then
// begin before those have ended.
type EarlyFunction interface {
	Function
	StartEarly()
}

// A TogetherFunction may be told that the blocks of its launches wait for one another: all run at the same time, or none does.
type TogetherFunction interface {
	Function
	StartTogether()
}

// A RoundsFunction may be told that a block goes over what other blocks leave. Its launches have at most as many blocks, along the
// first axis of the grid, as run at the same time.
type RoundsFunction interface {
	Function
	StartRounds()
}

// Resources of a function: registers per thread, and bytes.
type Resources struct{ Registers, Local, Shared, MaxThreads int }

// Stream is a queue of work.
type Stream interface {
	// CopyIn and CopyOut return when the copy is queued; host memory from AllocHost must not change until it is done.
	CopyIn(dst Ptr, src unsafe.Pointer, bytes int64) error
	CopyOut(dst unsafe.Pointer, src Ptr, bytes int64) error
	Copy(dst, src Ptr, bytes int64) error
	Fill(dst Ptr, value byte, bytes int64) error
	// Launch starts a function with one parameter, whose bytes are params.
	Launch(f Function, grid [3]int, block, shared int, params []byte) error
	// BeginCapture records the following work instead of doing it, until EndCapture makes a graph of it.
	BeginCapture() error
	EndCapture() (Graph, error)
	Record(Event) error
	// Wait delays the following work until after the event.
	Wait(Event) error
	// Sync waits for all queued work, and reports its failures.
	Sync() error
	// Done reports whether all queued work is done. It waits for nothing.
	Done() (bool, error)
	// Recording reports whether work is recorded, by BeginCapture or by others.
	Recording() (bool, error)
	Close() error
}

// A Holder is a stream that can be held.
type Holder interface {
	// Hold has what is queued from then on begin when the word of 32 bits, of pinned memory, is 1. It is 0 then.
	Hold(word unsafe.Pointer) error
}

// Graph is recorded work.
type Graph interface {
	Launch(Stream) error
	Close() error
}

// Event is a mark in a stream.
type Event interface {
	// Since is the time between two events that have passed.
	Since(earlier Event) (time.Duration, error)
	Close() error
}

// Compiler makes images of sources.
type Compiler interface {
	// Compile returns an image for the chip, and the compiler's log. The error has the compiler's messages, with the
	// lines of the source that they refer to.
	Compile(source string, chip kernels.Chip) (image []byte, log string, err error)
	// Version is part of the key of a cached image.
	Version() string
}

// A Batcher is a compiler that compiles many sources together in less time than one by one.
type Batcher interface {
	// Batch is how many goroutines should call Compile at a time.
	Batch() int
}

// BatchOf is how many goroutines should compile at a time: what the compiler says, or the number of processors.
func BatchOf(c Compiler) int {
	if b, ok := c.(Batcher); ok {
		return b.Batch()
	}
	return runtime.GOMAXPROCS(0)
}

// Errors that callers check for.
var (
	ErrOutOfMemory = errors.New("the GPU has no memory left")
	// ErrLost means that the context is lost: a kernel made an invalid memory access, or the GPU has failed. NVIDIA's
	// driver then refuses all further work of the process in every context. Only a new process can use the GPU again.
	ErrLost = errors.New("the GPU's context is lost")
)
