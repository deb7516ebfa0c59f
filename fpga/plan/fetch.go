package plan

import "fusec/fpga/isa"

// fetch puts descriptors into the queues, and executes Barrier and End itself.
type fetch struct {
	c        *clock
	asked    float64   // when the last descriptor was asked for
	arrivals []float64 // when those came that were asked for and not given
	given    int       // how many were
	at       float64   // when the last one's last beat was
}

// reader is the part of fetch that asks memory for descriptors, also for some behind End until it sees that.
type reader struct{ c *clock }

func (r *reader) next() float64 {
	f := &r.c.fetch
	if len(f.arrivals) == readAhead {
		return never
	}
	at := max(f.asked+againCycles, f.at+freeCycles)
	if f.given == len(f.c.program)-1 && len(f.arrivals) > 0 && at > max(f.arrivals[0], f.at+lookCycles) {
		return never
	}
	return at
}

func (r *reader) step(at float64) {
	f := &r.c.fetch
	f.asked = at
	f.arrivals = append(f.arrivals, r.c.ask(at, r.c.beats(), 0))
}

func (f *fetch) next() float64 {
	if f.given == len(f.c.program) || len(f.arrivals) == 0 {
		return never
	}
	cmd := f.c.program[f.given]
	at := max(f.arrivals[0]+fetchCycles, f.at+float64(passCycles+f.c.beats()))
	if e, queued := isa.EngineOf(cmd.Op()); queued {
		if len(f.c.queues[e].waiting) == isa.QueueDepth {
			return never
		}
		return at
	}
	at += ownCycles
	for _, q := range f.c.queues {
		if !q.idle() {
			return never
		}
		at = max(at, q.last()+idleCycles)
	}
	return max(at+wantCycles, f.c.semaphores(cmd))
}

func (f *fetch) step(at float64) {
	cmd := f.c.program[f.given]
	e, queued := isa.EngineOf(cmd.Op())
	switch {
	case queued:
		q := f.c.queues[e]
		q.waiting = append(q.waiting, descriptor{f.given, at + commitCycles})
	case cmd.Op() == isa.OpEnd:
		f.c.take(cmd, at)
		f.c.ended = true
		// What was asked for behind the end has to come before the machine is done.
		f.c.timing.Cycles = max(at, f.arrivals[len(f.arrivals)-1]) + endCycles
	default:
		f.c.take(cmd, at)
		f.c.post(cmd, at)
	}
	f.arrivals = f.arrivals[1:]
	f.given++
	f.at = at
}

// descriptor is one on its way, and when it got to where it is.
type descriptor struct {
	number int
	at     float64
}

// queue leads to an engine. As a part it moves descriptors to the engine's registers.
type queue struct {
	c         *clock
	engine    isa.Engine
	start     func(i int, at float64) // the engine takes a descriptor
	waiting   []descriptor
	held      []descriptor // in registers
	registers int
	working   bool              // the engine works from the register, which is not free
	free      float64           // when a register became free
	done      [underWay]float64 // of the last descriptors, the oldest first
}

// idle reports whether no descriptor waits or is being worked on.
func (q *queue) idle() bool { return len(q.waiting)+len(q.held) == 0 && !q.working }

// last is when the last descriptor is done.
func (q *queue) last() float64 { return q.done[underWay-1] }

func (q *queue) next() float64 {
	if len(q.waiting) == 0 || len(q.held) == q.registers || q.working {
		return never
	}
	cycles := float64(moveCycles + q.c.beats())
	if q.registers > 1 {
		cycles += spareCycles
	}
	return max(q.waiting[0].at, q.free) + cycles
}

func (q *queue) step(at float64) {
	q.held = append(q.held, descriptor{q.waiting[0].number, at})
	q.waiting = q.waiting[1:]
}

// finish notes that the oldest descriptor that is not done will be, and posts for it.
func (q *queue) finish(i int, done float64) {
	done = max(done, q.last())
	copy(q.done[:], q.done[1:])
	q.done[underWay-1] = done
	q.c.post(q.c.program[i], done)
}

// issue takes the semaphores of an engine's next descriptor and starts it.
type issue struct{ *queue }

func (s *issue) next() float64 {
	if len(s.held) == 0 || s.working {
		return never
	}
	at := max(s.held[0].at, s.done[0]+underCycles)
	if s.engine == isa.EngineExec {
		at = max(at, s.c.exec.taken+reissueCycles)
	}
	return max(at+wantCycles, s.c.semaphores(s.c.program[s.held[0].number]))
}

func (s *issue) step(at float64) {
	i := s.held[0].number
	s.held = s.held[1:]
	s.free = at
	s.c.take(s.c.program[i], at)
	s.start(i, at+issueCycles)
}
