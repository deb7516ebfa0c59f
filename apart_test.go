package fusec

import (
	"errors"
	"slices"

	"fusec/graph"
	"fusec/lowering"
	"fusec/lowering/cpu"
)

// OnApart compiles for the CPU behind a device that keeps copies of all that is bound to it, as a GPU does: it sees a
// tensor when it is bound, and inputs and parameters that no update writes before each run; what updates write comes
// back by Sync alone.
func OnApart() Option { return option(func(c *config) { c.on = apart{cpu.New()} }) }

type apart struct{ *cpu.Device }

func (apart) Name() string { return "apart" }

func (apart) Shared() any { return nil }

func (d apart) Compile(p *lowering.Program) (lowering.Executable, error) {
	e, err := d.Device.Compile(p)
	if err != nil {
		return nil, err
	}
	a := &apartExecutable{Executable: e, p: p, bound: map[int]*graph.Tensor{}, copies: map[int]*graph.Tensor{}, stale: map[int]bool{}}
	for _, u := range p.Updates {
		a.changed = append(a.changed, u.Target)
	}
	return a, nil
}

type apartExecutable struct {
	lowering.Executable
	p       *lowering.Program
	bound   map[int]*graph.Tensor
	copies  map[int]*graph.Tensor // on the device
	stale   map[int]bool
	changed []int // what updates write
	closed  bool
}

func (e *apartExecutable) Bind(buffer int, t *graph.Tensor) error {
	if t == nil || t.Type != e.p.Buffers[buffer].Type {
		return e.Executable.Bind(buffer, t) // which refuses it
	}
	e.bound[buffer], e.stale[buffer] = t, true
	if e.copies[buffer] == nil {
		e.copies[buffer] = graph.NewTensor(t.Type)
		return e.Executable.Bind(buffer, e.copies[buffer])
	}
	return nil
}

func (e *apartExecutable) Run() error {
	if e.closed {
		return errors.New("the program is closed")
	}
	for i, t := range e.bound {
		eachRun := e.p.Buffers[i].Role != lowering.State && !slices.Contains(e.changed, i)
		if eachRun || e.stale[i] {
			e.copies[i].CopyFrom(t)
			e.stale[i] = false
			if err := e.Executable.Bind(i, e.copies[i]); err != nil {
				return err
			}
		}
	}
	return e.Executable.Run()
}

func (e *apartExecutable) Start() error { return e.Run() }

func (e *apartExecutable) Sync(buffers ...int) error {
	for _, i := range e.changed {
		if !e.closed && !e.stale[i] && e.bound[i] != nil && (len(buffers) == 0 || slices.Contains(buffers, i)) {
			e.bound[i].CopyFrom(e.copies[i])
		}
	}
	return nil
}

func (e *apartExecutable) Close() error {
	err := e.Sync()
	e.closed = true
	return errors.Join(err, e.Executable.Close())
}
