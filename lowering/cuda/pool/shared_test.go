package pool

import (
	"errors"
	"testing"

	"fusec/lowering/cuda/driver"
)

// fakes are GPUs that were opened, in order.
type fakes struct{ list []*fake }

func (f *fakes) open(index int) (driver.GPU, error) {
	if index > 1 {
		return nil, errors.New("no such GPU")
	}
	g := newFake(1 << 30)
	f.list = append(f.list, g)
	return g, nil
}

func opens(t *testing.T, s *Shared, index int) driver.GPU {
	t.Helper()
	g, err := s.Open(index)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestShared opens GPUs several times: each is one, with one pool, which outlives its users until it is released.
func TestShared(t *testing.T) {
	var f fakes
	s := NewShared(f.open)
	a, b, other := opens(t, s, 0), opens(t, s, 0), opens(t, s, 1)
	if len(f.list) != 2 {
		t.Fatalf("%d contexts for 2 GPUs", len(f.list))
	}
	p, err := a.Alloc(3 << 20)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.Free(p), a.Close(), a.Close()); err != nil { // the second time is none
		t.Fatal(err)
	}
	if free, _, err := b.Memory(); free != 1<<30 || err != nil {
		t.Errorf("%d bytes are free of which all are, kept or not: %v", free, err)
	}
	if q, err := b.Alloc(3 << 20); q != p || err != nil {
		t.Errorf("one has freed %#x, and another was given %#x: %v", p, q, err)
	}
	if err := errors.Join(b.Free(p), s.Release()); err != nil {
		t.Error(err)
	}
	if g := f.list[0]; len(g.blocks) != 0 || g.closed {
		t.Errorf("a GPU in use has %d blocks out and is closed: %t", len(g.blocks), g.closed)
	}
	if err := errors.Join(b.Close(), other.Close()); err != nil {
		t.Error(err)
	}
	a = opens(t, s, 0)
	if len(f.list) != 2 || f.list[0].closed {
		t.Error("a GPU was closed with its last user")
	}
	if err := errors.Join(a.Close(), s.Release()); err != nil || !f.list[0].closed || !f.list[1].closed {
		t.Errorf("GPUs without users are not closed: %v", err)
	}
	if opens(t, s, 0); len(f.list) != 3 {
		t.Error("a GPU that was closed was opened")
	}
	if _, err := s.Open(2); err == nil {
		t.Error("there is a third GPU")
	}
}

// TestSharedLost opens a GPU whose context is lost: its users keep what they have, and others get a new one.
func TestSharedLost(t *testing.T) {
	var f fakes
	s := NewShared(f.open)
	a := opens(t, s, 0)
	f.list[0].lost = true
	b := opens(t, s, 0)
	if len(f.list) != 2 {
		t.Fatal("a lost context was given")
	}
	if _, err := a.Alloc(1); !errors.Is(err, driver.ErrLost) {
		t.Errorf("the lost context: %v", err)
	}
	if _, err := b.Alloc(1); err != nil || f.list[0].closed {
		t.Errorf("the new context: %v", err)
	}
	if err := errors.Join(a.Close(), b.Close()); err != nil || !f.list[0].closed || f.list[1].closed {
		t.Errorf("after both are closed: %v", err)
	}
	f.list[1].lost = true
	if opens(t, s, 0); !f.list[1].closed {
		t.Error("a lost context without users stays")
	}
}
