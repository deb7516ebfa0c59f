package cuda

import (
	"time"

	"fusec/lowering"
	"fusec/lowering/cuda/driver"
)

// Inspect implements lowering.Executable.
func (e *executable) Inspect() (*lowering.Inspection, error) {
	chip := e.gpu.Chip()
	r := &lowering.Inspection{Device: chip.Name, Used: e.bytes, Pinned: e.pinned,
		Kernels: make([][]lowering.KernelUse, len(e.launches))}
	free, _, err := e.gpu.Memory()
	if err != nil {
		return nil, e.broken(err)
	}
	r.Taken = e.free - free
	for i, b := range e.p.Buffers {
		switch {
		case e.staged[i] == nil:
		case b.Role == lowering.Output:
			r.CopiesOut += b.Type.Bytes()
		default:
			r.CopiesIn += b.Type.Bytes()
		}
	}
	for i, l := range e.launches {
		for _, s := range l.steps {
			if s.Entry == "" {
				continue
			}
			res := s.function.Resources()
			u := lowering.KernelUse{Entry: s.Entry, Blocks: s.Grid[0] * s.Grid[1] * s.Grid[2], Threads: s.Block,
				Registers: res.Registers, Spilled: res.Local, Shared: res.Shared + s.Shared}
			if u.Resident, err = s.function.Occupancy(s.Block, s.Shared); err != nil {
				return nil, e.inLaunch(i, err)
			}
			u.Occupancy = float64(u.Resident*u.Threads) / float64(chip.Threads())
			r.Kernels[i] = append(r.Kernels[i], u)
		}
	}
	return r, nil
}

// marks are the events of a measured run around the copies, in addition to those around each launch.
type marks struct{ begin, begun, end, ended driver.Event }

// all lists pointers to the marks.
func (m *marks) all() []*driver.Event { return []*driver.Event{&m.begin, &m.begun, &m.end, &m.ended} }

// marked queues work between two events if the run is measured.
func (e *executable) marked(from, to driver.Event, work func() error) error {
	if !e.profile {
		return work()
	}
	if err := e.stream.Record(from); err != nil {
		return err
	}
	if err := work(); err != nil {
		return err
	}
	return e.stream.Record(to)
}

// readTimes reads the times of a measured run.
func (e *executable) readTimes() error {
	e.spans = e.spans[:0]
	span := func(what lowering.SpanKind, launch int, from, to driver.Event) (time.Duration, error) {
		start, err := from.Since(e.marks.begin)
		if err != nil {
			return 0, err
		}
		length, err := to.Since(from)
		e.spans = append(e.spans, lowering.Span{What: what, Launch: launch, Start: start, Length: length})
		return length, err
	}
	if _, err := span(lowering.SpanCopyIn, 0, e.marks.begin, e.marks.begun); err != nil {
		return err
	}
	clear(e.times[:e.skipped])
	for i := e.skipped; i < len(e.p.Launches); i++ {
		what, from, to := lowering.SpanLaunch, e.events[2*i], e.events[2*i+1]
		switch {
		case e.p.Launches[i].Device != "":
			what = lowering.SpanHost
		case e.exchanges != nil && e.exchanges.joins[i] > 0:
			what = lowering.SpanExchange
		}
		length, err := span(what, i, from, to)
		if err != nil {
			return err
		}
		if what != lowering.SpanHost {
			e.times[i] = length
		}
		if l := &e.launches[i]; l.timed {
			l.timed = false
			length, err := span(what, i, e.events[l.marks], e.events[l.marks+1])
			if err != nil {
				return err
			}
			e.times[i] += length
		}
	}
	_, err := span(lowering.SpanCopyOut, 0, e.marks.end, e.marks.ended)
	return err
}

// Timeline implements lowering.Executable.
func (e *executable) Timeline() []lowering.Span { return e.spans }
