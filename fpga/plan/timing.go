package plan

import (
	"fmt"
	"math"
	"slices"

	"fusec/fpga/isa"
)

// Memory is external memory as the overlay sees it.
type Memory struct {
	// Bytes that it delivers in a cycle, at most a beat of WordBytes, and also the bytes that it accepts.
	Bytes float64
	// Latency is the cycles from a read request to its first beat, and from a beat written to when all see it.
	Latency int
	// Gap is the cycles lost at the beginning of each burst that is read.
	Gap int
	// Shared is whether reads and writes share the bytes.
	Shared bool
}

// Timing is the time of a program.
type Timing struct {
	Cycles   float64
	Multiply float64              // cycles in which the array gets operands
	Busy     [isa.Engines]float64 // cycles in which each engine works, the waits for semaphores left out
	Read     float64              // beats
	Written  float64
	Stamps   []float64 // when each Stamp reads the counters
}

// Utilisation is the share of cycles in which the array multiplies.
func (t *Timing) Utilisation() float64 {
	if t.Cycles == 0 {
		return 0
	}
	return t.Multiply / t.Cycles
}

// Loads are how many tokens a Route sends to each expert, by the Route's number among a program's descriptors. One that is not
// there is taken to send equally many to each.
type Loads map[int][]int

// never is when something happens that waits for something else.
var never = math.Inf(1)

// part is a part of the machine that does one thing after the other.
type part interface {
	next() float64   // when it could do the next thing, never if it waits for another part
	step(at float64) // does it
}

// clock is the simulation of the machine. Parts act in the order of time, so that each sees the state that the others
// have left.
type clock struct {
	cfg     isa.Config
	mem     Memory
	program []isa.Command
	loads   Loads

	fetch       fetch
	queues      [isa.Engines]*queue
	load        loader
	exec        executor
	store       storer
	read, write channel
	tokens      [isa.Semaphores][]float64 // when each was posted, in order
	took        float64                   // when the last were taken
	lists       lists
	ended       bool
	timing      Timing
}

// Predict follows a program through the machine, without computing anything: descriptors through fetch, queues and semaphores,
// rows and bursts through LOAD, STORE and memory. How long EXEC takes follows from the structure of the hardware; the constants
// are those of fpga/rtl. The error names a descriptor that can never start.
func Predict(cfg isa.Config, mem Memory, program []isa.Command, loads Loads) (*Timing, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	if mem.Bytes <= 0 {
		return nil, fmt.Errorf("memory of %v bytes a cycle", mem.Bytes)
	}
	c := newClock(cfg, mem, program, loads)
	parts := []part{&reader{c}, &c.fetch, &c.load, &c.store}
	for _, q := range c.queues {
		parts = append(parts, q, &issue{q})
	}
	now := 0.0
	for !c.ended {
		var first part
		at := never
		for _, p := range parts {
			if t := p.next(); t < at {
				first, at = p, t
			}
		}
		if first == nil {
			return nil, c.stuck()
		}
		now = max(now, at)
		first.step(now)
	}
	return &c.timing, nil
}

func newClock(cfg isa.Config, mem Memory, program []isa.Command, loads Loads) *clock {
	c := &clock{cfg: cfg, mem: mem, program: program, loads: loads}
	c.fetch = fetch{c: c, asked: startCycles - againCycles}
	c.load, c.store, c.exec = loader{c: c}, storer{c: c}, executor{c: c, op: isa.OpGemm}
	pace := max(1, float64(cfg.WordBytes)/mem.Bytes)
	c.read, c.write = channel{pace: pace}, channel{pace: pace}
	for e, start := range [...]func(i int, at float64){c.load.start, c.exec.start, c.store.start} {
		c.queues[e] = &queue{c: c, engine: isa.Engine(e), start: start, registers: 1}
	}
	c.queues[isa.EngineExec].registers = 2 // with the spare one
	c.lists = lists{counts: make([]int, max(cfg.Experts, 1)), most: cfg.ListLen}
	return c
}

// stuck reports what waits forever.
func (c *clock) stuck() error {
	for _, q := range c.queues {
		if len(q.held) > 0 {
			i := q.held[0].number
			return fmt.Errorf("descriptor %d (%s) waits for a semaphore that nothing posts", i, isa.Text(c.program[i]))
		}
	}
	if c.fetch.given == len(c.program) {
		return fmt.Errorf("a program of %d descriptors without an end", len(c.program))
	}
	i := c.fetch.given
	return fmt.Errorf("descriptor %d (%s) waits for a semaphore that nothing posts", i, isa.Text(c.program[i]))
}

// beats is how many beats a descriptor has.
func (c *clock) beats() int { return isa.DescBytes / c.cfg.WordBytes }

// semaphores is when all that a command waits for can be taken.
func (c *clock) semaphores(cmd isa.Command) float64 {
	at := c.took + takeCycles
	for s := range isa.Semaphores {
		if cmd.Syncs().Wait>>s&1 == 0 {
			continue
		}
		if len(c.tokens[s]) == 0 {
			return never
		}
		at = max(at, c.tokens[s][0]+semaphoreCycles)
	}
	return at
}

// take takes them.
func (c *clock) take(cmd isa.Command, at float64) {
	c.took = at
	for s := range isa.Semaphores {
		if cmd.Syncs().Wait>>s&1 != 0 {
			c.tokens[s] = c.tokens[s][1:]
		}
	}
}

// post posts those of a command that is done.
func (c *clock) post(cmd isa.Command, done float64) {
	for s := range isa.Semaphores {
		if cmd.Syncs().Post>>s&1 != 0 {
			i := len(c.tokens[s])
			for i > 0 && c.tokens[s][i-1] > done {
				i--
			}
			c.tokens[s] = slices.Insert(c.tokens[s], i, done)
		}
	}
}

// channel is one way of external memory.
type channel struct {
	pace float64 // cycles a beat
	last float64 // when the last beat passes
}

// transfer is when the last beat passes of those that could begin at a time, and take so many cycles each at least.
func (ch *channel) transfer(at float64, beats int, pace float64) float64 {
	pace = max(pace, ch.pace)
	ch.last = max(at, ch.last+pace) + float64(beats-1)*pace
	return ch.last
}

// ask is when the last beat of a burst arrives that is asked for at a time.
func (c *clock) ask(at float64, beats int, pace float64) float64 {
	c.timing.Read += float64(beats)
	begin := max(at+requestCycles+float64(c.mem.Latency), c.read.last+1)
	return c.read.transfer(begin+float64(c.mem.Gap), beats, pace)
}

// put is when the last beat is written of those that are offered from a time on.
func (c *clock) put(at float64, beats int) float64 {
	c.timing.Written += float64(beats)
	pace := c.write.pace
	if c.mem.Shared && c.read.last > at { // reads and writes take turns
		c.read.last += float64(beats) * pace
		pace *= 2
	}
	return c.write.transfer(at, beats, pace)
}

// Add appends the time of another program.
func (t *Timing) Add(o *Timing) {
	t.Cycles += o.Cycles
	t.Multiply += o.Multiply
	for e := range t.Busy {
		t.Busy[e] += o.Busy[e]
	}
	t.Read += o.Read
	t.Written += o.Written
}

// Bound is the busiest part: the array, vector work (norms, routing and other work of EXEC without the array), reads or
// writes of memory. If none of them is busy for two thirds of the time, it is waits: work that cannot overlap.
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
