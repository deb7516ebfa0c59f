package pool

import (
	"errors"
	"sync"

	"fusec/lowering/cuda/driver"
)

// Shared opens GPUs for a process: all who open one have the same context and the same pool. A context takes the driver
// long to make and hundreds of megabytes, so it stays when the last of them closes the GPU, and with it the memory that
// they have freed: a program that is made after another begins with what that had. [Shared.Release] gives both back.
type Shared struct {
	open func(index int) (driver.GPU, error)

	mu   sync.Mutex
	gpus map[int]*opened
}

// opened is a GPU that is shared. The fields are the Shared's to guard.
type opened struct {
	*Pool
	users   int
	dropped bool // nobody gets it any more; the last user closes it
}

// NewShared shares the GPUs that a function opens by their index.
func NewShared(open func(index int) (driver.GPU, error)) *Shared {
	return &Shared{open: open, gpus: map[int]*opened{}}
}

// Open gives the GPU of an index, which is opened if it is not, or if it has been lost. Who closes it has freed what he
// took: memory, modules, streams and events stay with the context otherwise.
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

// drop lets go of a GPU that is lost, of which nothing can be given back.
func (g *opened) drop() {
	g.dropped = true
	if g.users == 0 {
		g.Close()
	}
}

// Release closes the GPUs that nobody has open. Of the others, the memory that is kept goes back to the driver.
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

// A share is a GPU for one who has opened it.
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
