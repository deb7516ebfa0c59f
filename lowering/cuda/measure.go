package cuda

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"fusec/lowering/cuda/driver"
)

// Measure implements lowering.Executable. Each run is waited for before the next begins. Where the stream can be held, a run begins
// when all of it is queued, and the time from event to event has nothing of the host in it.
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
	e.measured = graphs
	var events [2]driver.Event
	defer func() {
		err = errors.Join(err, e.closeMeasured())
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
	hold, free, err := e.holding()
	if err != nil {
		return nil, e.broken(err)
	}
	defer func() { err = errors.Join(err, free()) }()
	times := make([]time.Duration, n)
	for i := range times {
		if times[i], err = e.measureRun(graphs, events, hold); err != nil {
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

// closeMeasured closes the graphs of a Measure that ends.
func (e *executable) closeMeasured() error {
	var errs []error
	for _, g := range e.measured {
		if g != nil {
			errs = append(errs, g.Close())
		}
	}
	e.measured = nil
	return errors.Join(errs...)
}

// rest is how long the GPU waits before a run that is measured, so that it is as cool before each.
const rest = 100 * time.Microsecond

// holding gives what holds the stream and returns what lets it go on, or does neither where it cannot be held: a host's part waits
// for the GPU.
func (e *executable) holding() (hold func() (release func(), err error), free func() error, err error) {
	free = func() error { return nil }
	s, ok := e.stream.(driver.Holder)
	if !ok || len(e.parts) > 1 || e.exchanges != nil {
		return func() (func(), error) { return func() {}, nil }, free, nil
	}
	word, err := e.gpu.AllocHost(4)
	if err != nil {
		return nil, free, err
	}
	at := (*uint32)(word)
	hold = func() (func(), error) {
		atomic.StoreUint32(at, 0)
		return func() { time.Sleep(rest); atomic.StoreUint32(at, 1) }, s.Hold(word)
	}
	return hold, func() error { return e.gpu.FreeHost(word) }, nil
}

// measureRun replays all parts between two events.
func (e *executable) measureRun(graphs []driver.Graph, events [2]driver.Event, hold func() (func(), error)) (time.Duration, error) {
	release, err := hold()
	if err == nil {
		err = e.queueMeasured(graphs, events)
	}
	release()
	if err = errors.Join(err, e.sync()); err != nil {
		return 0, err
	}
	return events[1].Since(events[0])
}

func (e *executable) queueMeasured(graphs []driver.Graph, events [2]driver.Event) error {
	if err := e.stream.Record(events[0]); err != nil {
		return err
	}
	for i, t := range e.parts {
		var err error
		if t.host {
			err = e.runHost(t.from)
		} else {
			err = graphs[i].Launch(e.stream)
		}
		if err != nil {
			return fmt.Errorf("launch %d: %w", t.from+1, err)
		}
	}
	return e.stream.Record(events[1])
}
