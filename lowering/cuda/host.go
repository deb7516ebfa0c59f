package cuda

import (
	"fmt"

	"fusec/lowering"
	"fusec/lowering/host"
)

// newHostLaunches compiles the launches without a kernel on the GPU.
func (e *executable) newHostLaunches(d *Device) (*host.Launches, error) {
	h, i, err := host.New(e.p, d.host.Workers(), func(l *lowering.Launch) bool { return l.Device != "" })
	if err != nil {
		return nil, e.inLaunch(i, fmt.Errorf("%w, and no kernel on the GPU: %s", err, e.p.Launches[i].Reason))
	}
	return h, nil
}

// runHost runs a launch on the processor, if no launch before has reported an error.
func (e *executable) runHost(i int) error {
	if err := e.collectNow(); err != nil {
		return err
	}
	l, h := &e.p.Launches[i], e.host
	for _, v := range l.Args {
		if err := e.download(v.Buffer, h.Copies[v.Buffer]); err != nil {
			return err
		}
	}
	for r, v := range l.Results {
		if overwrites(e.p, l, r) != nil {
			e.had = append(e.had, had{v.Buffer, h.Copies[v.Buffer].Clone()})
		}
	}
	if err := h.Run(i); err != nil {
		return err
	}
	for _, v := range l.Results {
		if err := e.copyIn(v.Buffer, h.Copies[v.Buffer]); err != nil {
			return err
		}
	}
	return e.stream.Sync()
}
