package model

import "fusec/fpga/isa"

// entry is a descriptor under way.
type entry struct {
	number uint32
	cmd    isa.Command
}

// engine is LOAD, EXEC or STORE: its queue, its current descriptor and the end of that.
type engine struct {
	queue []entry
	now   entry
	until uint64
}

// run is the state of a running program.
type run struct {
	engines    [isa.Engines]engine
	semaphores [isa.Semaphores]int
	next       uint32 // number of the descriptor to be fetched next
	held       *entry // fetched, and waiting for its queue
	held1      entry
}

func (r *run) reset() {
	for i := range r.engines {
		r.engines[i] = engine{queue: r.engines[i].queue[:0]}
	}
	r.semaphores, r.next, r.held = [isa.Semaphores]int{}, 0, nil
}

// start executes the program in the registers: fetch and the engines take turns, and when none can proceed, time
// advances to the end of the next running descriptor.
func (m *Machine) start() {
	r := &m.run
	r.next, r.held = 0, nil
	r.semaphores = [isa.Semaphores]int{}
	m.counters = [isa.Counters]uint64{}
	m.status = isa.StatusBusy
	tracker := newTracker(m)
	for m.status == isa.StatusBusy {
		if m.fetch(tracker) || m.begin(tracker) || m.finish() {
			continue
		}
		if m.watchdog == 0 {
			return
		}
		m.counters[isa.CountCycles] += uint64(m.watchdog)
		m.stop(isa.ErrWatchdog, r.next-1)
	}
	m.race = tracker.races()
}

// stop ends the program with an error.
func (m *Machine) stop(e isa.Error, number uint32) {
	m.status, m.fault, m.faultAt = isa.StatusError, e, number
}

// end is the first address behind the program's memory.
func (m *Machine) end() int64 {
	if m.limit == 0 {
		return m.options.Memory
	}
	return min(int64(m.limit), m.options.Memory)
}

// fetch fetches a descriptor or passes on the one that it has, and reports whether it could.
func (m *Machine) fetch(t *tracker) bool {
	r := &m.run
	if r.held == nil {
		at := int64(m.program) + int64(r.next)*isa.DescBytes
		number := r.next
		r.next++
		if at%isa.DescBytes != 0 || at+isa.DescBytes > m.end() {
			m.stop(isa.ErrMemory, number)
			return true
		}
		cmd, err := isa.Decode(m.memory[at:])
		if err != nil {
			m.stop(isa.ErrOp, number)
			return true
		}
		m.counters[isa.CountDescriptors]++
		m.counters[isa.CountReadBeats] += uint64(isa.DescBytes / m.cfg.WordBytes)
		r.held1 = entry{number, cmd}
		r.held = &r.held1
		return true
	}
	e, ok := isa.EngineOf(r.held.cmd.Op())
	if ok {
		if len(r.engines[e].queue) == isa.QueueDepth {
			return false
		}
		r.engines[e].queue = append(r.engines[e].queue, *r.held)
		r.held = nil
		return true
	}
	for i := range r.engines {
		if r.engines[i].now.cmd != nil || len(r.engines[i].queue) > 0 {
			return false
		}
	}
	if !m.take(r.held.cmd) {
		return false
	}
	t.barrier(*r.held)
	if !m.post(*r.held) {
		return true
	}
	if r.held.cmd.Op() == isa.OpEnd {
		m.status = isa.StatusDone
	}
	r.held = nil
	return true
}

// take takes one from each semaphore that a command waits for, if it can.
func (m *Machine) take(c isa.Command) bool {
	wait := c.Syncs().Wait
	for s, n := range m.run.semaphores {
		if wait>>s&1 != 0 && n == 0 {
			return false
		}
	}
	for s := range m.run.semaphores {
		m.run.semaphores[s] -= int(wait >> s & 1)
	}
	return true
}

// post gives each semaphore of a command's mask one more. If one is full, the machine stops.
func (m *Machine) post(e entry) bool {
	for s := range m.run.semaphores {
		if e.cmd.Syncs().Post>>s&1 == 0 {
			continue
		}
		if m.run.semaphores[s] == isa.SemaphoreMax {
			m.stop(isa.ErrSemaphore, e.number)
			return false
		}
		m.run.semaphores[s]++
	}
	return true
}

// begin starts descriptors on idle engines, and reports whether any could start.
func (m *Machine) begin(t *tracker) (any bool) {
	for i := range m.run.engines {
		e := &m.run.engines[i]
		if e.now.cmd != nil || len(e.queue) == 0 || !m.take(e.queue[0].cmd) {
			continue
		}
		any = true
		e.now = e.queue[0]
		e.queue = append(e.queue[:0], e.queue[1:]...)
		if f := m.cfg.Verify(e.now.cmd, m.end()); f != nil {
			m.stop(f.Code, e.now.number)
			return
		}
		t.begin(e.now, isa.Engine(i))
		m.touch(t, e.now.cmd)
		busy := m.cost(e.now.cmd)
		m.count(isa.Engine(i), e.now.cmd, busy)
		if code := m.do(t, e.now.cmd); code != isa.ErrNone {
			m.stop(code, e.now.number)
			return
		}
		e.until = m.counters[isa.CountCycles] + busy
	}
	return
}

// finish advances to the time at which the next descriptors end, and reports whether there are any.
func (m *Machine) finish() bool {
	at := ^uint64(0)
	for _, e := range m.run.engines {
		if e.now.cmd != nil {
			at = min(at, e.until)
		}
	}
	if at == ^uint64(0) {
		return false
	}
	if x := &m.run.engines[isa.EngineExec]; x.now.cmd == nil && len(x.queue) > 0 {
		m.counters[isa.CountExecWaits] += at - m.counters[isa.CountCycles]
	}
	m.counters[isa.CountCycles] = at
	for i := range m.run.engines {
		e := &m.run.engines[i]
		if e.now.cmd != nil && e.until == at {
			done := e.now
			e.now = entry{}
			if !m.post(done) {
				return true
			}
		}
	}
	return true
}

// touch records the accesses of a command of EXEC.
func (m *Machine) touch(t *tracker, c isa.Command) {
	if t == nil {
		return
	}
	switch d := c.(type) {
	case *isa.Gemm:
		m.touchGemm(t, d)
	case *isa.Attention:
		m.touchAttention(t, d)
	case *isa.Vector:
		m.touchVector(t, d)
	case *isa.Route:
		m.touchRoute(t, d)
	}
}

// do executes a command. The accesses of Load and Store depend on lists, so they are recorded during execution.
func (m *Machine) do(t *tracker, c isa.Command) isa.Error {
	switch d := c.(type) {
	case *isa.Load:
		return m.load(t, d)
	case *isa.Store:
		return m.store(t, d)
	case *isa.Stamp:
		m.stamp(t, d)
	case *isa.Gemm:
		m.gemm(d)
	case *isa.Attention:
		m.attention(d)
	case *isa.Vector:
		m.vector(d)
	case *isa.Route:
		m.route(d)
	}
	return isa.ErrNone
}
