// Package link reaches an overlay: one interface for the simulator in a separate process, the simulator as a shared
// library, a serial line and a PCIe card's XDMA devices.
package link

import "context"

// Link is the way to one overlay: its registers and the external memory that it reads and writes. One goroutine uses it
// at a time. An error of a Link says which link failed and why; after it the link can only be closed, and another
// opened.
type Link interface {
	// Name is the name of the link, such as "simulator" or "serial:/dev/ttyUSB1".
	Name() string
	// ReadReg and WriteReg reach the register at a byte address (see package isa).
	ReadReg(address uint32) (uint32, error)
	WriteReg(address, value uint32) error
	// Read and Write copy bytes between the host and the overlay's external memory. Address and length may be anything
	// within MemoryBytes. Neither may be called while a program runs.
	Read(address uint32, p []byte) error
	Write(address uint32, p []byte) error
	// MemoryBytes is the size of external memory.
	MemoryBytes() int64
	// Wait lets the overlay go on until its status says done or error, and returns the status register. It gives up
	// with an error when the overlay does not answer within the link's time limit, or when ctx ends.
	Wait(ctx context.Context) (status uint32, err error)
	// Close releases the link; its process ends, its devices are closed.
	Close() error
}
