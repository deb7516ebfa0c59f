package fusec

import (
	"context"

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
