// Package driver says what executables want of a GPU, in the terms of CUDA's driver API. Package gpu implements it on
// gorgonia.org/cu, package emulator on the processor, for tests without a GPU.
//
// All methods may be called from any goroutine; calls on one Stream are ordered by the caller. Errors name the call and
// what the driver said; [ErrLost] tells those after which the GPU's memory is gone.
package driver

import (
	"errors"
	"time"
	"unsafe"

	kernels "fusec/kernels/cuda"
)

// Ptr is an address in a GPU's memory; 0 is none.
type Ptr uint64

// GPU is one device, opened: a context of its own.
type GPU interface {
	Chip() kernels.Chip
	// Alloc gives memory that begins at a multiple of 256 bytes; for no bytes the address 0. The error of a GPU that has
	// too little wraps [ErrOutOfMemory].
	Alloc(bytes int64) (Ptr, error)
	Free(Ptr) error
	// AllocHost gives host memory that the GPU can copy from and to while the processor does something else.
	AllocHost(bytes int64) (unsafe.Pointer, error)
	FreeHost(unsafe.Pointer) error
	// Memory is what the driver has left, and has in all.
	Memory() (free, total int64, err error)
	// Load takes an image that the compiler made for this chip.
	Load(image []byte) (Module, error)
	NewStream() (Stream, error)
	NewEvent() (Event, error)
	// EncodeMap fills 128 bytes with the tensor map of a tensor at base.
	EncodeMap(m *kernels.TensorMap, base Ptr, to *[128]byte) error
	// Close frees the context, and with it all that was not freed before.
	Close() error
}

// Module is a loaded image.
type Module interface {
	Function(entry string) (Function, error)
	Unload() error
}

// Function is an entry of a module.
type Function interface {
	// Resources are what the compiler gave the function.
	Resources() Resources
	// Occupancy is how many blocks run on a multiprocessor at once.
	Occupancy(block, shared int) (int, error)
}

// Resources of a function: registers per thread, and bytes.
type Resources struct{ Registers, Local, Shared, MaxThreads int }

// Stream is a queue of work.
type Stream interface {
	// CopyIn and CopyOut return when the copy is queued; host memory from AllocHost must stay as it is until it is done.
	CopyIn(dst Ptr, src unsafe.Pointer, bytes int64) error
	CopyOut(dst unsafe.Pointer, src Ptr, bytes int64) error
	Copy(dst, src Ptr, bytes int64) error
	Fill(dst Ptr, value byte, bytes int64) error
	// Launch starts a function with the one parameter that stands in params.
	Launch(f Function, grid [3]int, block, shared int, params []byte) error
	// BeginCapture records what follows instead of doing it, until EndCapture makes a graph of it.
	BeginCapture() error
	EndCapture() (Graph, error)
	Record(Event) error
	// Wait lets what follows begin only after the event.
	Wait(Event) error
	// Sync waits for all that was queued, and reports what failed in it.
	Sync() error
	Close() error
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
	// Compile returns an image for the chip, and what the compiler said. The error holds the compiler's messages, with
	// the lines of the source that they speak of.
	Compile(source string, chip kernels.Chip) (image []byte, log string, err error)
	// Version is part of what a cached image is found by.
	Version() string
}

// Errors that callers ask for.
var (
	ErrOutOfMemory = errors.New("the GPU has no memory left")
	// ErrLost says that the context is gone: a kernel accessed memory that it may not, or the GPU has failed. NVIDIA's
	// driver then serves the process no more, in no context: only a new process can use the GPU again.
	ErrLost = errors.New("the GPU's context is lost")
)
