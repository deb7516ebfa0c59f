package model

import (
	"fmt"

	"fusec/fpga/isa"
)

// Race is a conflict of two descriptors that access the same words without an order, where one of them writes. First
// equals Second for a descriptor that overwrites words before it reads them.
type Race struct {
	First, Second           uint32 // their numbers
	FirstText, SecondText   string
	Where                   string // such as "word 12 of X"
	firstWrites, lastWrites bool
}

// Error implements error.
func (r *Race) Error() string {
	verb := func(writes bool) string {
		if writes {
			return "writes"
		}
		return "reads"
	}
	if r.First == r.Second {
		return fmt.Sprintf("race: descriptor %d (%s) writes %s before it has read it", r.First, r.FirstText, r.Where)
	}
	return fmt.Sprintf("race: descriptor %d (%s) %s %s and descriptor %d (%s) %s it: nothing orders them",
		r.First, r.FirstText, verb(r.firstWrites), r.Where, r.Second, r.SecondText, verb(r.lastWrites))
}

// Misuse is a descriptor that continues an operation that was not started, such as a Gemm with More after one without
// Hold.
type Misuse struct {
	Number uint32
	Text   string
	Reason string
}

// Error implements error.
func (e *Misuse) Error() string {
	return fmt.Sprintf("descriptor %d (%s): %s", e.Number, e.Text, e.Reason)
}

// Memory is a memory that descriptors touch. Those below External are the scratchpads, by their isa.Space.
type Memory uint8

// The memories, and the units in which they are counted.
const (
	External Memory = iota + Memory(isa.SpaceParams) // words
	Params                                           // records
	Tables
	Lists
	Gates // tokens
)

var memoryNames = [...]string{"word %d of Y", "word %d of X", "word %d of W", "word %d of memory", "record %d",
	"table %d",
	"the list of expert %d", "the gates of token %d"}

// Access is a run of words that a descriptor reads or writes.
type Access struct {
	Memory Memory
	Writes bool
	At, N  int64

	event int32
	// What is read element by element may be overwritten in place: in an access of the same words with the same tag,
	// not 0.
	tag int32
}

// event is a descriptor in the order in which they began. Its clock has, for each engine, how many of that engine's
// descriptors are sure to be complete.
type event struct {
	entry
	engine  isa.Engine
	place   int // in the order of its engine, from one
	segment int // barriers before it
	clock   [isa.Engines]int
}

// segment is the part between two barriers: the semaphores' counts at its start, and the engines that post each of
// them.
type segment struct {
	counts [isa.Semaphores]int
	posts  [isa.Semaphores][isa.Engines][]int32 // events
}

// tracker records the accesses of a program's descriptors. A nil tracker records nothing.
type tracker struct {
	m        *Machine
	events   []event
	accesses []Access
	segments []segment
	holding  bool // the array holds sums
	open     bool // attention's state awaits more keys
	misuse   error
}

func newTracker(m *Machine) *tracker {
	if !m.options.Races {
		return nil
	}
	return &tracker{m: m, segments: []segment{{counts: m.run.semaphores}}}
}

// begin records the start of a descriptor, to which the following accesses belong.
func (t *tracker) begin(e entry, on isa.Engine) {
	if t == nil {
		return
	}
	id, seg := int32(len(t.events)), len(t.segments)-1
	t.events = append(t.events, event{entry: e, engine: on, segment: seg})
	if t.holding && on == isa.EngineExec && e.cmd.Op() != isa.OpGemm {
		t.complain("the array holds the sums of a Gemm with Hold, which its next descriptor has to go on with")
	}
	for s := range isa.Semaphores {
		if e.cmd.Syncs().Post>>s&1 != 0 {
			p := &t.segments[seg].posts[s][on]
			*p = append(*p, id)
		}
	}
}

// barrier notes that a Barrier has taken its semaphores, all engines being idle.
func (t *tracker) barrier(e entry) {
	if t == nil {
		return
	}
	next := segment{counts: t.m.run.semaphores}
	for s := range next.counts {
		next.counts[s] += int(e.cmd.Syncs().Post >> s & 1)
	}
	t.segments = append(t.segments, next)
}

// touch notes an access.
func (t *tracker) touch(k Memory, at, n int64, writes bool) {
	if t != nil {
		t.accesses = append(t.accesses, Access{k, writes, at, n, int32(len(t.events) - 1), 0})
	}
}

// tagged gives the last access a tag.
func (t *tracker) tagged(tag int) {
	if t != nil {
		t.accesses[len(t.accesses)-1].tag = int32(tag)
	}
}

// words notes an access to words of a scratchpad.
func (t *tracker) words(s isa.Space, word, n int, writes bool) {
	t.touch(Memory(s), int64(word), int64(n), writes)
}

