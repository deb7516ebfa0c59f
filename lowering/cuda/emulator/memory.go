//go:build linux && (amd64 || arm64)

package emulator

// The device's memory: each allocation between pages that cannot be touched.

import (
	"bytes"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"fusec/lowering/cuda/driver"
)

// guard is how many bytes before and behind an allocation belong to nobody; see near in src/memory.h.
const guard = 64 << 10

// align is what addresses of allocations are multiples of.
const align = 256

// Poison is what fresh memory is filled with: NaNs of every width, −1 as an integer.
const Poison = 0xff

// slack is what the bytes are filled with that alignment leaves between an allocation and a guarded page.
const slack = 0xc5

// An allocation is [guard][room][guard][known]: a byte of known is 1 if the byte of the room was written.
type allocation struct {
	mapped unsafe.Pointer
	whole  uintptr // bytes mapped
	room   []byte  // its pages
	at     int     // where the allocation begins in the room
	data   []byte
	known  []byte // as long as data
}

func (a *allocation) ptr() driver.Ptr { return driver.Ptr(uintptr(unsafe.Pointer(&a.room[a.at]))) }

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// allocate maps memory for n bytes, more than none, whose end or beginning lies at a guarded page.
func allocate(n int, before bool) (*allocation, error) {
	page := unix.Getpagesize()
	room := roundUp(n, page)
	a := &allocation{whole: uintptr(2*guard + 2*room)}
	p, err := unix.MmapPtr(-1, 0, nil, a.whole, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	a.mapped = p
	a.room = unsafe.Slice((*byte)(unsafe.Add(p, guard)), room)
	known := unsafe.Slice((*byte)(unsafe.Add(p, 2*guard+room)), room)
	for _, part := range [][]byte{a.room, known} {
		if err := unix.Mprotect(part, unix.PROT_READ|unix.PROT_WRITE); err != nil {
			a.free()
			return nil, err
		}
	}
	if !before {
		a.at = room - roundUp(n, align)
	}
	fill(a.room, slack)
	a.data, a.known = a.room[a.at:a.at+n:a.at+n], known[:n]
	fill(a.data, Poison)
	return a, nil
}

func (a *allocation) free() error { return unix.MunmapPtr(a.mapped, a.whole) }

// intact tells whether nothing was written around the allocation.
func (a *allocation) intact() bool {
	near := func(b []byte) bool { return len(bytes.Trim(b, string([]byte{slack}))) == 0 }
	end := a.at + len(a.data)
	return near(a.room[max(0, a.at-align):a.at]) && near(a.room[end:min(len(a.room), end+align)])
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

// find gives the bytes of device memory from p on, and which of them are known.
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
