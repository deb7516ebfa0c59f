package cuda

import (
	"fmt"
	"slices"
	"unsafe"

	"fusec/graph"
	cpukernels "fusec/kernels/cpu"
	"fusec/kernels/cpu/pool"
	"fusec/lowering"
)

// hostLaunches are the launches of a program that run on the processor, on copies of the GPU's buffers.
type hostLaunches struct {
	pool    *pool.Pool
	env     *cpukernels.Env
	kernels map[int]cpukernels.Kernel
	copies  map[int]*graph.Tensor // by buffer
}

// newHostLaunches compiles what has no kernel on the GPU.
func (e *executable) newHostLaunches(d *Device) (*hostLaunches, error) {
	h := &hostLaunches{pool: pool.New(d.host.Workers()), kernels: map[int]cpukernels.Kernel{}, copies: map[int]*graph.Tensor{}}
	h.env = cpukernels.NewEnv(h.pool)
	for i := range e.p.Launches {
		l := &e.p.Launches[i]
		if l.Device == "" {
			continue
		}
		for _, v := range slices.Concat(l.Args, l.Results) {
			if h.copies[v.Buffer] == nil {
				h.copies[v.Buffer] = graph.NewTensor(e.p.Buffers[v.Buffer].Type)
			}
		}
		args, results := l.Operands()
		k, err := cpukernels.Compile(l.Op, args, results, h.env)
		if err != nil {
			h.close()
			return nil, e.inLaunch(i, fmt.Errorf("%w, and no kernel on the GPU: %s", err, l.Reason))
		}
		h.kernels[i] = k
	}
	return h, nil
}

// runHost runs a launch on the processor, if nothing has been reported until then.
func (e *executable) runHost(i int) error {
	if err := e.queue(&e.collect); err != nil {
		return err
	}
	if err := e.stream.CopyOut(unsafe.Pointer(e.report), e.status, statusBytes); err != nil {
		return err
	}
	l, h := &e.p.Launches[i], e.host
	memory := func(views []lowering.View) (m []cpukernels.Memory) {
		for _, v := range views {
			m = append(m, cpukernels.MemoryOf(h.copies[v.Buffer]))
		}
		return
	}
	if err := e.finish(); err != nil {
		return err
	}
	for _, v := range l.Args {
		if err := e.download(v.Buffer, h.copies[v.Buffer]); err != nil {
			return err
		}
	}
	if err := h.kernels[i].Run(memory(l.Args), memory(l.Results)); err != nil {
		return err
	}
	for _, v := range l.Results {
		t := h.copies[v.Buffer]
		if t.Type.Shape.Elems() == 0 {
			continue
		}
		from, n, err := bytesOf(t)
		if err != nil {
			return err
		}
		if err := e.stream.CopyIn(e.buffers[v.Buffer], from, n); err != nil {
			return err
		}
	}
	return e.stream.Sync()
}

// contiguous is the value that a view shows of a buffer.
func (h *hostLaunches) contiguous(whole *graph.Tensor, v lowering.View) (*graph.Tensor, error) {
	m := cpukernels.MemoryOf(whole)
	return cpukernels.TensorOf(&m, cpukernels.Operand{DType: v.DType, Layout: v.Layout}, h.env)
}

func (h *hostLaunches) close() { h.pool.Close() }
