package cuda

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"fusec/graph"
	"fusec/lowering/cuda/driver"
)

// A prefetcher copies inputs of the next run to the GPU, on a separate stream, while the started run still reads the
// current ones. It copies from pinned memory to places outside of the program's buffers. The next run starts with a
// copy from there, at the speed of the GPU's memory.
type prefetcher struct {
	stream  driver.Stream
	copied  driver.Event // after the requested copies into the places
	taken   driver.Event // after the last run's copies from the places
	took    bool         // taken has been recorded
	places  []place      // in the order in which inputs were first prefetched
	changed bool         // an input was added after the graph of the first part was recorded
}

// A place holds an input's next value.
type place struct {
	buffer  int
	bytes   int64
	host    unsafe.Pointer // nil until something is copied from there
	device  driver.Ptr
	next    location
	copying bool // a copy from host may be running
}

// A location says where an input's value for the next run is stored.
type location uint8

const (
	inTensor location = iota // in the bound tensor
	inPlace                  // prefetched
	inBuffer                 // from an earlier run
	nowhere                  // reading it has failed
)

// find returns the place of a buffer, or nil.
func (n *prefetcher) find(buffer int) *place {
	if n != nil {
		for i := range n.places {
			if n.places[i].buffer == buffer {
				return &n.places[i]
			}
		}
	}
	return nil
}

// Prefetch implements lowering.Executable.
func (e *executable) Prefetch(buffer int, t *graph.Tensor) (bool, error) {
	b := e.p.Buffers[buffer]
	if err := e.mayPrefetch(buffer); err != nil {
		return true, err
	}
	if err := e.p.MayBind(buffer, t); err != nil {
		return true, err
	}
	from, bytes, err := bytesOf(t)
	if err != nil {
		return true, fmt.Errorf("%s %q: %w", b.Role, b.Name, err)
	}
	if bytes == 0 {
		return true, e.Bind(buffer, t)
	}
	if err := e.copyAhead(buffer, from, bytes); err != nil {
		return true, e.broken(fmt.Errorf("copying %s %q ahead: %w", b.Role, b.Name, err))
	}
	return true, nil
}

// mayPrefetch refuses buffers whose next value is not given ahead.
func (e *executable) mayPrefetch(buffer int) error {
	b := e.p.Buffers[buffer]
	switch {
	case e.closed:
		return errClosed
	case e.lost != nil:
		return e.lost
	case !e.eachRun(buffer):
		return fmt.Errorf("%s %q is not copied ahead: that is for what each run reads again", b.Role, b.Name)
	}
	return nil
}

// copyAhead copies the bytes at from, and queues their copy to the GPU.
func (e *executable) copyAhead(buffer int, from unsafe.Pointer, bytes int64) error {
	if err := e.startPrefetching(); err != nil {
		return err
	}
	n := e.next
	p, err := e.placeOf(buffer, bytes)
	if err != nil {
		return err
	}
	if p.host == nil {
		if p.host, err = e.gpu.AllocHost(bytes); err != nil {
			return err
		}
		e.pinned += bytes
	}
	if p.copying { // from an earlier run, and so finished
		if err := n.stream.Sync(); err != nil {
			return err
		}
		for i := range n.places {
			n.places[i].copying = false
		}
	}
	copy(unsafe.Slice((*byte)(p.host), bytes), unsafe.Slice((*byte)(from), bytes))
	if n.took {
		if err := n.stream.Wait(n.taken); err != nil {
			return err
		}
	}
	p.next, p.copying = inTensor, true // until all is queued
	if err := n.stream.CopyIn(p.device, p.host, bytes); err != nil {
		return err
	}
	if err := n.stream.Record(n.copied); err != nil {
		return err
	}
	p.next = inPlace
	return nil
}

// placeOf gives the place of a buffer.
func (e *executable) placeOf(buffer int, bytes int64) (*place, error) {
	n := e.next
	if p := n.find(buffer); p != nil {
		return p, nil
	}
	device, err := e.gpu.Alloc(bytes)
	if err != nil {
		return nil, err
	}
	n.places = append(n.places, place{buffer: buffer, bytes: bytes, device: device})
	n.changed = true
	e.bytes += bytes
	return &n.places[len(n.places)-1], nil
}

// OpenFile implements lowering.Executable.
func (e *executable) OpenFile(path string) error {
	switch {
	case e.closed:
		return errClosed
	case e.lost != nil:
		return e.lost
	case e.files[path] != nil:
		return nil
	}
	f, err := e.gpu.OpenFile(path)
	if err != nil {
		return err
	}
	if e.files == nil {
		e.files = map[string]driver.File{}
	}
	e.files[path] = f
	return nil
}

