package cuda

import (
	"errors"
	"fmt"
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
	host    unsafe.Pointer
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
	switch {
	case e.closed:
		return true, errClosed
	case e.lost != nil:
		return true, e.lost
	case !e.eachRun(buffer):
		return true, fmt.Errorf("%s %q is not copied ahead: that is for what each run reads again", b.Role, b.Name)
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

// copyAhead copies the bytes at from, and queues their copy to the GPU.
func (e *executable) copyAhead(buffer int, from unsafe.Pointer, bytes int64) error {
	if err := e.startPrefetching(); err != nil {
		return err
	}
	n := e.next
	p := n.find(buffer)
	if p == nil {
		host, err := e.gpu.AllocHost(bytes)
		if err != nil {
			return err
		}
		device, err := e.gpu.Alloc(bytes)
		if err != nil {
			return errors.Join(err, e.gpu.FreeHost(host))
		}
		n.places = append(n.places, place{buffer: buffer, bytes: bytes, host: host, device: device})
		n.changed = true
		e.bytes, e.pinned = e.bytes+bytes, e.pinned+bytes
		p = &n.places[len(n.places)-1]
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
		errs = append(errs, gpu.Free(p.device), gpu.FreeHost(p.host))
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
