//go:build gpu

package gpu

// Communicators of NCCL.

/*
#include "native.h"
#include "nccl.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"fusec/graph"
	"fusec/kernels/group"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/driver/nccl"
)

// loadNCCL loads NCCL and finds its functions, once.
var loadNCCL = sync.OnceValue(func() error {
	lib, err := nccl.Open()
	if err != nil {
		return err
	}
	names := unsafe.Slice((**C.char)(unsafe.Pointer(&C.fusec_nccl_names)), 64)
	for i, name := range names {
		if name == nil {
			break
		}
		at, err := lib.Symbol(C.GoString(name))
		if err != nil {
			return err
		}
		C.fusec_nccl_bind(C.int(i), C.uintptr_t(at))
	}
	return nil
})

// comm is a communicator of NCCL.
type comm struct {
	g    *device
	team *group.Team

	mu  sync.Mutex // guards c, which is nil after Close
	c   unsafe.Pointer
	p   *peers          // nil where NCCL makes all exchanges
	cut bool            // Abort was called
	met map[string]bool // lists of exchanges that NCCL has made; see meet
}

// joining is how long participants wait for one another when they join: NCCL may have to be read from a slow disk first.
const joining = 2 * time.Minute

// Join implements [driver.GPU]. The participant at place 0 makes the communicator's identity.
func (g *device) Join(t *group.Team, most int) (driver.Comm, error) {
	err := loadNCCL()
	if err == nil {
		err = nccl.Limit(most)
	}
	if err == nil && !g.primary {
		err = errors.New("the GPU was opened with a context of its own: NCCL uses the primary one")
	}
	id := make([]byte, C.NCCL_ID_BYTES)
	if err == nil && t.Place() == 0 {
		err = g.nccl("ncclGetUniqueId", nil, func() C.int { return C.fusec_nccl_id(unsafe.Pointer(&id[0])) })
	}
	if err != nil {
		return nil, err // the others learn of it when the program ends the group
	}
	if err := t.Broadcast(id, 0); err != nil {
		return nil, err
	}
	c := &comm{g: g, team: t, met: map[string]bool{}}
	done := make(chan error, 1)
	go func() {
		var p unsafe.Pointer
		err := g.nccl("ncclCommInitRankConfig", nil, func() C.int {
			return C.fusec_nccl_init(&p, C.int(t.Size()), unsafe.Pointer(&id[0]), C.int(t.Place()), C.int(most))
		})
		c.mu.Lock()
		c.c = p
		c.mu.Unlock()
		done <- err
	}()
	late, tick := time.NewTimer(joining), time.NewTicker(20*time.Millisecond)
	defer late.Stop()
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			if err == nil {
				c.p, err = newPeers(c)
			}
			if err != nil {
				return nil, err
			}
			return c, nil
		case <-tick.C:
			if err := t.Failed(); err != nil {
				return nil, err
			}
		case <-late.C:
			return nil, fmt.Errorf("the %d participants have not joined a communicator of NCCL within %v", t.Size(), joining)
		}
	}
}

// nccl calls NCCL with the context current.
func (g *device) nccl(call string, c unsafe.Pointer, fn func() C.int) error {
	return g.do(call, func() error {
		r := fn()
		if r == 0 {
			return nil
		}
		var last *C.char
		text := C.GoString(C.fusec_nccl_error(r, c, &last))
		if last != nil && C.GoString(last) != "" {
			text += ": " + C.GoString(last)
		}
		return fmt.Errorf("NCCL's result %d: %s", r, text)
	})
}

// types are NCCL's numbers of types.
var types = map[graph.DType]C.int{graph.I8: 0, graph.U8: 1, graph.I32: 2, graph.U32: 3, graph.I64: 4, graph.U64: 5, graph.F16: 6,
	graph.F32: 7, graph.F64: 8, graph.BF16: 9}

// fns are NCCL's numbers of reductions.
var fns = map[graph.ReduceFn]C.int{graph.Sum: 0, graph.Mean: 4}

// Queue implements [driver.Comm].
func (c *comm) Queue(on driver.Stream, list []driver.Exchange) error {
	s, ok := on.(*stream)
	if !ok || s.g != c.g {
		return errors.New("NCCL: the stream is not of this GPU")
	}
	if err := c.meet(s, list); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.c == nil {
		return errors.New("NCCL: the communicator is closed")
	}
	runtime.LockOSThread() // a group is of calls of one thread
	defer runtime.UnlockOSThread()
	call := func(name string, fn func() C.int) error { return c.g.nccl(name, c.c, fn) }
	if err := call("ncclGroupStart", func() C.int { return C.fusec_nccl_start() }); err != nil {
		return err
	}
	var err error
	var own []driver.Exchange
	for _, x := range list {
		if c.p.makes(x, list) {
			own = append(own, x)
		} else if err = call(x.Op.OpName(), func() C.int { return c.queue(s, x) }); err != nil {
			break
		}
	}
	if err == nil && len(own) > 0 {
		err = c.p.queue(s, own)
	}
	return errors.Join(err, call("ncclGroupEnd", func() C.int { return C.fusec_nccl_end() }))
}

// meet waits on the host for the other participants, if NCCL makes exchanges for the first time or records them. It connects the
// participants then, or tells them of memory, in a call that waits for all of them and does not end when one has failed.
func (c *comm) meet(s *stream, list []driver.Exchange) error {
	key := ""
	for _, x := range list {
		if !c.p.makes(x, list) {
			key += fmt.Sprintf("%+v %v %d\n", x.Op, x.DType, x.Elems)
		}
	}
	recording, err := s.Recording()
	if err != nil || key == "" || c.met[key] && !recording {
		return err
	}
	c.met[key] = true
	return c.team.Gather([]byte{0}, make([]byte, c.team.Size()))
}

const (
	unsigned8 = 1 // ncclUint8
	invalid   = 4 // ncclInvalidArgument
)

func (c *comm) queue(s *stream, x driver.Exchange) C.int {
	at, size := unsafe.Pointer(s.native()), c.team.Size()
	s.other()
	from, to := C.uintptr_t(x.X), C.uintptr_t(x.Y)
	bytes := x.Elems * x.DType.Size()
	kind, known := types[x.DType]
	swap := func(next, last int, send, receive C.uintptr_t, n int) C.int {
		if r := C.fusec_nccl_send(c.c, send, C.size_t(n), unsigned8, C.int(next), at); r != 0 {
			return r
		}
		return C.fusec_nccl_receive(c.c, receive, C.size_t(n), unsigned8, C.int(last), at)
	}
	switch op := x.Op.(type) {
	case graph.AllReduce:
		fn, ok := fns[op.Fn]
		if !known || !ok {
			return invalid
		}
		return C.fusec_nccl_all_reduce(c.c, from, to, C.size_t(x.Elems), kind, fn, at)
	case graph.ReduceScatter:
		fn, ok := fns[op.Fn]
		if !known || !ok {
			return invalid
		}
		return C.fusec_nccl_reduce_scatter(c.c, from, to, C.size_t(x.Elems/size), kind, fn, at)
	case graph.AllGather:
		return C.fusec_nccl_all_gather(c.c, from, to, C.size_t(bytes), unsigned8, at)
	case graph.BroadcastFrom:
		return C.fusec_nccl_broadcast(c.c, from, to, C.size_t(bytes), unsigned8, C.int(op.Root), at)
	case graph.Permute:
		next, last := group.Neighbours(c.team.Place(), op.Shift, size)
		return swap(next, last, from, to, bytes)
	case graph.AllToAll:
		part := bytes / size
		for i := range size {
			if r := swap(i, i, from+C.uintptr_t(i*part), to+C.uintptr_t(i*part), part); r != 0 {
				return r
			}
		}
		return 0
	}
	return invalid
}

// inProgress is ncclInProgress.
const inProgress = 7

// Copies implements [driver.Comm].
func (c *comm) Copies() bool { return c.p != nil }

// Failed implements [driver.Comm].
func (c *comm) Failed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.c == nil {
		return nil
	}
	return c.g.nccl("ncclCommGetAsyncError", c.c, func() C.int {
		var result C.int
		if r := C.fusec_nccl_failed(c.c, &result); r != 0 {
			return r
		}
		if result == inProgress {
			return 0
		}
		return result
	})
}

// Abort implements [driver.Comm].
func (c *comm) Abort() error {
	if c.cut = true; c.p != nil {
		if err := c.p.end(); err != nil {
			return err
		}
	}
	return c.end("ncclCommAbort", func(p unsafe.Pointer) C.int { return C.fusec_nccl_abort(p) })
}

// Close implements [driver.Comm].
func (c *comm) Close() error {
	err := c.end("ncclCommDestroy", func(p unsafe.Pointer) C.int { return C.fusec_nccl_destroy(p) })
	if c.cut && c.p != nil {
		close(c.p.idle)
		return err
	}
	return errors.Join(err, c.p.close())
}

// ending is held by what ends a communicator: the last call for those of one process frees all of them.
var ending sync.Mutex

func (c *comm) end(call string, fn func(unsafe.Pointer) C.int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.c
	if c.c = nil; p == nil {
		return nil
	}
	ending.Lock()
	defer ending.Unlock()
	return c.g.nccl(call, nil, func() C.int { return fn(p) })
}
