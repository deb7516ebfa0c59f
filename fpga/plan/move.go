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
	list   uint8
	entry  int     // of the list, of the next row
	topK   int     // 0: rows follow one another; n: a row is that of a list's entry, n for each token
	at     float64 // when the next row is there
}

// begin is rows from a command that the engine has at a time.
func (c *clock) begin(number, n, words int, at float64) rows {
	return rows{number: number, left: n, words: words, at: at + rowCycles}
}

// byList has rows be those of a list from an entry on.
func (r *rows) byList(c *clock, list uint8, entry, topK int) {
	r.list, r.entry, r.topK = list, entry, topK
	r.left = max(0, min(r.left, c.lists.count(list)-entry))
	r.at += listCycles
	if r.left > 0 {
		r.at += c.lists.search(list, entry, topK)
	}
}

// pass goes to the next row.
func (r *rows) pass(c *clock, at float64) {
	r.left--
	r.entry++
	r.at = at + 1
	if r.topK > 0 {
		r.at = at + listCycles + c.lists.search(r.list, r.entry, r.topK)
	}
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
	l.rows = l.c.begin(i, int(cmd.Rows), int(cmd.Words), at)
	l.pace = 1
	if cmd.Space == isa.SpaceTables {
		l.pace = float64(l.c.cfg.WordBytes)
	}
	switch {
	case cmd.Gather:
		l.rows.byList(l.c, cmd.List, int(cmd.Start), 1)
	case cmd.Skip:
		l.rows.at += listCycles
		if l.c.lists.count(cmd.List) <= int(cmd.Start) {
			l.rows.left = 0
		}
	}
	l.c.queues[isa.EngineLoad].taken = true
}

func (l *loader) next() float64 {
	if !l.c.queues[isa.EngineLoad].taken {
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
			r.at = at + 1
		} else {
			r.words = int(l.c.program[r.number].(*isa.Load).Words)
			r.pass(l.c, at)
		}
	}
	copy(l.ends[:], l.ends[1:])
	l.ends[loadBursts] = came
	if r.left == 0 {
		q := l.c.queues[isa.EngineLoad]
		q.taken, q.free = false, at
		q.finish(r.number, came+loadCycles)
	}
}

// storer is STORE. Words are read ahead of the writes.
type storer struct {
	c       *clock
	rows    rows
	written float64 // when the last beat was written
	open    float64 // when the command's first beat can be
	words   int     // of the command, so far
}

func (s *storer) start(i int, at float64) {
	switch cmd := s.c.program[i].(type) {
	case *isa.Store:
		s.rows = s.c.begin(i, int(cmd.Rows), int(cmd.Words), at)
		if cmd.Scatter {
			s.rows.byList(s.c, cmd.List, int(cmd.Start), int(cmd.TopK))
		}
	case *isa.Stamp:
		s.rows = s.c.begin(i, 1, stampBytes/s.c.cfg.WordBytes, at)
	}
	s.words = 0
	s.c.queues[isa.EngineStore].taken = true
}

func (s *storer) next() float64 {
	if !s.c.queues[isa.EngineStore].taken {
		return never
	}
	if s.words > storeWords {
		return max(s.rows.at, s.written-storeWords)
	}
	return s.rows.at
}

func (s *storer) step(at float64) {
	r := &s.rows
	q := s.c.queues[isa.EngineStore]
	read := at
	if _, stamp := s.c.program[r.number].(*isa.Stamp); stamp {
		counted := max(at+stampCycles, s.open-writeCycles)
		s.c.timing.Stamps = append(s.c.timing.Stamps, counted)
		s.written = s.c.write.transfer(counted+writeCycles, r.words, 1)
	} else if r.left > 0 {
		read += float64(r.words - 1)
		s.words += r.words
		s.written = s.c.write.transfer(max(at+wordCycles, s.open), r.words, 1)
		if s.words > storeWords {
			read = max(read, s.written-storeWords)
		}
	} else {
		s.written = max(s.written, s.open, at+wordCycles)
	}
	if r.left > 0 {
		s.c.timing.Written += float64(r.words)
		s.c.timing.Busy[isa.EngineStore] += float64(r.words)
		r.pass(s.c, at)
		r.at = max(r.at, read+1)
	}
	if r.left == 0 {
		done := s.written + float64(s.c.mem.Latency) + settleCycles
		s.open = done + reopenCycles
		q.taken, q.free = false, read
		q.finish(r.number, done)
	}
}

// lists are the router's.
type lists struct {
	counts []int
	most   int // that a list holds
	tokens int // routed so far
}

func (l *lists) init(cfg isa.Config) {
	l.counts, l.most = make([]int, max(cfg.Experts, 1)), cfg.ListLen
}

// count is how many entries a list has.
func (l *lists) count(list uint8) int { return l.counts[int(list)%len(l.counts)] }

// search is the cycles in which the number of an entry's row is made an address; the entries are taken to be spread
// evenly over the tokens.
func (l *lists) search(list uint8, entry, topK int) float64 {
	token := entry * l.tokens / max(l.count(list), 1)
	return float64(indexCycles - listCycles + bits.Len(uint(token*topK)))
}

// route adds what a Route appends.
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
