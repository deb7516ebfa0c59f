// Package pool keeps freed memory of a GPU and reuses it: allocating and freeing in the driver is slow, and freeing
// waits for the GPU. A program allocates one block for everything on the GPU. The pool is for consecutive programs of a
// process, which use it through [Shared].
package pool

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"unsafe"

	"fusec/lowering/cuda/driver"
)

// Pool is a GPU whose Alloc, Free, AllocHost and FreeHost keep what is freed. Sizes are rounded up to classes, by an
// eighth at most above 16 MiB; a block is reused only for its class. If the GPU or the host has no memory left, all
// kept memory is returned to the driver, and the allocation is tried again with the exact size.
//
// Memory may be reused as soon as it is freed: free it after the work that uses it, or if its next user queues work on
// the same stream.
type Pool struct {
	driver.GPU
	device shelf[driver.Ptr]
	host   shelf[unsafe.Pointer]
}

var _ driver.GPU = (*Pool)(nil)

// Use is the memory of a pool, in bytes, with sizes rounded to classes.
type Use struct {
	Used int64 // allocated and not freed
	Kept int64 // freed, and not returned to the driver
	// Peak is the maximum of Used since the pool was made. PeakHeld is the maximum of the memory from the driver,
	// including kept memory.
	Peak, PeakHeld int64
	Calls          int64 // number of the driver's allocations
}

// New makes a pool of a GPU, which it closes when it is closed.
func New(g driver.GPU) *Pool {
	p := &Pool{GPU: g}
	p.device.open(g.Alloc, g.Free)
	p.host.open(g.AllocHost, g.FreeHost)
	return p
}

// Alloc implements [driver.GPU].
func (p *Pool) Alloc(bytes int64) (driver.Ptr, error) {
	if bytes == 0 {
		return p.GPU.Alloc(0)
	}
	return p.device.alloc(bytes)
}

// Free implements [driver.GPU]. Memory that is not of this pool, or was freed already, is an error.
func (p *Pool) Free(at driver.Ptr) error {
	if at == 0 {
		return nil
	}
	return p.device.release(at)
}

// AllocHost implements [driver.GPU].
func (p *Pool) AllocHost(bytes int64) (unsafe.Pointer, error) { return p.host.alloc(bytes) }

// FreeHost implements [driver.GPU], with the errors of [Pool.Free].
func (p *Pool) FreeHost(at unsafe.Pointer) error {
	if at == nil {
		return nil
	}
	return p.host.release(at)
}

// Memory implements [driver.GPU]: what is kept is free.
func (p *Pool) Memory() (free, total int64, err error) {
	free, total, err = p.GPU.Memory()
	return free + p.device.state().Kept, total, err
}

// Trim returns kept memory to the driver.
func (p *Pool) Trim() error { return errors.Join(p.device.trim(), p.host.trim()) }

// Device is the use of the GPU's memory.
func (p *Pool) Device() Use { return p.device.state() }

// Host is the use of the host's memory.
func (p *Pool) Host() Use { return p.host.state() }

// shelf is the memory of one kind.
type shelf[P comparable] struct {
	take func(bytes int64) (P, error) // of the driver
	give func(P) error

	mu   sync.Mutex
	used map[P]int64   // the class of each allocated block
	kept map[int64][]P // the free blocks of each class
	use  Use
}

func (s *shelf[P]) open(take func(int64) (P, error), give func(P) error) {
	s.take, s.give = take, give
	s.used, s.kept = map[P]int64{}, map[int64][]P{}
}

func (s *shelf[P]) alloc(bytes int64) (P, error) {
	if bytes <= 0 {
		return s.take(bytes) // returns its error
	}
	size := class(bytes)
	s.mu.Lock()
	if list := s.kept[size]; len(list) > 0 {
		at := list[len(list)-1]
		s.kept[size] = list[:len(list)-1]
		s.use.Kept -= size
		s.gave(at, size)
		s.mu.Unlock()
		return at, nil
	}
	s.mu.Unlock() // the driver may be slow
	at, err := s.take(size)
	if err != nil {
		if e := s.trim(); e != nil {
			return at, errors.Join(err, e)
		}
		size = bytes
		if at, err = s.take(size); err != nil {
			return at, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.use.Calls++
	s.gave(at, size)
	return at, nil
}

// gave records that a block was allocated.
func (s *shelf[P]) gave(at P, size int64) {
	s.used[at] = size
	s.use.Used += size
	s.use.Peak = max(s.use.Peak, s.use.Used)
	s.use.PeakHeld = max(s.use.PeakHeld, s.use.Used+s.use.Kept)
}

func (s *shelf[P]) release(at P) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	size, ok := s.used[at]
	if !ok {
		return fmt.Errorf("memory at %v was freed that the pool has not given out", at)
	}
	delete(s.used, at)
	s.kept[size] = append(s.kept[size], at)
	s.use.Used -= size
	s.use.Kept += size
	return nil
}

// trim returns all kept memory to the driver. If the driver refuses a block, the block is dropped: its context is lost.
func (s *shelf[P]) trim() error {
	s.mu.Lock()
	kept := s.kept
	s.kept = map[int64][]P{}
	s.use.Kept = 0
	s.mu.Unlock()
	var failed error
	for _, list := range kept {
		for _, at := range list {
			failed = errors.Join(failed, s.give(at))
		}
	}
	return failed
}

func (s *shelf[P]) state() Use {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.use
}

// The driver allocates pages of 2 MiB; pieces of up to half a page share one.
const page = 2 << 20

// class is the block size for n bytes: eight classes between a power of two and the next, in multiples of 256 bytes
// and, from half a page on, of whole pages.
func class(n int64) int64 {
	step := int64(256)
	if b := bits.Len64(uint64(n - 1)); b > 11 {
		step = 1 << (b - 4)
	}
	if n > page/2 {
		step = max(step, page)
	}
	return (n + step - 1) / step * step
}
