package cuda

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"fusec/lowering/cuda/driver"
)

// Measure implements lowering.Executable. Each run is waited for before the next begins, so that the time from event to
// event has what starting the launches costs, as a user of the device alone would see it.
func (e *executable) Measure(n int) (_ []time.Duration, err error) {
	switch {
	case e.closed:
		return nil, errClosed
	case e.lost != nil:
		return nil, e.lost
	}
	if err := e.Wait(); err != nil {
		return nil, err
	}
	if !e.ran {
		return nil, errors.New("the program has to run once before it is measured")
	}
	if err := e.upload(); err != nil {
		return nil, e.broken(err)
	}
	if err := e.prepare(); err != nil {
		return nil, e.broken(err)
	}
	graphs := make([]driver.Graph, len(e.parts))
	var events [2]driver.Event
	defer func() {
		for _, g := range graphs {
			if g != nil {
				err = errors.Join(err, g.Close())
			}
		}
		for _, v := range events {
			if v != nil {
				err = errors.Join(err, v.Close())
			}
		}
	}()
	for i := range events {
		if events[i], err = e.gpu.NewEvent(); err != nil {
			return nil, err
		}
	}
	for i, t := range e.parts {
		if !t.host {
			if graphs[i], err = e.record(i, false); err != nil {
				return nil, e.broken(err)
			}
		}
	}
	times := make([]time.Duration, n)
	for i := range times {
		if times[i], err = e.measureRun(graphs, events); err != nil {
			return nil, e.broken(err)
		}
	}
	for i := range e.changed {
		e.ahead[i] = true
	}
	if err := e.stream.CopyOut(unsafe.Pointer(e.report), e.status, statusBytes); err != nil {
		return nil, e.broken(err)
	}
	return times, e.broken(e.finish())
}

// measureRun replays all parts between two events.
func (e *executable) measureRun(graphs []driver.Graph, events [2]driver.Event) (time.Duration, error) {
	if err := e.stream.Record(events[0]); err != nil {
		return 0, err
	}
	for i, t := range e.parts {
		var err error
		if t.host {
			err = e.runHost(t.from)
		} else {
			err = graphs[i].Launch(e.stream)
		}
		if err != nil {
			return 0, fmt.Errorf("launch %d: %w", t.from+1, err)
		}
	}
	if err := e.stream.Record(events[1]); err != nil {
		return 0, err
	}
	if err := e.stream.Sync(); err != nil {
		return 0, err
	}
	return events[1].Since(events[0])
}
