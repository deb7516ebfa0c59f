//go:build gpu

package gpu

// Streams, events and graphs.

/*
#include "native.h"
*/
import "C"

import (
	"fmt"
	"slices"
	"time"
	"unsafe"

	"gorgonia.org/cu"

	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver"
)

type stream struct {
	g         *device
	s         cu.Stream
	recording bool
	follows   bool // what was recorded last is a launch of ours
	others    bool // somebody else made it
}

func (g *device) NewStream() (driver.Stream, error) {
	s := &stream{g: g}
	err := g.do("cuStreamCreate", func() (err error) { s.s, err = cu.MakeStream(cu.NonBlocking); return err })
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Hold implements [driver.Holder].
func (s *stream) Hold(word unsafe.Pointer) error { return s.await(C.CUdeviceptr(uintptr(word))) }

// await has the stream wait until words are 1, and makes them 0.
func (s *stream) await(words ...C.CUdeviceptr) error {
	s.other()
	return s.g.native("cuStreamBatchMemOp", func(x C.CUcontext) C.CUresult {
		return C.fusec_await(x, s.native(), &words[0], C.int(len(words)))
	})
}

func (g *device) NewUrgentStream() (driver.Stream, error) {
	s := &stream{g: g}
	err := g.do("cuStreamCreateWithPriority", func() error {
		_, most, err := cu.StreamPriorityRange()
		if err == nil {
			s.s, err = cu.MakeStreamWithPriority(most, cu.NonBlocking)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (g *device) StreamAt(handle uintptr) (driver.Stream, error) {
	s := &stream{g: g, others: true}
	*(*uintptr)(unsafe.Pointer(&s.s)) = handle
	return s, nil
}

func (s *stream) native() C.CUstream { return *(*C.CUstream)(unsafe.Pointer(&s.s)) }

// other notes that something else than a launch is queued, which the next launch has to wait for.
func (s *stream) other() cu.Stream {
	s.follows = false
	return s.s
}

func (s *stream) CopyIn(dst driver.Ptr, src unsafe.Pointer, bytes int64) error {
	if bytes == 0 {
		return nil
	}
	return s.g.do("cuMemcpyHtoDAsync", func() error {
		return cu.MemcpyHtoDAsync(cu.DevicePtr(dst), src, bytes, s.other())
	})
}

func (s *stream) CopyOut(dst unsafe.Pointer, src driver.Ptr, bytes int64) error {
	if bytes == 0 {
		return nil
	}
	return s.g.do("cuMemcpyDtoHAsync", func() error {
		return cu.MemcpyDtoHAsync(dst, cu.DevicePtr(src), bytes, s.other())
	})
}

func (s *stream) Copy(dst, src driver.Ptr, bytes int64) error {
	if bytes == 0 {
		return nil
	}
	return s.g.do("cuMemcpyDtoDAsync", func() error {
		return cu.MemcpyDtoDAsync(cu.DevicePtr(dst), cu.DevicePtr(src), bytes, s.other())
	})
}

func (s *stream) Fill(dst driver.Ptr, value byte, bytes int64) error {
	if bytes == 0 {
		return nil
	}
	return s.g.do("cuMemsetD8Async", func() error {
		return cu.MemsetD8Async(cu.DevicePtr(dst), value, bytes, s.other())
	})
}

func (s *stream) Launch(fn driver.Function, grid [3]int, block, shared int, params []byte) error {
	f, ok := fn.(*function)
	if !ok || f.g != s.g {
		return fmt.Errorf("cuLaunchKernel: the function is not of this GPU")
	}
	switch { // the driver reads as many bytes as the function's parameter has
	case f.params < 0:
		params = append(slices.Clip(params), make([]byte, kernels.MaxParams)...)
	case f.params != len(params):
		return fmt.Errorf("cuLaunchKernel: %s: %d bytes of parameters, want %d", f.entry, len(params), f.params)
	}
	if err := f.allow(shared); err != nil {
		return err
	}
	if f.rounds {
		var err error
		if grid[0], err = f.inRounds(grid[0], block, shared); err != nil {
			return err
		}
	}
	var at unsafe.Pointer
	if len(params) > 0 {
		at = unsafe.Pointer(&params[0])
	}
	early := f.early && s.recording && s.follows
	s.follows = s.recording
	err := s.g.native("cuLaunchKernel", func(c C.CUcontext) C.CUresult {
		switch {
		case f.together:
			return C.fusec_launch_together(c, f.native(), C.uint(grid[0]), C.uint(grid[1]), C.uint(grid[2]), C.uint(block),
				C.uint(shared), s.native(), at)
		case early:
			return C.fusec_launch_early(c, f.native(), C.uint(grid[0]), C.uint(grid[1]), C.uint(grid[2]), C.uint(block),
				C.uint(shared), s.native(), at)
		}
		return C.fusec_launch(c, f.native(), C.uint(grid[0]), C.uint(grid[1]), C.uint(grid[2]), C.uint(block),
			C.uint(shared), s.native(), at)
	})
	if err != nil {
		return fmt.Errorf("%s, %v blocks of %d threads, %d bytes of shared memory: %w", f.entry, grid, block, shared, err)
	}
	return nil
}

func (s *stream) BeginCapture() error {
	s.recording, s.follows = true, false
	return s.g.native("cuStreamBeginCapture", func(c C.CUcontext) C.CUresult {
		return C.fusec_begin_capture(c, s.native())
	})
}

func (s *stream) EndCapture() (driver.Graph, error) {
	s.recording, s.follows = false, false
	r := &recorded{g: s.g}
	err := s.g.native("cuStreamEndCapture and cuGraphInstantiate", func(c C.CUcontext) C.CUresult {
		return C.fusec_end_capture(c, s.native(), &r.exec)
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (s *stream) Record(e driver.Event) error {
	ev, ok := e.(*event)
	if !ok {
		return fmt.Errorf("cuEventRecord: the event is not of a GPU")
	}
	return s.g.do("cuEventRecord", func() error { return ev.e.Record(s.s) })
}

func (s *stream) Wait(e driver.Event) error {
	ev, ok := e.(*event)
	if !ok {
		return fmt.Errorf("cuStreamWaitEvent: the event is not of a GPU")
	}
	return s.g.do("cuStreamWaitEvent", func() error { return s.other().Wait(ev.e, 0) })
}

func (s *stream) Sync() error {
	return s.g.do("cuStreamSynchronize", func() error { return s.s.Synchronize() })
}

func (s *stream) Done() (bool, error) {
	done := true
	err := s.g.native("cuStreamQuery", func(c C.CUcontext) C.CUresult {
		r := C.fusec_stream_done(c, s.native())
		if r == C.CUDA_ERROR_NOT_READY {
			done = false
			return C.CUDA_SUCCESS
		}
		return r
	})
	return done && err == nil, err
}

func (s *stream) Recording() (bool, error) {
	var status C.CUstreamCaptureStatus
	err := s.g.native("cuStreamIsCapturing", func(c C.CUcontext) C.CUresult {
		return C.fusec_recording(c, s.native(), &status)
	})
	return status != C.CU_STREAM_CAPTURE_STATUS_NONE, err
}

func (s *stream) Close() error {
	if s.others {
		return nil
	}
	return s.g.release("cuStreamDestroy", func() error { return s.s.Destroy() })
}

// recorded is a graph, ready to be launched.
type recorded struct {
	g    *device
	exec C.CUgraphExec
}

func (r *recorded) Launch(on driver.Stream) error {
	s, ok := on.(*stream)
	if !ok || s.g != r.g {
		return fmt.Errorf("cuGraphLaunch: the stream is not of this GPU")
	}
	return r.g.native("cuGraphLaunch", func(c C.CUcontext) C.CUresult {
		return C.fusec_launch_graph(c, r.exec, s.native())
	})
}

func (r *recorded) Close() error {
	return r.g.release("cuGraphExecDestroy", func() error {
		return (*(*cu.ExecGraph)(unsafe.Pointer(&r.exec))).Destroy()
	})
}

type event struct {
	g *device
	e cu.Event
}

func (g *device) NewEvent() (driver.Event, error) {
	e := &event{g: g}
	err := g.do("cuEventCreate", func() (err error) { e.e, err = cu.MakeEvent(cu.DefaultEvent); return err })
	if err != nil {
		return nil, err
	}
	return e, nil
}

func (e *event) Since(earlier driver.Event) (time.Duration, error) {
	from, ok := earlier.(*event)
	if !ok {
		return 0, fmt.Errorf("cuEventElapsedTime: the event is not of a GPU")
	}
	var ms float64
	err := e.g.do("cuEventElapsedTime", func() (err error) { ms, err = from.e.Elapsed(e.e); return err })
	return time.Duration(ms * float64(time.Millisecond)), err
}

func (e *event) Close() error {
	return e.g.release("cuEventDestroy", func() error { return cu.DestroyEvent(&e.e) })
}