// memory notes an access to bytes of external memory.
func (t *tracker) memory(at int64, bytes int, writes bool) {
	if t != nil {
		w := int64(t.m.cfg.WordBytes)
		t.touch(External, at/w, int64(bytes)/w, writes)
	}
}

// complain notes a misuse by the descriptor that is beginning.
func (t *tracker) complain(reason string) {
	if e := t.events[len(t.events)-1]; t.misuse == nil {
		t.misuse = &Misuse{e.number, isa.Text(e.cmd), reason}
	}
}

// hold notes a Gemm's flags.
func (t *tracker) hold(more, hold bool) {
	if t == nil {
		return
	}
	if more && !t.holding {
		t.complain("More, but the array holds no sums of a Gemm with Hold")
	}
	if !more && t.holding {
		t.complain("no More, but the array holds the sums of a Gemm with Hold")
	}
	t.holding = hold
}

// state notes an Attention's flags.
func (t *tracker) state(first, last bool) {
	if t == nil {
		return
	}
	if !first && !t.open {
		t.complain("no Attention with First began the queries' state")
	}
	t.open = !last
}

// order computes the events' clocks. The j-th wait of an engine on a semaphore comes after as many posts as are missing
// from the count at the segment's start; if several engines post it, all posts of the others may have come first.
func (t *tracker) order() {
	var last [isa.Engines]int32 // the engine's event before, plus one
	var takes [isa.Semaphores][isa.Engines]int
	segment := 0
	for id := range t.events {
		e := &t.events[id]
		if e.segment != segment {
			segment, takes = e.segment, [isa.Semaphores][isa.Engines]int{}
		}
		if p := last[e.engine]; p > 0 {
			e.clock, e.place = t.events[p-1].clock, t.events[p-1].place
		}
		e.place++
		last[e.engine] = int32(id) + 1
		for s := range isa.Semaphores {
			if e.cmd.Syncs().Wait>>s&1 == 0 {
				continue
			}
			takes[s][e.engine]++
			missing := takes[s][e.engine] - t.segments[segment].counts[s]
			posts := &t.segments[segment].posts[s]
			total := 0
			for _, p := range posts {
				total += len(p)
			}
			for _, p := range posts {
				n := missing - (total - len(p))
				if n <= 0 {
					continue
				}
				from := &t.events[p[n-1]]
				for i, c := range from.clock {
					e.clock[i] = max(e.clock[i], c)
				}
				e.clock[from.engine] = max(e.clock[from.engine], from.place)
			}
		}
	}
}

// before is whether event a is complete when b begins, whatever the engines' speed.
func (t *tracker) before(a, b int32) bool {
	x, y := &t.events[a], &t.events[b]
	return x.segment < y.segment || y.clock[x.engine] >= x.place
}

// races is the first race of the program that has ended, or misuse, or nil.
func (t *tracker) races() error {
	if t == nil || t.misuse != nil {
		if t == nil {
			return nil
		}
		return t.misuse
	}
	t.order()
	if err := t.overwrites(); err != nil {
		return err
	}
	var found error
	words := shadow{}
	for _, a := range t.accesses {
		words.touch(a, a.event+1, t.events[a.event].engine, func(c conflict) bool {
			if !t.before(c.earlier-1, a.event) {
				found = t.race(c.earlier-1, a.event, a.Memory, c.at, c.writes, a.Writes)
			}
			return found == nil
		})
		if found != nil {
			return found
		}
	}
	return nil
}

// overwrites finds a descriptor of EXEC that writes words that it reads, except for elements in place.
func (t *tracker) overwrites() error {
	for from := 0; from < len(t.accesses); {
		to := from
		for to < len(t.accesses) && t.accesses[to].event == t.accesses[from].event {
			to++
		}
		of := t.accesses[from:to]
		from = to
		if t.events[of[0].event].engine != isa.EngineExec {
			continue
		}
		for _, w := range of {
			for _, r := range of {
				inPlace := r.tag == w.tag && r.tag != 0 && r.At == w.At && r.N == w.N
				if w.Writes && !r.Writes && r.Memory == w.Memory && !inPlace && r.At < w.At+w.N && w.At < r.At+r.N {
					return t.race(w.event, w.event, w.Memory, max(w.At, r.At), true, false)
				}
			}
		}
	}
	return nil
}

func (t *tracker) race(a, b int32, k Memory, at int64, aWrites, bWrites bool) error {
	x, y := t.events[a], t.events[b]
	if x.number > y.number {
		x, y, aWrites, bWrites = y, x, bWrites, aWrites
	}
	return &Race{x.number, y.number, isa.Text(x.cmd), isa.Text(y.cmd), fmt.Sprintf(memoryNames[k], at), aWrites,
		bWrites}
}
