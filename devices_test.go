package fusec

import (
	"context"
	"errors"
	"slices"

	"fusec/fpga/isa"
	"fusec/fpga/link"
	"fusec/graph"
	"fusec/lowering"
	"fusec/lowering/cpu"
	"fusec/lowering/fpga"
)

// OnWrong compiles for the CPU with a wrong kernel: where a fusion takes a hyperbolic tangent, it takes the logistic function.
func OnWrong() Option { return option(func(c *config) { c.on = wrong{cpu.New()} }) }

// OnWrongOverlay compiles for a model of an overlay, with the same wrong kernel.
func OnWrongOverlay() Option {
	return option(func(c *config) {
		c.on = wrong{fpga.New(fpga.Overlay("sim8"), fpga.Over(func(ctx context.Context, cfg isa.Config, memory int64) (link.Link, error) {
			return link.Open(ctx, "model", link.Options{Config: cfg, Memory: memory})
		}))}
	})
}

type wrong struct{ lowering.Device }

func (wrong) Shared() any { return nil }

func (d wrong) Compile(p *lowering.Program) (lowering.Executable, error) {
	q := *p
	q.Launches = make([]lowering.Launch, len(p.Launches))
	for i, l := range p.Launches {
		if f, ok := l.Op.(graph.Fusion); ok {
			f.Body, _ = f.Body.Clone()
			for _, n := range f.Body.Nodes {
				if (n.Op == graph.Unary{Fn: graph.Tanh}) {
					n.Op = graph.Unary{Fn: graph.Sigmoid}
				}
			}
			l.Op = f
		}
		q.Launches[i] = l
	}
	e, err := d.Device.Compile(&q)
	return &wrongExecutable{e, p}, err
}

type wrongExecutable struct {
	lowering.Executable
	p *lowering.Program // as it should be
}

func (e *wrongExecutable) Watch(check func(*lowering.Launch, func(lowering.View) (*graph.Tensor, error)) error) {
	if check == nil {
		e.Executable.Watch(nil)
		return
	}
	next := 0
	e.Executable.Watch(func(l *lowering.Launch, value func(lowering.View) (*graph.Tensor, error)) error {
		for i := range e.p.Launches {
			if e.p.Launches[i].Node == l.Node {
				next = i
			}
		}
		return check(&e.p.Launches[next], value)
	})
}

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
