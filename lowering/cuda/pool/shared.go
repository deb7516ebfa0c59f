package pool

import (
	"errors"
	"sync"

	"fusec/lowering/cuda/driver"
)

// Shared opens GPUs for a process: all users of a GPU share one context and one pool. A context takes a long time to
// make and hundreds of megabytes, so it is kept when the last user closes the GPU, and so is freed memory: a later
// program reuses both. [Shared.Release] frees them.
type Shared struct {
	open func(index int) (driver.GPU, error)

	mu   sync.Mutex
	gpus map[int]*opened
}

// opened is a shared GPU. The mutex of Shared guards the fields.
type opened struct {
	*Pool
	users   int
	dropped bool // not shared with new users; the last user closes it
}

// NewShared shares the GPUs that a function opens by their index.
func NewShared(open func(index int) (driver.GPU, error)) *Shared {
	return &Shared{open: open, gpus: map[int]*opened{}}
}

// Open returns the GPU with an index. It opens it if it is not open, or if it has been lost. Before closing it, a user
// must free its memory, modules, streams and events, which otherwise stay with the context.
func (s *Shared) Open(index int) (driver.GPU, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gpus[index]
	if g != nil {
		if _, _, err := g.Memory(); err != nil {
			delete(s.gpus, index)
			g.drop()
			g = nil
		}
	}
	if g == nil {
		gpu, err := s.open(index)
		if err != nil {
			return nil, err
		}
		g = &opened{Pool: New(gpu)}
		s.gpus[index] = g
	}
	g.users++
	return &share{Pool: g.Pool, of: s, gpu: g}, nil
}

// drop forgets a lost GPU, whose resources cannot be freed.
func (g *opened) drop() {
	g.dropped = true
	if g.users == 0 {
		g.Close()
	}
}

// Release closes the GPUs without users. For the others, it returns kept memory to the driver.
func (s *Shared) Release() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for index, g := range s.gpus {
		if g.users > 0 {
			errs = append(errs, g.Trim())
			continue
		}
		delete(s.gpus, index)
		errs = append(errs, g.Close())
	}
	return errors.Join(errs...)
}

// Same reports whether two users have one GPU, or one GPU is given twice.
func Same(a, b driver.GPU) bool {
	x, ok := a.(*share)
	y, both := b.(*share)
	return ok && both && x.gpu == y.gpu || a == b
}

// A share is a GPU for one user.
type share struct {
	*Pool
	of     *Shared
	gpu    *opened
	closed bool
}

// Close implements [driver.GPU]. Closing twice does nothing.
func (h *share) Close() error {
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	if h.closed {
		return nil
	}
	h.closed = true
	h.gpu.users--
	if h.gpu.dropped && h.gpu.users == 0 {
		return h.gpu.Close()
	}
	return nil
}
