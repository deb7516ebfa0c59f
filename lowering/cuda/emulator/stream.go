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

func (g *gpu) NewEvent() (driver.Event, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.alive("NewEvent"); err != nil {
		return nil, err
	}
	return &event{}, nil
}

type stream struct {
	gpu       *gpu
	capturing bool
	recorded  []func() error
}

// do calls f, or records it.
func (s *stream) do(f func() error) error {
	if s.capturing {
		s.recorded = append(s.recorded, f)
		return nil
	}
	return f()
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
	if s.capturing {
		return errors.New("BeginCapture: the stream is recording already")
	}
	s.capturing, s.recorded = true, nil
	return nil
}

func (s *stream) EndCapture() (driver.Graph, error) {
	if !s.capturing {
		return nil, errors.New("EndCapture: the stream is not recording")
	}
	s.capturing = false
	return &recording{s.gpu, s.recorded}, nil
}

func (s *stream) Record(e driver.Event) error {
	return s.do(func() error {
		e.(*event).at = time.Now()
		return nil
	})
}

func (s *stream) Wait(driver.Event) error { return nil }

func (s *stream) Sync() error {
	if s.capturing {
		return errors.New("Sync: the stream is recording")
	}
	s.gpu.mu.Lock()
	defer s.gpu.mu.Unlock()
	return s.gpu.alive("Sync")
}

func (s *stream) Close() error { return nil }

// recording is the recorded work of a stream.
type recording struct {
	gpu  *gpu
	work []func() error
}

func (r *recording) Launch(driver.Stream) error {
	for _, f := range r.work {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func (r *recording) Close() error { return nil }

type event struct{ at time.Time }

func (e *event) Since(earlier driver.Event) (time.Duration, error) {
	from := earlier.(*event).at
	if e.at.IsZero() || from.IsZero() {
		return 0, errors.New("Since: an event was not recorded")
	}
	return e.at.Sub(from), nil
}

func (e *event) Close() error { return nil }
