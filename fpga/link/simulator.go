package link

import (
	"context"
	"time"

	"fusec/fpga/isa"
)

// MemoryModel is how a simulator's external memory answers; the zero value is memory that answers at once, a beat a
// cycle.
type MemoryModel struct {
	// Beats a cycle, Num/Den, at most one; 0/0 is 1.
	Num, Den uint32
	// Latency is the cycles from a read's request to its first beat, and from a write to when it can be read.
	Latency uint32
	// Burst is the cycles more before the first beat of each burst.
	Burst uint32
	// Stall is the chance, in 1/65536, that a beat or a request is not taken in a cycle, Seed where the draws begin.
	Stall, Seed uint32
	// Shared is whether reads and writes share the rate.
	Shared bool
}

// words are the model as simulators take it.
func (m MemoryModel) words() (w [8]uint32) {
	if m.Den == 0 {
		m.Num, m.Den = 1, 1
	}
	w = [8]uint32{m.Num, m.Den, m.Latency, m.Burst, m.Stall, m.Seed}
	if m.Shared {
		w[6] = 1
	}
	return w
}

// Simulator is a Link to a simulation.
type Simulator interface {
	Link
	// SetMemory changes how memory answers.
	SetMemory(MemoryModel) error
	// Cycles are the clock cycles since power-on.
	Cycles() (uint64, error)
}

// pacer runs a simulation until done or error, some cycles at a time, about a fifth of a second, so that the end of ctx
// is seen.
type pacer struct{ cycles uint64 }

func (s *pacer) run(ctx context.Context, run func(cycles uint64) (uint32, error)) (uint32, error) {
	if s.cycles == 0 {
		s.cycles = 1 << 14
	}
	for {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		start := time.Now()
		status, err := run(s.cycles)
		if err != nil || status&(isa.StatusDone|isa.StatusError) != 0 || status&isa.StatusBusy == 0 {
			return status, err
		}
		switch t := time.Since(start); {
		case t < 100*time.Millisecond:
			s.cycles *= 2
		case t > 400*time.Millisecond:
			s.cycles = max(s.cycles/2, 1)
		}
	}
}
