package loader

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A ring is an io_uring of Linux (J. Axboe, "Efficient IO with io_uring", 2019): many reads are under way at a time, and one system
// call begins several and waits for others. One goroutine uses it at a time.
type ring struct {
	fd             int
	memory         []byte // of both queues
	entries        []byte // of submissions
	begun, mask    *uint32
	order          []uint32
	submissions    []submission
	ended, taken   *uint32
	completionMask *uint32
	completions    []completion
	under          uint32 // how many reads are under way at most
}

// submission is the kernel's struct io_uring_sqe.
type submission struct {
	opcode, flags uint8
	_             uint16
	fd            int32
	offset        uint64
	address       uint64
	length        uint32
	_             uint32
	data          uint64
	_             [3]uint64
}

// completion is its struct io_uring_cqe.
type completion struct {
	data   uint64
	result int32
	_      uint32
}

// ringParams is its struct io_uring_params.
type ringParams struct {
	submissions, completions, flags, _, _, features, _ uint32
	_                                                  [3]uint32
	sq, cq                                             ringOffsets
}

// ringOffsets are where parts of a queue are: its struct io_sqring_offsets, whose cqes is dropped, or io_cqring_offsets, whose
// array is flags.
type ringOffsets struct {
	head, tail, mask, entries, _, cqes, array, _ uint32
	_                                            uint64
}

// What the kernel names so.
const (
	opRead         = 22
	enterWait      = 1 // IORING_ENTER_GETEVENTS
	oneMapping     = 1 // IORING_FEAT_SINGLE_MMAP
	offSubmissions = 0x10000000
)

// ringReads is how many reads of a worker are under way at a time.
const ringReads = 64

// newRing makes a ring. The error says why the system has none, such as a container that refuses them.
func newRing() (*ring, error) {
	var p ringParams
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, ringReads, uintptr(unsafe.Pointer(&p)), 0)
	if errno != 0 {
		return nil, os.NewSyscallError("io_uring_setup", errno)
	}
	r := &ring{fd: int(fd), under: min(p.submissions, ringReads)}
	unix.CloseOnExec(r.fd)
	if p.features&oneMapping == 0 {
		return nil, errors.Join(errors.New("the kernel's io_uring has two mappings"), r.close())
	}
	var err error
	size := max(p.sq.array+4*p.submissions, p.cq.cqes+uint32(unsafe.Sizeof(completion{}))*p.completions)
	const protection, shared = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	if r.memory, err = unix.Mmap(r.fd, 0, int(size), protection, shared); err == nil {
		r.entries, err = unix.Mmap(r.fd, offSubmissions, int(p.submissions)*int(unsafe.Sizeof(submission{})), protection, shared)
	}
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("mmap", err), r.close())
	}
	at := func(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.memory[off])) }
	r.begun, r.mask = at(p.sq.tail), at(p.sq.mask)
	r.order = unsafe.Slice(at(p.sq.array), p.submissions)
	r.submissions = unsafe.Slice((*submission)(unsafe.Pointer(&r.entries[0])), p.submissions)
	r.taken, r.ended, r.completionMask = at(p.cq.head), at(p.cq.tail), at(p.cq.mask)
	r.completions = unsafe.Slice((*completion)(unsafe.Pointer(&r.memory[p.cq.cqes])), p.completions)
	return r, nil
}

// read fills the buffer of each extent as far as one read does, and all have ended when it returns. The error is that of the first
// one that has failed, which it gives, too.
func (r *ring) read(fd int, list []extent) (at int, failed error) {
	next, flying, pending, tail := 0, uint32(0), uint32(0), *r.begun
	fail := func(i int, err error) {
		if failed == nil || i < at {
			at, failed = i, fmt.Errorf("reading %d bytes at byte %d: %w", len(list[i].buf), list[i].begin, err)
		}
	}
	for failed == nil && next < len(list) || flying > 0 {
		for ; failed == nil && next < len(list) && flying < r.under; next++ {
			x, i := &list[next], tail&*r.mask
			r.submissions[i] = submission{opcode: opRead, fd: int32(fd), offset: uint64(x.begin),
				address: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(x.buf)))), length: uint32(len(x.buf)), data: uint64(next)}
			r.order[i] = i
			tail, pending, flying = tail+1, pending+1, flying+1
		}
		atomic.StoreUint32(r.begun, tail)
		n, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(pending), 1, enterWait, 0, 0)
		switch errno {
		case 0:
			pending -= uint32(n)
		case unix.EINTR, unix.EAGAIN, unix.EBUSY:
		default: // those that were begun end, and may write until then
			fail(next-1, os.NewSyscallError("io_uring_enter", errno))
			tail, flying, pending = tail-pending, flying-pending, 0
			atomic.StoreUint32(r.begun, tail)
			time.Sleep(time.Millisecond)
		}
		head := *r.taken
		for end := atomic.LoadUint32(r.ended); head != end; head++ {
			c := r.completions[head&*r.completionMask]
			flying--
			switch err := unix.Errno(-c.result); {
			case c.result >= 0:
				list[c.data].got = int64(c.result)
			case err != unix.EINTR && err != unix.EAGAIN: // these are read again
				fail(int(c.data), err)
			}
		}
		atomic.StoreUint32(r.taken, head)
	}
	return at, failed
}

// close ends the ring, none of whose reads is under way.
func (r *ring) close() error {
	var errs []error
	for _, m := range [][]byte{r.memory, r.entries} {
		if m != nil {
			errs = append(errs, unix.Munmap(m))
		}
	}
	return errors.Join(append(errs, unix.Close(r.fd))...)
}
