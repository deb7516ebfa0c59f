//go:build linux && (amd64 || arm64)

package emulator

import (
	"cmp"
	"slices"
	"unsafe"

	"fusec/lowering/cuda/driver"
)

var _ driver.Borrower = (*gpu)(nil)

// Borrow implements [driver.Borrower]: kernels may use memory of the process, in which addresses are the device's. Parts that
// overlap become one. What is the device's own stays that.
func (g *gpu) Borrow(list []driver.Borrowed) (giveBack func(), err error) {
	list = slices.DeleteFunc(slices.Clone(list), func(b driver.Borrowed) bool { return b.Bytes == 0 })
	slices.SortFunc(list, func(a, b driver.Borrowed) int { return cmp.Compare(a.At, b.At) })
	var all []*allocation
	for len(list) > 0 {
		at, end, n := list[0].At, driver.Ptr(0), 0
		for ; n < len(list) && (n == 0 || list[n].At < end); n++ {
			end = max(end, list[n].At+driver.Ptr(list[n].Bytes))
		}
		a := &allocation{data: memoryAt(uintptr(at), int(end-at)), known: make([]byte, end-at)}
		for _, b := range list[:n] {
			if b.Written {
				fill(a.known[b.At-at:][:b.Bytes], 1)
			}
		}
		all = append(all, a)
		list = list[n:]
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.alive("Borrow"); err != nil {
		return nil, err
	}
	for _, a := range all {
		if _, _, err := g.find(a.ptr(), int64(len(a.data))); err != nil { // not the device's own
			g.insert(a)
		}
	}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.giveBack(all)
	}, nil
}

// giveBack ends what Borrow began.
func (g *gpu) giveBack(all []*allocation) {
	for _, a := range all {
		if i := slices.Index(g.memory, a); i >= 0 {
			g.remove(i)
		}
	}
}

// memoryAt is n bytes of the process's memory.
func memoryAt(at uintptr, n int) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), n)
}
