package cuda_test

import (
	"errors"
	"testing"
	"time"
	"unsafe"

	"fusec/kernels/group"
	"fusec/lowering/cuda/driver"
)

// A counted GPU counts what is taken from a GPU and not given back. Closing it leaves the GPU open.
type counted struct {
	driver.GPU
	held map[string]int
	left int // calls that succeed before one fails; below 0: all do
}

func countedGPU(g driver.GPU) *counted { return &counted{g, map[string]int{}, -1} }

var errDriver = errors.New("the driver's error")

// next is the error of a call that is to fail.
func (c *counted) next() error {
	if c.left < 0 {
		return nil
	}
	c.left--
	if c.left < 0 {
		return errDriver
	}
	return nil
}

// count notes that something was taken or, if by is negative, given back.
func (c *counted) count(what string, by int, err error) {
	if err == nil {
		c.held[what] += by
	}
}

// none fails the test if something is held.
func (c *counted) none(t testing.TB) {
	t.Helper()
	for what, n := range c.held {
		if n != 0 {
			t.Errorf("%d %s are held", n, what)
		}
	}
}

func (c *counted) Close() error { return nil }

func (c *counted) Alloc(n int64) (driver.Ptr, error) {
	if err := c.next(); err != nil {
		return 0, err
	}
	p, err := c.GPU.Alloc(n)
	c.count("blocks of memory", 1, err)
	return p, err
}

func (c *counted) Free(p driver.Ptr) error {
	err := c.GPU.Free(p)
	c.count("blocks of memory", -1, err)
	return err
}

func (c *counted) AllocHost(n int64) (unsafe.Pointer, error) {
	if err := c.next(); err != nil {
		return nil, err
	}
	p, err := c.GPU.AllocHost(n)
	c.count("blocks of host memory", 1, err)
	return p, err
}

func (c *counted) FreeHost(p unsafe.Pointer) error {
	err := c.GPU.FreeHost(p)
	c.count("blocks of host memory", -1, err)
	return err
}

func (c *counted) Memory() (free, total int64, err error) {
	if err := c.next(); err != nil {
		return 0, 0, err
	}
	return c.GPU.Memory()
}

func (c *counted) Load(image []byte) (driver.Module, error) {
	if err := c.next(); err != nil {
		return nil, err
	}
	m, err := c.GPU.Load(image)
	c.count("modules", 1, err)
	return countedModule{m, c}, err
}

func (c *counted) NewStream() (driver.Stream, error) {
	if err := c.next(); err != nil {
		return nil, err
	}
	s, err := c.GPU.NewStream()
	c.count("streams", 1, err)
	return countedStream{s, c}, err
}

func (c *counted) StreamAt(handle uintptr) (driver.Stream, error) {
	if err := c.next(); err != nil {
		return nil, err
	}
	s, err := c.GPU.StreamAt(handle)
	c.count("streams", 1, err)
	return countedStream{s, c}, err
}

func (c *counted) NewUrgentStream() (driver.Stream, error) {
	if err := c.next(); err != nil {
		return nil, err
	}
	s, err := c.GPU.NewUrgentStream()
	c.count("streams", 1, err)
	return countedStream{s, c}, err
}

func (c *counted) Join(t *group.Team, most int) (driver.Comm, error) {
	if err := c.next(); err != nil {
		return nil, err
	}
	m, err := c.GPU.Join(t, most)
	c.count("communicators", 1, err)
	return countedComm{m, c}, err
}

func (c *counted) NewEvent() (driver.Event, error) {
	if err := c.next(); err != nil {
		return nil, err
	}
	e, err := c.GPU.NewEvent()
	c.count("events", 1, err)
	return countedEvent{e, c}, err
}

type countedModule struct {
	driver.Module
	of *counted
}

func (m countedModule) Unload() error {
	err := m.Module.Unload()
	m.of.count("modules", -1, err)
	return err
}

