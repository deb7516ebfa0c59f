//go:build linux && (amd64 || arm64)

package emulator

// Streams, which do work immediately or record it.

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"fusec/lowering/cuda/driver"
)

func (g *gpu) NewStream() (driver.Stream, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.alive("NewStream"); err != nil {
		return nil, err
	}
	return &stream{gpu: g}, nil
}

func (g *gpu) NewUrgentStream() (driver.Stream, error) { return g.NewStream() }

// StreamAt gives a new stream: there are none of others, and work is done in the order in which it comes.
func (g *gpu) StreamAt(uintptr) (driver.Stream, error) { return g.NewStream() }

func (g *gpu) NewEvent() (driver.Event, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.alive("NewEvent"); err != nil {
		return nil, err
	}
	return &event{}, nil
}

// A stream does its work at once, unless it is recording, or an exchange is in its queue: exchanges, and what comes after them
// on their stream, are done as late as a GPU may do them, so that work that does not wait for them finds values that are not
// there yet.
type stream struct {
	gpu     *gpu
	capture *capture
	late    []func() error // in the queue
	taken   int            // how many were in it before and are not any more
}

// capture is the recording of a stream, and of those that have come to wait for it.
type capture struct {
	origin *stream
	work   []func() error
	forked []*stream
}

// do calls f, or records it, or puts it into the queue.
func (s *stream) do(f func() error) error {
	switch {
	case s.capture != nil && s.capture.origin == s:
		s.capture.work = append(s.capture.work, f)
	case s.capture != nil || len(s.late) > 0:
		s.late = append(s.late, f)
	default:
		return f()
	}
	return nil
}

// exchange puts f into the queue, or records it.
func (s *stream) exchange(f func() error) error {
	if s.capture != nil {
		return s.do(f)
	}
	s.late = append(s.late, f)
	return nil
}

// take takes work from the queue, up to a mark.
func (s *stream) take(mark int) (list []func() error) {
	if n := mark - s.taken; n > 0 {
		list, s.late = s.late[:n:n], s.late[n:]
		s.taken = mark
	}
	return list
}

func doAll(list []func() error) error {
	for _, f := range list {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// locked calls f with the device's memory locked.
func (s *stream) locked(call string, f func() error) error {
	return s.do(func() error {
		s.gpu.mu.Lock()
		defer s.gpu.mu.Unlock()
		if err := s.gpu.alive(call); err != nil {
			return err
		}
		if err := f(); err != nil {
			return fmt.Errorf("%s: %w", call, err)
		}
		return nil
	})
}

func (s *stream) CopyIn(dst driver.Ptr, src unsafe.Pointer, n int64) error {
	return s.locked("CopyIn", func() error {
		data, known, err := s.gpu.find(dst, n)
		if err == nil && n > 0 {
			copy(data, unsafe.Slice((*byte)(src), n))
			fill(known, 1)
		}
		return err
	})
}

func (s *stream) CopyOut(dst unsafe.Pointer, src driver.Ptr, n int64) error {
	return s.locked("CopyOut", func() error {
		data, _, err := s.gpu.find(src, n)
		if err == nil && n > 0 {
			copy(unsafe.Slice((*byte)(dst), n), data)
		}
		return err
	})
}

func (s *stream) Copy(dst, src driver.Ptr, n int64) error {
	return s.locked("Copy", func() error {
		to, toKnown, err := s.gpu.find(dst, n)
		if err != nil {
			return err
		}
		from, fromKnown, err := s.gpu.find(src, n)
		copy(to, from)
		copy(toKnown, fromKnown)
		return err
	})
}

func (s *stream) Fill(dst driver.Ptr, value byte, n int64) error {
	return s.locked("Fill", func() error {
		data, known, err := s.gpu.find(dst, n)
		fill(data, value)
		fill(known, 1)
		return err
	})
}

func (s *stream) Launch(f driver.Function, grid [3]int, block, shared int, params []byte) error {
	fn, ok := f.(*function)
	if !ok {
		return fmt.Errorf("Launch: %T is no function of the emulator", f)
	}
	params = append([]byte(nil), params...)
	return s.do(func() error { return s.gpu.launch(fn, grid, block, shared, params) })
}

func (s *stream) BeginCapture() error {
	if s.capture != nil {
		return errors.New("BeginCapture: the stream is recording already")
	}
	s.capture = &capture{origin: s}
	return doAll(s.take(s.taken + len(s.late)))
}

func (s *stream) EndCapture() (driver.Graph, error) {
	c := s.capture
	if c == nil || c.origin != s {
		return nil, errors.New("EndCapture: the stream is not recording")
	}
	s.capture = nil
	var err error
	for _, f := range c.forked {
		if f.capture = nil; len(f.take(f.taken+len(f.late))) > 0 {
			err = errors.New("EndCapture: work of another stream was recorded, and nothing waits for it")
		}
	}
	return &recording{s.gpu, c.work}, err
}

func (s *stream) Record(e driver.Event) error {
	ev := e.(*event)
	err := s.do(func() error {
		ev.at = time.Now()
		return nil
	})
	ev.on, ev.mark, ev.capture = s, s.taken+len(s.late), s.capture
	return err
}

// Wait does what is in the queue of the event's stream before it. It joins the recording of that stream, in which the first that
// waits decides when that work is done.
func (s *stream) Wait(e driver.Event) error {
	ev := e.(*event)
	if ev.on == nil || ev.on == s {
		return nil
	}
	if ev.capture != nil && s.capture == nil {
		s.capture = ev.capture
		ev.capture.forked = append(ev.capture.forked, s)
	}
	for _, f := range ev.on.take(ev.mark) {
		on := s
		if s.capture != nil {
			on = s.capture.origin
		}
		if err := on.do(f); err != nil {
			return err
		}
	}
	return nil
}

func (s *stream) Sync() error {
	if s.capture != nil {
		return errors.New("Sync: the stream is recording")
	}
	if err := doAll(s.take(s.taken + len(s.late))); err != nil {
		return err
	}
	s.gpu.mu.Lock()
	defer s.gpu.mu.Unlock()
	return s.gpu.alive("Sync")
}

func (s *stream) Done() (bool, error) { return true, s.Sync() }

func (s *stream) Recording() (bool, error) { return s.capture != nil, nil }

func (s *stream) Close() error { return nil }

// recording is the recorded work of a stream.
type recording struct {
	gpu  *gpu
	work []func() error
}

func (r *recording) Launch(s driver.Stream) error {
	return s.(*stream).do(func() error { return doAll(r.work) })
}

func (r *recording) Close() error { return nil }

type event struct {
	at      time.Time
	on      *stream // where it was recorded
	mark    int     // how much work was put into the stream's queue before it
	capture *capture
}

func (e *event) Since(earlier driver.Event) (time.Duration, error) {
	from := earlier.(*event).at
	if e.at.IsZero() || from.IsZero() {
		return 0, errors.New("Since: an event was not recorded")
	}
	return e.at.Sub(from), nil
}

func (e *event) Close() error { return nil }
