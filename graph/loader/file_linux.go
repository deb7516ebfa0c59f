package loader

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// physicalMemory is the size of the memory in bytes.
func physicalMemory() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return math.MaxInt64
	}
	return int64(info.Totalram) * int64(info.Unit)
}

// mapped maps the file into memory, and announces to the kernel in which order it will be read.
func (f *file) mapped() (err error) {
	if f.size == 0 {
		return errors.New("it is empty")
	}
	if f.size > math.MaxInt {
		return errors.New("it is larger than the address space")
	}
	if f.mem, err = unix.Mmap(int(f.f.Fd()), 0, int(f.size), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return err
	}
	f.access = Mapped
	advice := unix.MADV_SEQUENTIAL
	if f.shuffle { // no readahead, which for each row may read megabytes around it; announce requests rows
		advice = unix.MADV_RANDOM
	}
	_ = unix.Madvise(f.mem, advice) // all advice may be refused: it changes no result
	return nil
}

func (f *file) unmap() error {
	if f.mem == nil {
		return nil
	}
	err := unix.Munmap(f.mem)
	f.mem = nil
	return err
}

// pageStart is the beginning of the page that holds a byte.
func pageStart(off int64) int64 { return off &^ int64(os.Getpagesize()-1) }

// requested is how many bytes the kernel is asked for at a time: of more it may read only the first ones.
const requested = 128 << 10

// After so many rows that were all in the page cache, only every sampled-th row is looked for there, until one is not.
const (
	sampledAfter = 4096
	sampled      = 16
)

// announce makes the kernel read scattered rows in parallel, as far as they are not in the page cache.
func (f *file) announce(c *column, rows []int64, buf *scratch) {
	if f.access != Mapped || !f.shuffle {
		return
	}
	for i := 0; i < len(rows); i++ {
		off, all := c.begin+rows[i]*c.stride, true
		for at, end := pageStart(off), off+c.size; at < end; at += requested {
			if part := f.mem[at:min(at+requested, end)]; !buf.cached(part) {
				_ = unix.Madvise(part, unix.MADV_WILLNEED)
				all = false
			}
		}
		if !all {
			f.cached.Store(0)
		} else if f.cached.Add(1) > sampledAfter {
			i += sampled - 1
		}
	}
}

// cached reports whether mapped pages are all in the page cache.
func (s *scratch) cached(pages []byte) bool {
	n := (len(pages) + os.Getpagesize() - 1) / os.Getpagesize()
	if len(s.pages) < n {
		s.pages = make([]byte, n)
	}
	in := s.pages[:n]
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&pages[0])), uintptr(len(pages)),
		uintptr(unsafe.Pointer(&in[0])))
	return errno == 0 && !slices.ContainsFunc(in, func(b byte) bool { return b&1 == 0 })
}

// How much of a large file stays in memory.
const (
	keepMapped  = 64 << 20 // if its rows are shuffled
	faultAround = 64 << 10 // that the kernel maps around a byte that is read, if they are cached
	keepBehind  = 32 << 20 // behind the reader, if rows are read in order: other workers still read there
	dropAtATime = 4 << 20  // so that it contains complete folios
)

// release unmaps parts of a large file that have been read, so that the process does not grow. If the file is read in
// order, they are also dropped from the page cache, where they would evict other data. A part that another worker is
// reading is simply read again.
func (f *file) release(off, n int64) {
	if f.access != Mapped || !f.large {
		return
	}
	if f.shuffle {
		if t := f.touched.Add(n + faultAround); t >= keepMapped && f.touched.CompareAndSwap(t, 0) {
			_ = unix.Madvise(f.mem, unix.MADV_DONTNEED)
		}
		return
	}
	from, to := off/dropAtATime*dropAtATime-keepBehind, (off+n)/dropAtATime*dropAtATime-keepBehind
	if from == to || to <= 0 {
		return
	}
	from = max(0, from-dropAtATime) // a folio at the end of the last part could not be dropped with it
	_ = unix.Madvise(f.mem[from:to], unix.MADV_DONTNEED)
	_ = unix.Fadvise(int(f.f.Fd()), from, to-from, unix.FADV_DONTNEED)
}

// direct opens the file for reads past the page cache, and tries one.
func (f *file) direct() error {
	align := int64(4096)
	var st unix.Statx_t
	err := unix.Statx(int(f.f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st)
	if err == nil && st.Mask&unix.STATX_DIOALIGN != 0 { // older kernels do not report this
		if st.Dio_offset_align == 0 {
			return errors.New("the file system does not support it for this file")
		}
		align = int64(max(st.Dio_offset_align, st.Dio_mem_align, 4096))
	}
	d, err := os.OpenFile(f.path, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	f.past, f.align = d, align
	if _, err := f.readDirect((&scratch{}).aligned(align, align), 0); err != nil && err != io.EOF {
		f.past = nil
		return errors.Join(err, d.Close())
	}
	f.access = Direct
	return nil
}

// readDirect fills buf from off on, or up to the end of the file.
func (f *file) readDirect(buf []byte, off int64) (n int64, err error) {
	for n < int64(len(buf)) {
		m, err := unix.Pread(int(f.past.Fd()), buf[n:], off+n)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return n, fmt.Errorf("reading %d bytes at byte %d: %w", len(buf), off, err)
		case m == 0:
			return n, io.EOF
		default:
			n += int64(m)
			if n%f.align != 0 { // only the end of a file is not aligned
				return n, nil
			}
		}
	}
	return n, nil
}

// ringRow is the size of the largest rows that are read by a ring. Larger ones come no faster by it.
const ringRow = 16 << 10

// together is how many extents with rows of a size are read at the same time: many of small rows past the page cache, if there is a
// ring.
func (f *file) together(buf *scratch, row int64) int {
	if f.access != Direct || row > ringRow {
		return 1
	}
	if !buf.asked {
		buf.asked = true
		buf.ring, _ = newRing() // without one, reads follow one another
	}
	if buf.ring == nil {
		return 1
	}
	return 2 * ringReads
}

func (f *file) readRing(r *ring, list []extent) (at int, err error) {
	return r.read(int(f.past.Fd()), list)
}