func (m countedModule) Function(entry string) (driver.Function, error) {
	if err := m.of.next(); err != nil {
		return nil, err
	}
	f, err := m.Module.Function(entry)
	return countedFunction{f, m.of}, err
}

type countedFunction struct {
	driver.Function
	of *counted
}

func (f countedFunction) Occupancy(block, shared int) (int, error) {
	if err := f.of.next(); err != nil {
		return 0, err
	}
	return f.Function.Occupancy(block, shared)
}

type countedEvent struct {
	driver.Event
	of *counted
}

func (e countedEvent) Close() error {
	err := e.Event.Close()
	e.of.count("events", -1, err)
	return err
}

func (e countedEvent) Since(earlier driver.Event) (time.Duration, error) {
	if err := e.of.next(); err != nil {
		return 0, err
	}
	return e.Event.Since(earlier.(countedEvent).Event)
}

type countedStream struct {
	driver.Stream
	of *counted
}

func (s countedStream) Record(e driver.Event) error {
	if err := s.of.next(); err != nil {
		return err
	}
	return s.Stream.Record(e.(countedEvent).Event)
}

func (s countedStream) Wait(e driver.Event) error { return s.Stream.Wait(e.(countedEvent).Event) }

func (s countedStream) CopyIn(dst driver.Ptr, src unsafe.Pointer, n int64) error {
	if err := s.of.next(); err != nil {
		return err
	}
	return s.Stream.CopyIn(dst, src, n)
}

func (s countedStream) CopyOut(dst unsafe.Pointer, src driver.Ptr, n int64) error {
	if err := s.of.next(); err != nil {
		return err
	}
	return s.Stream.CopyOut(dst, src, n)
}

func (s countedStream) Fill(dst driver.Ptr, value byte, n int64) error {
	if err := s.of.next(); err != nil {
		return err
	}
	return s.Stream.Fill(dst, value, n)
}

func (s countedStream) Launch(f driver.Function, grid [3]int, block, shared int, params []byte) error {
	if err := s.of.next(); err != nil {
		return err
	}
	return s.Stream.Launch(f.(countedFunction).Function, grid, block, shared, params)
}

func (s countedStream) Sync() error {
	if err := s.of.next(); err != nil {
		return err
	}
	return s.Stream.Sync()
}

func (s countedStream) Recording() (bool, error) {
	if err := s.of.next(); err != nil {
		return false, err
	}
	return s.Stream.Recording()
}

func (s countedStream) BeginCapture() error {
	if err := s.of.next(); err != nil {
		return err
	}
	return s.Stream.BeginCapture()
}

// EndCapture ends the capture even if it fails.
func (s countedStream) EndCapture() (driver.Graph, error) {
	g, err := s.Stream.EndCapture()
	if err != nil {
		return nil, err
	}
	if err := s.of.next(); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	s.of.count("graphs", 1, nil)
	return countedGraph{g, s.of}, nil
}

func (s countedStream) Close() error {
	err := s.Stream.Close()
	s.of.count("streams", -1, err)
	return err
}

type countedGraph struct {
	driver.Graph
	of *counted
}

func (g countedGraph) Launch(s driver.Stream) error {
	if err := g.of.next(); err != nil {
		return err
	}
	return g.Graph.Launch(s.(countedStream).Stream)
}

func (g countedGraph) Close() error {
	err := g.Graph.Close()
	g.of.count("graphs", -1, err)
	return err
}

type countedComm struct {
	driver.Comm
	of *counted
}

func (m countedComm) Queue(s driver.Stream, list []driver.Exchange) error {
	if err := m.of.next(); err != nil {
		return err
	}
	return m.Comm.Queue(s.(countedStream).Stream, list)
}

func (m countedComm) Failed() error {
	if err := m.of.next(); err != nil {
		return err
	}
	return m.Comm.Failed()
}

func (m countedComm) Close() error {
	err := m.Comm.Close()
	m.of.count("communicators", -1, err)
	return err
}
