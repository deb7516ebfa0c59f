package cuda_test

import (
	"time"
	"unsafe"

	"fusec/lowering/cuda/driver"
)

// A late GPU does what its streams are asked for as late as it may: when a stream is waited for, or another one that
// waits for an event of it. What relies on work that nothing has waited for is found by it; the emulator by itself does
// all at once, and a GPU anything in between. It keeps a log of the copies and runs in the order in which they were done.
type late struct {
	driver.GPU
	log     []string
	streams int
}

func (l *late) NewStream() (driver.Stream, error) {
	s, err := l.GPU.NewStream()
	l.streams++
	return &lateStream{Stream: s, of: l, name: "stream " + string(rune('0'+l.streams))}, err
}

func (l *late) NewEvent() (driver.Event, error) {
	e, err := l.GPU.NewEvent()
	return &lateEvent{Event: e}, err
}

// A lateStream keeps its work in a queue; recording does not concern it.
type lateStream struct {
	driver.Stream
	of        *late
	name      string
	queue     []func() error
	done      int // of all that was ever queued
	capturing bool
}

// A lateEvent is where in a stream it was recorded last.
type lateEvent struct {
	driver.Event
	in *lateStream
	at int // so much of the stream comes before it
}

func (e *lateEvent) Since(earlier driver.Event) (time.Duration, error) {
	return e.Event.Since(earlier.(*lateEvent).Event)
}

// later queues work, or hands it on to the recording.
func (s *lateStream) later(what string, f func() error) error {
	if s.capturing {
		return f()
	}
	s.queue = append(s.queue, func() error {
		if what != "" {
			s.of.log = append(s.of.log, s.name+": "+what)
		}
		return f()
	})
	return nil
}

// until does the first n of all that was ever queued.
func (s *lateStream) until(n int) error {
	for s.done < n {
		f := s.queue[0]
		s.queue = s.queue[1:]
		s.done++
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func (s *lateStream) CopyIn(dst driver.Ptr, src unsafe.Pointer, n int64) error {
	return s.later("copy in", func() error { return s.Stream.CopyIn(dst, src, n) })
}

func (s *lateStream) CopyOut(dst unsafe.Pointer, src driver.Ptr, n int64) error {
	return s.later("copy out", func() error { return s.Stream.CopyOut(dst, src, n) })
}

func (s *lateStream) Copy(dst, src driver.Ptr, n int64) error {
	return s.later("copy", func() error { return s.Stream.Copy(dst, src, n) })
}

func (s *lateStream) Fill(dst driver.Ptr, value byte, n int64) error {
	return s.later("fill", func() error { return s.Stream.Fill(dst, value, n) })
}

func (s *lateStream) Launch(f driver.Function, grid [3]int, block, shared int, params []byte) error {
	return s.later("launch", func() error { return s.Stream.Launch(f, grid, block, shared, params) })
}

func (s *lateStream) BeginCapture() error {
	s.capturing = true
	return s.Stream.BeginCapture()
}

func (s *lateStream) EndCapture() (driver.Graph, error) {
	s.capturing = false
	g, err := s.Stream.EndCapture()
	return lateGraph{g}, err
}

func (s *lateStream) Record(e driver.Event) error {
	v := e.(*lateEvent)
	err := s.later("", func() error { return s.Stream.Record(v.Event) })
	v.in, v.at = s, s.done+len(s.queue)
	return err
}

func (s *lateStream) Wait(e driver.Event) error {
	v := e.(*lateEvent)
	in, at := v.in, v.at
	return s.later("", func() error { return in.until(at) })
}

func (s *lateStream) Sync() error {
	if err := s.until(s.done + len(s.queue)); err != nil {
		return err
	}
	return s.Stream.Sync()
}

type lateGraph struct{ driver.Graph }

func (g lateGraph) Launch(on driver.Stream) error {
	s := on.(*lateStream)
	return s.later("run", func() error { return g.Graph.Launch(s.Stream) })
}
