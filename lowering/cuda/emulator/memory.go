//go:build linux && (amd64 || arm64)

package emulator

// The device's memory: each allocation between pages that cannot be touched. Loads and stores of kernels are checked to
// the byte. The pages separate allocations, so that an invalid address shows which allocation was meant.

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"fusec/lowering/cuda/driver"
)

// guard is the number of unused bytes before and after an allocation; see near in src/memory.h.
const guard = 64 << 10

// An allocation is [guard][data][guard][known], in whole pages: a byte of known is 1 if the byte of data was written.
type allocation struct {
	mapped unsafe.Pointer
	whole  uintptr // bytes mapped
	data   []byte
	known  []byte
}

func (a *allocation) ptr() driver.Ptr { return driver.Ptr(uintptr(unsafe.Pointer(&a.data[0]))) }

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// allocate maps memory for n > 0 bytes.
func allocate(n int) (*allocation, error) {
	room := roundUp(n, unix.Getpagesize())
	a := &allocation{whole: uintptr(2*guard + 2*room)}
	p, err := unix.MmapPtr(-1, 0, nil, a.whole, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	a.mapped = p
	parts := [2][]byte{}
	for i, at := range []int{guard, 2*guard + room} {
		parts[i] = unsafe.Slice((*byte)(unsafe.Add(p, at)), room)
		if err := unix.Mprotect(parts[i], unix.PROT_READ|unix.PROT_WRITE); err != nil {
			return nil, errors.Join(err, a.free())
		}
	}
	a.data, a.known = parts[0][:n:n], parts[1][:n:n]
	fill(a.data, Poison)
	return a, nil
}

// free unmaps the memory, unless it is borrowed.
func (a *allocation) free() error {
	if a.mapped == nil {
		return nil
	}
	return unix.MunmapPtr(a.mapped, a.whole)
}

func fill(b []byte, x byte) {
	if len(b) == 0 {
		return
	}
	b[0] = x
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// find returns the bytes of device memory from p on, and which of them are known.
func (g *gpu) find(p driver.Ptr, n int64) (data, known []byte, err error) {
	i, found := slices.BinarySearchFunc(g.memory, p, func(a *allocation, p driver.Ptr) int {
		switch q := a.ptr(); {
		case p < q:
			return 1
		case p >= q+driver.Ptr(len(a.data)):
			return -1
		}
		return 0
	})
	if n == 0 {
		return nil, nil, nil
	}
	if !found {
		return nil, nil, fmt.Errorf("%#x is no address of the device", uint64(p))
	}
	a := g.memory[i]
	at := int(p - a.ptr())
	if n < 0 || n > int64(len(a.data)-at) {
		return nil, nil, fmt.Errorf("%d bytes from byte %d of an allocation of %d", n, at, len(a.data))
	}
	return a.data[at : at+int(n)], a.known[at : at+int(n)], nil
}
