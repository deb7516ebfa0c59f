package plan

import (
	"fmt"
	"slices"

	"fusec/fpga/isa"
)

// Memory is external memory as the overlay sees it.
type Memory struct {
	// Bytes a cycle that it delivers, at most a beat of WordBytes, and as many that it takes.
	Bytes float64
	// Latency is the cycles from a read request to its first beat.
	Latency int
	// Gap is the cycles lost at the beginning of each burst.
	Gap int
	// Shared is whether reads and writes share the bytes.
	Shared bool
}

// Span is when a descriptor was under way, in cycles from the start of the program: it began when its semaphores let it, and
// what it wrote could be read at Done.
type Span struct{ Start, Done float64 }

// Timing is what a program takes.
type Timing struct {
	Cycles   float64
	Multiply float64              // cycles in which the array gets operands
	Busy     [isa.Engines]float64 // cycles in which each engine works, the waits for semaphores left out
	Read     float64              // beats
	Written  float64
	Spans    []Span // of each descriptor
	Stamps   []float64
}

// Utilisation is the share of cycles in which the array multiplies.
func (t *Timing) Utilisation() float64 {
	if t.Cycles == 0 {
		return 0
	}
	return t.Multiply / t.Cycles
}

// clock is the state of the machine as time goes on.
type clock struct {
	cfg isa.Config
	mem Memory

	free        [isa.Engines]float64 // when the engine can take its next descriptor
	last        [isa.Engines]float64 // when its last descriptor is done, in order
	read, write float64              // when the channel is free
	tokens      [isa.Semaphores][]float64
	lists       []int
	alone       bool // EXEC's last command was no Gemm
	timing      Timing
}

// Predict follows a program descriptor by descriptor, without computing anything: each engine takes its own in order, when the
// queue, the semaphores and the engine before it let it. How long a descriptor takes follows from the structure of the
// hardware; the constants are those of fpga/rtl. A router is taken to spread its tokens evenly. The error names a descriptor that
// can never start.
func Predict(cfg isa.Config, mem Memory, program []isa.Command) (*Timing, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	if mem.Bytes <= 0 {
		return nil, fmt.Errorf("memory of %v bytes a cycle", mem.Bytes)
	}
	c := &clock{cfg: cfg, mem: mem, lists: make([]int, max(cfg.Experts, 1))}
	c.timing.Spans = make([]Span, len(program))
	var queues [isa.Engines][]int // descriptors fetched and not started
	var begun [isa.Engines][]float64
	fetched := 0.0
	next := 0
	for done := false; !done; {
		progress := false
		// Fetch hands out descriptors until a queue is full.
		for next < len(program) {
			cmd := program[next]
			e, queued := isa.EngineOf(cmd.Op())
			if !queued {
				if len(queues[isa.EngineLoad])+len(queues[isa.EngineExec])+len(queues[isa.EngineStore]) > 0 {
					break
				}
				fetched = max(fetched, slices.Max(c.last[:])) + barrierCycles
				c.timing.Spans[next] = Span{fetched, fetched}
				next++
				progress = true
				if cmd.Op() == isa.OpEnd {
					c.timing.Cycles = fetched + endCycles
					done = true
					break
				}
				continue
			}
			if len(queues[e]) == isa.QueueDepth {
				break
			}
			// The descriptor itself is read from memory, and waits for room in its queue.
			beats := float64(isa.DescBytes/cfg.WordBytes) / c.beatRate()
			fetched = max(fetched+beats, c.firstFetch())
			c.read += beats + float64(mem.Gap)/4
			if n := len(begun[e]); n >= isa.QueueDepth {
				fetched = max(fetched, begun[e][n-isa.QueueDepth])
			}
			c.timing.Read += float64(isa.DescBytes / cfg.WordBytes)
			c.timing.Spans[next].Start = fetched
			queues[e] = append(queues[e], next)
			next++
			progress = true
		}
		// The engine whose next descriptor starts first goes first, so that memory is shared in the order of time.
		best, at := isa.Engines, 0.0
		for e := range isa.Engines {
			if len(queues[e]) == 0 {
				continue
			}
			if start, ok := c.ready(e, program[queues[e][0]], c.timing.Spans[queues[e][0]].Start); ok && (best == isa.Engines || start < at) {
				best, at = e, start
			}
		}
		if best < isa.Engines {
			i := queues[best][0]
			queues[best] = queues[best][1:]
			begun[best] = append(begun[best], at)
			c.run(best, i, program[i], at)
			progress = true
		}
		if !progress {
			return nil, c.stuck(program, queues)
		}
		if next == len(program) && !done && len(queues[0])+len(queues[1])+len(queues[2]) == 0 {
			return nil, fmt.Errorf("a program of %d descriptors without an end", len(program))
		}
	}
	return &c.timing, nil
}