// fileReads is how many parts of files are read at a time.
const fileReads = 16

// PrefetchFile implements lowering.Executable.
func (e *executable) PrefetchFile(buffer int, parts []graph.FilePart) error {
	if err := e.mayPrefetch(buffer); err != nil {
		return err
	}
	b := e.p.Buffers[buffer]
	bytes := int64(0)
	for _, p := range parts {
		switch {
		case e.files[p.Path] == nil:
			return fmt.Errorf("%s %q: %s has not been opened", b.Role, b.Name, p.Path)
		case p.Bytes < 0 || p.Offset < 0:
			return fmt.Errorf("%s %q: %d bytes at byte %d of %s", b.Role, b.Name, p.Bytes, p.Offset, p.Path)
		}
		bytes += p.Bytes
	}
	if want := b.Type.Bytes(); bytes != want || bytes == 0 {
		return fmt.Errorf("%s %q: parts of files with %d bytes, want %d", b.Role, b.Name, bytes, want)
	}
	p, err := e.emptied(buffer, bytes)
	if err != nil {
		return e.broken(fmt.Errorf("reading %s %q ahead: %w", b.Role, b.Name, err))
	}
	p.next = nowhere
	if err := e.read(p.device, parts); err != nil {
		return fmt.Errorf("reading %s %q ahead: %w", b.Role, b.Name, err)
	}
	if err := e.next.stream.Record(e.next.copied); err != nil {
		return e.broken(err)
	}
	p.next = inPlace
	return nil
}

// emptied gives the place of a buffer, from or to which nothing is copied any more.
func (e *executable) emptied(buffer int, bytes int64) (*place, error) {
	if err := e.startPrefetching(); err != nil {
		return nil, err
	}
	n := e.next
	p, err := e.placeOf(buffer, bytes)
	if err != nil {
		return nil, err
	}
	if n.took {
		if err := n.stream.Wait(n.taken); err != nil {
			return nil, err
		}
	}
	return p, n.stream.Sync()
}

// read reads parts of files, one after another in the memory from to on, and several at a time.
func (e *executable) read(to driver.Ptr, parts []graph.FilePart) error {
	var all sync.WaitGroup
	errs := make([]error, len(parts))
	var next atomic.Int64
	places := make([]driver.Ptr, len(parts))
	for i, p := range parts {
		places[i] = to
		to += driver.Ptr(p.Bytes)
	}
	for range min(fileReads, len(parts)) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(parts); i = int(next.Add(1)) - 1 {
				p := parts[i]
				if errs[i] = e.files[p.Path].Read(places[i], p.Offset, p.Bytes); errs[i] != nil {
					return
				}
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// startPrefetching makes the prefetcher.
func (e *executable) startPrefetching() (err error) {
	if e.next != nil {
		return nil
	}
	n := &prefetcher{}
	if n.stream, err = e.gpu.NewStream(); err != nil {
		return err
	}
	for _, v := range []*driver.Event{&n.copied, &n.taken} {
		if *v, err = e.gpu.NewEvent(); err != nil {
			return errors.Join(err, n.close(e.gpu))
		}
	}
	e.next = n
	return nil
}

// close frees the prefetcher's resources.
func (n *prefetcher) close(gpu driver.GPU) error {
	errs := []error{n.stream.Sync(), n.stream.Close()}
	for _, v := range []driver.Event{n.copied, n.taken} {
		if v != nil {
			errs = append(errs, v.Close())
		}
	}
	for _, p := range n.places {
		errs = append(errs, gpu.Free(p.device))
		if p.host != nil {
			errs = append(errs, gpu.FreeHost(p.host))
		}
	}
	return errors.Join(errs...)
}

// takePrefetched queues, before a run, the copies of inputs that were ever prefetched; the copies of the others are in
// graphs.
func (e *executable) takePrefetched() error {
	n := e.next
	if n == nil {
		return nil
	}
	if first := &e.parts[0]; n.changed && first.graph != nil {
		old := first.graph
		first.graph = nil
		if err := old.Close(); err != nil {
			return err
		}
	}
	n.changed = false
	took := false
	for i := range n.places {
		p := &n.places[i]
		switch p.next {
		case inTensor:
			if err := e.stream.CopyIn(e.buffers[p.buffer], e.staged[p.buffer], p.bytes); err != nil {
				return err
			}
		case inPlace:
			if !took {
				if err := e.stream.Wait(n.copied); err != nil {
					return err
				}
			}
			if err := e.stream.Copy(e.buffers[p.buffer], p.device, p.bytes); err != nil {
				return err
			}
			took, p.next = true, inBuffer
		}
	}
	if took {
		n.took = true
		return e.stream.Record(n.taken)
	}
	return nil
}
