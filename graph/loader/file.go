package loader

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"unsafe"
)

// Access is a way to read files.
type Access uint8

// The ways to read. If one is not available, the next in the order Direct, Mapped, Plain is used. [Loader.Stats] says
// which one, and why.
const (
	// Mapped reads through a mapping of the file. Data in the page cache are copied only once, to the batch. Of rows in random
	// order the kernel is asked for all of a batch that the page cache lacks, and reads them at the same time.
	Mapped Access = iota
	// Direct reads with O_DIRECT into aligned buffers, with one read at a time for each worker, or of small rows that are
	// scattered with many, by io_uring where the system has it. Large files that are read in order then do not evict
	// everything else from the page cache, and the kernel does not copy them. It reads from the disk in every epoch, so
	// Mapped is faster for a file that fits into memory.
	Direct
	// Plain reads with ordinary system calls.
	Plain
)

var accesses = [...]string{"mapped", "direct", "plain"}

// String names the access: mapped, direct, plain.
func (a Access) String() string { return accesses[a] }

// file is an open file. Its methods may be called by several goroutines, each with its own scratch.
type file struct {
	path   string
	f      *os.File
	size   int64
	access Access
	reason string // why the requested access is not used

	mem     []byte   // all of it, if Mapped
	past    *os.File // the same file, read past the page cache, if Direct
	align   int64    // of offsets, sizes and buffers, if Direct
	shuffle bool     // rows are read in random order
	large   bool     // it will not stay in the page cache
	touched atomic.Int64
	cached  atomic.Int64 // how many rows, one after another, were found in the page cache
}

// openFile opens a file, which counts as large if it has more bytes than large.
func openFile(path string, want Access, shuffle bool, large int64) (*file, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: it is not a regular file", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r := &file{path: path, f: f, size: info.Size(), access: Plain, shuffle: shuffle, large: info.Size() > large}
	var reasons []string
	if want == Direct {
		if err := r.direct(); err != nil {
			reasons = append(reasons, fmt.Sprintf("no O_DIRECT: %v", err))
			want = Mapped
		}
	}
	if want == Mapped {
		if err := r.mapped(); err != nil {
			reasons = append(reasons, fmt.Sprintf("not mapped: %v", err))
		}
	}
	r.reason = strings.Join(reasons, "; ")
	return r, nil
}

// scratch is a worker's buffer for files that are not mapped, and its ring for those that are read past the page cache.
type scratch struct {
	buf   []byte
	list  []extent
	pages []byte // which ones the page cache has
	ring  *ring  // or nil
	asked bool   // for a ring
}

// aligned gives n bytes whose address is a multiple of align, a power of two.
func (s *scratch) aligned(n, align int64) []byte {
	if int64(len(s.buf)) < n+align {
		s.buf = make([]byte, n+align)
	}
	at := int64(uintptr(unsafe.Pointer(unsafe.SliceData(s.buf))) & uintptr(align-1))
	return s.buf[(align-at)&(align-1):][:n]
}

// span gives n bytes from off on, valid until buf is used again. A file that ends before is an error.
func (f *file) span(buf *scratch, off, n int64) ([]byte, error) {
	var raw []byte
	var got int64
	var err error
	switch f.access {
	case Mapped:
		return f.mem[off:][:n:n], nil
	case Direct:
		begin := off &^ (f.align - 1)
		end := (off + n + f.align - 1) &^ (f.align - 1)
		raw = buf.aligned(end-begin, f.align)
		got, err = f.readDirect(raw, begin)
		got -= off - begin
		raw = raw[off-begin:]
	default:
		raw = buf.aligned(n, 1)
		var m int
		m, err = f.f.ReadAt(raw, off)
		got = int64(m)
	}
	switch {
	case got >= n:
		return raw[:n], nil
	case err == nil || err == io.EOF:
		return nil, errTruncated
	}
	return nil, err
}

// read reads extents. The error is that of one, which it gives, too.
func (f *file) read(buf *scratch, list []extent) (at int, err error) {
	if len(list) == 1 {
		list[0].raw, err = f.span(buf, list[0].off, list[0].n)
		return 0, err
	}
	bytes := int64(0)
	for i := range list {
		x := &list[i]
		x.begin = x.off &^ (f.align - 1)
		bytes += (x.off+x.n+f.align-1)&^(f.align-1) - x.begin
	}
	room := buf.aligned(bytes, f.align)
	for i := range list {
		x := &list[i]
		n := (x.off+x.n+f.align-1)&^(f.align-1) - x.begin
		x.buf, room = room[:n:n], room[n:]
	}
	if at, err := f.readRing(buf.ring, list); err != nil {
		return at, err
	}
	for i := range list {
		x := &list[i]
		if end := x.off - x.begin + x.n; x.got < end && x.got%f.align == 0 { // it was cut short, and not by the end of the file
			more, err := f.readDirect(x.buf[x.got:], x.begin+x.got)
			if x.got += more; x.got < end && err != nil && err != io.EOF {
				return i, err
			}
		}
		if x.got < x.off-x.begin+x.n {
			return i, errTruncated
		}
		x.raw = x.buf[x.off-x.begin:][:x.n]
	}
	return 0, nil
}

// errTruncated is the error of a file that ends too early.
var errTruncated = fmt.Errorf("the file was truncated while it was in use: %w", io.ErrUnexpectedEOF)

// offset is the byte of the file that is mapped to an address.
func (f *file) offset(addr uintptr) (int64, bool) {
	off := addr - uintptr(unsafe.Pointer(unsafe.SliceData(f.mem)))
	return int64(off), off < uintptr(len(f.mem))
}

// close unmaps and closes the file. No goroutine may be reading it.
func (f *file) close() error {
	err := errors.Join(f.unmap(), f.f.Close())
	if f.past != nil {
		err = errors.Join(err, f.past.Close())
	}
	return err
}
