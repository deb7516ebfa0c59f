package fusec

import (
	"fmt"
	"time"

	"fusec/lowering"
)

// Measure runs the program n times on the values that its device holds since the last [Program.Exec], without copies
// from and to the host, and returns the time of each run by the device's own clock. Parameters and state change as in
// other runs; the learning rate stays that of the last Exec. Devices without memory of their own, such as the CPU, are
// timed by Exec.
func (p *Program) Measure(n int) ([]time.Duration, error) {
	times, err := p.exe.Measure(n)
	if err == lowering.ErrNoClock {
		err = fmt.Errorf("target %q has no clock of its own; time Exec", p.cfg.target)
	}
	return times, err
}

// Inspect describes the device that the program is on, and what the program and each of its launches take of it; nil for
// devices without memory of their own.
func (p *Program) Inspect() (*lowering.Inspection, error) { return p.exe.Inspect() }

// Timeline is what the last profiled run did and when, by the device's clock; see [Program.Profile]. Where the device
// tells no more, the launches follow one another without a gap.
func (p *Program) Timeline() []lowering.Span {
	list := p.exe.Timeline()
	if list != nil {
		return list
	}
	at := time.Duration(0)
	for i, t := range p.Times() {
		list = append(list, lowering.Span{What: lowering.SpanHost, Launch: i, Start: at, Length: t})
		at += t
	}
	return list
}

// Counts are the cycles that the program's device counted in the last run, launch by launch, and once a run was profiled by how
// much each launch's results depart from the float program's; nil for devices that count none.
func (p *Program) Counts() []lowering.Count { return p.exe.Counts() }

// Quantised is how often the program's weights were made integers: once, and again for each run that found others; 0 for
// devices that compute in floating point.
func (p *Program) Quantised() int { return p.exe.Quantised() }
