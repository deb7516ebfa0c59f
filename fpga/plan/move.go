package plan

import (
	"math/bits"

	"fusec/fpga/isa"
)

// rows are the rows of a command of LOAD or STORE.
type rows struct {
	number int // of the descriptor
	left   int
	words  int
	at     float64 // when the next row, or the rest of it, is available
	next   float64 // when the one after it could be

	// Where topK is not 0, the rows are those that a list's entries name, topK for each token.
	lists *lists
	list  uint8
	entry int // of the next row
	topK  int
}

// follow has rows be those of a list from an entry on.
func (r *rows) follow(l *lists, list uint8, entry, topK int) {
	r.lists, r.list, r.entry, r.topK = l, list, entry, topK
	r.left = max(0, min(r.left, l.count(list)-entry))
}

// look finds the next row in its list, if it has one, and multiplies its number bit by bit. Entries are assumed to be
// spread evenly over the tokens.
func (r *rows) look() {
	if r.topK > 0 {
		r.at += listCycles
		if r.left > 0 {
			token := r.entry * r.lists.tokens / r.lists.count(r.list)
			r.at += float64(numberCycles + bits.Len(uint(token*r.topK)))
		}
	}
	r.next = r.at + rowPeriod
}

// pass advances to the next row, whose search overlapped with the one that was taken.
func (r *rows) pass(at float64) {
	r.left--
	r.entry++
	r.at = r.next
	r.look()
	r.at = max(r.at, at+rowFree)
	r.next = max(r.next, r.at+rowPeriod)
}

// loader is LOAD.
type loader struct {
	c    *clock
	rows rows
	pace float64                 // cycles a beat of the space that is loaded
	ends [loadBursts + 1]float64 // when the last bursts have come, the oldest first
}

func (l *loader) start(i int, at float64) {
	cmd := l.c.program[i].(*isa.Load)
	l.rows = rows{number: i, left: int(cmd.Rows) * cmd.Segments(), words: int(cmd.Words), at: at + rowCycles}
	l.pace = 1
	if cmd.Space == isa.SpaceTables {
		l.pace = float64(l.c.cfg.WordBytes)
	}
	switch {
	case cmd.Gather:
		l.rows.follow(&l.c.lists, cmd.List, int(cmd.Start), 1)
	case cmd.Skip:
		l.rows.at += listCycles
		if l.c.lists.count(cmd.List) <= int(cmd.Start) {
			l.rows.left = 0
		}
	}
	l.rows.look()
	l.c.queues[isa.EngineLoad].working = true
}

func (l *loader) next() float64 {
	if !l.c.queues[isa.EngineLoad].working {
		return never
	}
	return max(l.rows.at, l.ends[0]+1)
}

func (l *loader) step(at float64) {
	r := &l.rows
	came := max(at+pendingCycles, l.ends[loadBursts]+1)
	if r.left > 0 {
		words := min(r.words, maxBurst)
		came = l.c.ask(at, words, l.pace)
		l.c.timing.Busy[isa.EngineLoad] += float64(words) * l.pace
		if r.words -= words; r.words > 0 {
			r.at = at + pieceCycles
		} else {
			r.words = int(l.c.program[r.number].(*isa.Load).Words)
			r.pass(at)
		}
	}
	copy(l.ends[:], l.ends[1:])
	l.ends[loadBursts] = came
	if r.left == 0 {
		q := l.c.queues[isa.EngineLoad]
		q.working, q.free = false, at
		q.finish(r.number, came+loadCycles)
	}
}

// storer is STORE. Words are read ahead of the writes; a command's last beat is seen by all before the next one's first is written.
type storer struct {
	c       *clock
	rows    rows
	words   int                // of the command that were read
	written float64            // when the last of them was written
	open    float64            // when the command's first can be
	begun   [storeRows]float64 // when the writes of the last rows began, the oldest first
}

func (s *storer) start(i int, at float64) {
	switch cmd := s.c.program[i].(type) {
	case *isa.Store:
		s.rows = rows{number: i, left: int(cmd.Rows), words: int(cmd.Words), at: at + rowCycles}
		if cmd.Scatter {
			s.rows.follow(&s.c.lists, cmd.List, int(cmd.Start), int(cmd.TopK))
		}
		s.rows.look()
	case *isa.Stamp:
		s.rows = rows{number: i, left: 1, words: stampBytes / s.c.cfg.WordBytes, at: at + rowCycles}
	}
	s.words = 0
	s.c.queues[isa.EngineStore].working = true
}

func (s *storer) next() float64 {
	if !s.c.queues[isa.EngineStore].working {
		return never
	}
	at := max(s.rows.at, s.begun[0]+goCycles)
	if s.words > storeWords {
		at = max(at, s.written-storeWords)
	}
	return at
}

func (s *storer) step(at float64) {
	r := &s.rows
	q := s.c.queues[isa.EngineStore]
	read := at
	copy(s.begun[:], s.begun[1:])
	s.begun[storeRows-1] = max(at+goCycles, s.written, s.open-writeCycles)
	if _, stamp := s.c.program[r.number].(*isa.Stamp); stamp {
		counted := max(at+stampCycles, s.open-writeCycles)
		s.c.timing.Stamps = append(s.c.timing.Stamps, counted)
		s.written = s.c.put(counted+writeCycles, r.words) + float64(r.words-1)*(stampPace-1)
	} else if r.left > 0 {
		read += float64(enterCycles + r.words - 1)
		s.words += r.words
		s.written = s.c.put(max(at+enterCycles+wordCycles, s.open), r.words)
		if s.words > storeWords {
			read = max(read, s.written-storeWords)
		}
	} else {
		s.written = max(s.written, s.open, at+enterCycles+wordCycles)
	}
	if r.left > 0 {
		s.c.timing.Busy[isa.EngineStore] += float64(r.words)
		r.pass(at)
		r.at = max(r.at, read+rowFree)
	}
	if r.left == 0 {
		done := s.written + float64(s.c.mem.Latency) + settleCycles
		s.open = done + reopenCycles
		q.working, q.free = false, read
		q.finish(r.number, done)
	}
}

// lists are the router's.
type lists struct {
	counts []int // of entries
	most   int   // that a list holds
	tokens int   // routed so far
}

// count is how many entries a list has.
func (l *lists) count(list uint8) int { return l.counts[int(list)%len(l.counts)] }

// route adds the entries that a Route appends.
func (l *lists) route(x *isa.Route, loads []int) {
	if x.First {
		clear(l.counts)
	}
	l.tokens = int(x.Token) + int(x.Rows)
	for e := range min(int(x.Experts), len(l.counts)) {
		n := (int(x.Rows)*int(x.TopK) + e) / int(x.Experts)
		if loads != nil {
			n = loads[e]
		}
		l.counts[e] = min(l.counts[e]+n, l.most)
	}
}
