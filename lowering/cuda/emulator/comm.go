//go:build linux && (amd64 || arm64)

package emulator

// Exchanges between the devices of participants, through their group on the host.

import (
	"errors"
	"fmt"

	"fusec/graph"
	"fusec/kernels/group"
	"fusec/lowering/cuda/driver"
)

type comm struct {
	gpu    *gpu
	team   *group.Team
	closed bool
}

// Join implements [driver.GPU]. Participants exchange values through the team itself.
func (g *gpu) Join(t *group.Team, _ int) (driver.Comm, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return &comm{gpu: g, team: t}, g.alive("Join")
}

func (c *comm) Queue(s driver.Stream, list []driver.Exchange) error {
	if c.closed {
		return errors.New("Queue: the communicator is closed")
	}
	for _, x := range list {
		if err := s.(*stream).exchange(func() error { return c.exchange(x) }); err != nil {
			return err
		}
	}
	return nil
}

func (c *comm) Copies() bool { return false }

// exchange makes an exchange of copies, so that the device is not locked while others are waited for.
func (c *comm) exchange(x driver.Exchange) error {
	sent := x.Elems * x.DType.Size()
	from, to := aligned(sent), aligned(group.ResultBytes(x.Op, sent, c.team.Size()))
	if err := c.copy(x.X, from, false); err != nil {
		return fmt.Errorf("%s: its operand: %w", x.Op.OpName(), err)
	}
	if err := c.team.Collective(x.Op, x.DType, from, to); err != nil {
		return err
	}
	if err := c.copy(x.Y, to, true); err != nil {
		return fmt.Errorf("%s: its result: %w", x.Op.OpName(), err)
	}
	return nil
}

// aligned is memory for elements of any type.
func aligned(bytes int) []byte {
	return graph.NewTensor(graph.TypeOf(graph.F64, (bytes+7)/8)).Bytes()[:bytes]
}

// copy copies bytes from the device's memory, all of which have to be known, or to it.
func (c *comm) copy(at driver.Ptr, b []byte, to bool) error {
	c.gpu.mu.Lock()
	defer c.gpu.mu.Unlock()
	if err := c.gpu.alive("exchange"); err != nil {
		return err
	}
	data, known, err := c.gpu.find(at, int64(len(b)))
	switch {
	case err != nil:
		return err
	case to:
		copy(data, b)
		fill(known, 1)
		return nil
	}
	for i, k := range known {
		if k == 0 {
			return fmt.Errorf("byte %d of %d was never written", i, len(known))
		}
	}
	copy(b, data)
	return nil
}

func (c *comm) Failed() error { return nil }

func (c *comm) Abort() error { return c.Close() }

func (c *comm) Close() error {
	c.closed = true
	return nil
}