// stuck names the descriptors that wait for ever.
func (c *clock) stuck(program []isa.Command, queues [isa.Engines][]int) error {
	for _, q := range queues {
		if len(q) > 0 {
			return fmt.Errorf("descriptor %d (%s) waits for a semaphore that nothing posts", q[0], isa.Text(program[q[0]]))
		}
	}
	return fmt.Errorf("the program does not go on")
}

// beatRate is beats a cycle.
func (c *clock) beatRate() float64 { return min(1, c.mem.Bytes/float64(c.cfg.WordBytes)) }

func (c *clock) firstFetch() float64 { return float64(c.mem.Latency) + fetchCycles }

// ready is when a descriptor can start; it cannot while a semaphore of its has no token.
func (c *clock) ready(e isa.Engine, cmd isa.Command, fetched float64) (float64, bool) {
	at := max(fetched+queueCycles, c.free[e])
	for s := range isa.Semaphores {
		if cmd.Syncs().Wait>>s&1 == 0 {
			continue
		}
		if len(c.tokens[s]) == 0 {
			return 0, false
		}
		at = max(at, c.tokens[s][0]+semaphoreCycles)
	}
	return at, true
}

// run takes a descriptor through its engine.
func (c *clock) run(e isa.Engine, i int, cmd isa.Command, start float64) {
	for s := range isa.Semaphores {
		if cmd.Syncs().Wait>>s&1 != 0 {
			c.tokens[s] = c.tokens[s][1:]
		}
	}
	var free, done float64
	switch x := cmd.(type) {
	case *isa.Load:
		rows := int(x.Rows)
		if x.Gather || x.Skip {
			left := c.listed(x.List) - int(x.Start)
			switch {
			case x.Gather:
				rows = max(0, min(rows, left))
			case left <= 0:
				rows = 0
			}
		}
		free, done = c.transfer(&c.read, start, rows, int(x.Words), float64(c.mem.Latency)+loadCycles)
		c.timing.Read += float64(rows) * float64(x.Words)
	case *isa.Store:
		rows := int(x.Rows)
		if x.Scatter {
			rows = max(0, min(rows, c.listed(x.List)-int(x.Start)))
		}
		free, done = c.transfer(&c.write, start, rows, int(x.Words), storeCycles)
		c.timing.Written += float64(rows) * float64(x.Words)
	case *isa.Stamp:
		done = start + float64(stampBytes/c.cfg.WordBytes) + storeCycles
		free = done
		c.timing.Stamps = append(c.timing.Stamps, start)
	default:
		if c.alone && cmd.Op() != isa.OpAttention || cmd.Op() == isa.OpVector || cmd.Op() == isa.OpRoute {
			start = max(start, c.last[e]) // lanes and array change hands when all is written
		}
		c.alone = cmd.Op() != isa.OpGemm
		busy, drain, multiply := c.exec(cmd)
		free = start + busy
		done = free + drain
		c.timing.Multiply += multiply
	}
	c.timing.Busy[e] += free - start
	done = max(done, c.last[e])
	c.free[e], c.last[e] = free, done
	for s := range isa.Semaphores {
		if cmd.Syncs().Post>>s&1 != 0 {
			c.tokens[s] = append(c.tokens[s], done)
			slices.Sort(c.tokens[s])
		}
	}
	c.timing.Spans[i] = Span{start, done}
}

// transfer moves rows through a channel: it is free for the next descriptor when the last request is out, and done a latency later.
func (c *clock) transfer(channel *float64, start float64, rows, words int, latency float64) (free, done float64) {
	if rows == 0 {
		return start + 2, start + 2
	}
	bursts := rows * ((words + maxBurst - 1) / maxBurst)
	cycles := float64(rows*words)/c.beatRate() + float64(bursts*c.mem.Gap)
	if c.mem.Shared {
		both := max(c.read, c.write)
		c.read, c.write = both, both
	}
	begin := max(start, *channel)
	*channel = begin + cycles
	return begin + cycles, begin + cycles + latency
}

// Add puts what another program takes behind this one.
func (t *Timing) Add(o *Timing) {
	t.Cycles += o.Cycles
	t.Multiply += o.Multiply
	for e := range t.Busy {
		t.Busy[e] += o.Busy[e]
	}
	t.Read += o.Read
	t.Written += o.Written
}

// Bound says what is busiest: the array, vector work (norms, routing and what else EXEC does without the array), reads or
// writes of memory. Where none of them is busy for two thirds of the time it is waits: work that cannot overlap.
func (t *Timing) Bound(cfg isa.Config, mem Memory) string {
	rate := min(1, mem.Bytes/float64(cfg.WordBytes))
	read, written := t.Read/rate, t.Written/rate
	if mem.Shared {
		read += written
	}
	name, most := "waits", t.Cycles*2/3
	for _, b := range []struct {
		name   string
		cycles float64
	}{{"array", t.Multiply}, {"reads", read}, {"writes", written}, {"vector work", t.Busy[isa.EngineExec] - t.Multiply}} {
		if b.cycles > most {
			name, most = b.name, b.cycles
		}
	}
	return name
}
