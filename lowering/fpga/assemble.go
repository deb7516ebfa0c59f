package fpga

import (
	"fmt"

	"fusec/fpga/isa"
)

// Spaces that are no scratchpads: external memory, counted in bytes, and the router's lists and gates.
const (
	spaceMemory = isa.SpaceTables + 1 + iota
	spaceLists
)

// region is a stretch of a space: words of every lane, records, tables or bytes.
type region struct {
	space  isa.Space
	lo, hi int64
}

func (r region) meets(o region) bool { return r.space == o.space && r.lo < o.hi && o.lo < r.hi }

// Step is a descriptor of a program and the launch that it is part of.
type Step struct {
	Launch int
	Cmd    isa.Command
	Loads  []int // of a Route: how many tokens go to each expert, nil if that is not known

	reads, writes []region
}

// assembler collects descriptors in a valid sequential order, and allocates scratchpads as ring buffers. The accesses
// of each descriptor determine what the engines may do concurrently: see order.
type assembler struct {
	cfg    isa.Config
	launch int
	steps  []Step
	rings  [isa.SpaceTables + 1]int // the next free word of each space
	err    error
}

// take allocates n contiguous words of each lane of a space (or records, or tables).
func (a *assembler) take(s isa.Space, n int) int {
	size := a.size(s)
	if n > size && a.err == nil {
		a.err = fmt.Errorf("%d words of %v: the overlay has %d", n, s, size)
	}
	if a.rings[s]+n > size {
		a.rings[s] = 0
	}
	at := a.rings[s]
	a.rings[s] += n
	return at
}

// size is how many words, records or tables a space has.
func (a *assembler) size(s isa.Space) int {
	switch s {
	case isa.SpaceParams:
		return a.cfg.Params
	case isa.SpaceTables:
		return a.cfg.Tables
	}
	return a.cfg.Words(s)
}

// emit appends a command. Rows that are addressed by a list access memory that is not in the command; the caller adds
// it.
func (a *assembler) emit(c isa.Command, memory ...region) {
	s := Step{Launch: a.launch, Cmd: c}
	s.reads, s.writes = a.touches(c)
	for _, m := range memory {
		if e, _ := isa.EngineOf(c.Op()); e == isa.EngineLoad {
			s.reads = append(s.reads, m)
		} else {
			s.writes = append(s.writes, m)
		}
	}
	a.steps = append(a.steps, s)
}

// touches lists the accesses of a command.
func (a *assembler) touches(c isa.Command) (reads, writes []region) {
	wb := a.cfg.WordBytes
	panels := func(s isa.Space, base uint16, step uint16, n, words int) region {
		return region{s, int64(base), int64(base) + int64(n-1)*int64(step) + int64(words)}
	}
	memory := func(addr, stride uint32, rows, words uint16) region {
		return region{spaceMemory, int64(addr), int64(addr) + int64(rows-1)*int64(stride) + int64(int(words)*wb)}
	}
	lists := region{spaceLists, 0, 1}
	out := func(o *isa.Out, n, cols, records int, reads2 bool) {
		bytes := 1
		if o.Wide {
			bytes = 2
		}
		writes = append(writes, panels(o.Space, o.Base, o.Panel, n, cols*bytes/wb))
		if reads2 {
			reads = append(reads, panels(isa.SpaceY, o.Res, o.ResPanel, n, cols/wb))
		}
		if o.Table > 0 {
			reads = append(reads, region{isa.SpaceTables, int64(o.Table) - 1, int64(o.Table)})
		}
		reads = append(reads, region{isa.SpaceParams, int64(o.Param), int64(o.Param) + int64(records)})
	}
	switch d := c.(type) {
	case *isa.Load:
		switch d.Space {
		case isa.SpaceTables:
			writes = append(writes, region{isa.SpaceTables, int64(d.Base), int64(d.Base) + 1})
		case isa.SpaceParams:
			writes = append(writes, region{isa.SpaceParams, int64(d.Base), int64(d.Base) +
				int64(int(d.Words)*wb/isa.RecordBytes)})
		default:
			writes = append(writes, panels(d.Space, d.Base, d.Panel, d.Panels(a.cfg.Lanes(d.Space)), d.Span()))
		}
		if d.Gather || d.Skip {
			reads = append(reads, lists)
		}
		if !d.Gather {
			all := memory(d.Addr, d.Stride, d.Rows, d.Words)
			all.hi += int64(d.Segments()-1) * int64(d.TapStride)
			reads = append(reads, all)
		}
	case *isa.Store:
		reads = append(reads, panels(d.Space, d.Base, d.Panel, ceil(int(d.Rows), a.cfg.Rows), int(d.Words)))
		if d.Scatter {
			reads = append(reads, lists)
		} else {
			writes = append(writes, memory(d.Addr, d.Stride, d.Rows, d.Words))
		}
	case *isa.Stamp:
		writes = append(writes, region{spaceMemory, int64(d.Addr), int64(d.Addr) + 16})
	case *isa.Gemm:
		reads = append(reads, panels(isa.SpaceX, d.X, d.XPanel, int(d.Panels), int(d.Words)),
			panels(isa.SpaceW, d.W, d.WPanel, int(d.Tiles), int(d.Words)))
		if d.Listed {
			reads = append(reads, lists)
		}
		if !d.Hold {
			records := int(d.Tiles) * a.cfg.Cols
			if d.RowParam {
				records = int(d.Panels) * a.cfg.Rows
			}
			out(&d.Out, int(d.Panels), int(d.Tiles)*a.cfg.Cols, records, d.Residual)
		}
	case *isa.Attention:
		dim := int(d.Dim) * wb
		reads = append(reads, panels(isa.SpaceX, d.X, d.QPanel, int(d.QPanels), int(d.Dim)),
			panels(isa.SpaceW, d.K, uint16(d.Dim), ceil(int(d.Keys), a.cfg.Cols), int(d.Dim)),
			panels(isa.SpaceW, d.V, d.VPanel, dim/a.cfg.Cols, ceil(int(d.Keys), wb)))
		if d.Last {
			bytes := 1
			if d.Wide {
				bytes = 2
			}
			writes = append(writes, panels(d.Space, d.Base, d.Panel, int(d.QPanels), dim*bytes/wb))
		}
	case *isa.Vector:
		slots, records := int(d.Panels), int(d.Words)*wb
		if d.Kind == isa.VectorCombine {
			slots *= int(d.TopK)
			reads = append(reads, lists)
		}
		if d.OneParam {
			records = 1
		}
		reads = append(reads, panels(isa.SpaceX, d.X, d.XPanel, slots, int(d.Words)))
		out(&d.Out, int(d.Panels), int(d.Words)*wb, records, d.Residual || d.Kind == isa.VectorMul)
	case *isa.Route:
		reads = append(reads, panels(isa.SpaceX, d.X, d.XPanel, ceil(int(d.Rows), a.cfg.Rows),
			ceil(2*int(d.Experts), wb)))
		writes = append(writes, lists)
	}
	return reads, writes
}

// order gives the steps their semaphores. A descriptor waits for the last earlier one of each other engine that
// accesses the same words, if one of the two writes, and for the last of EXEC that wrote words that EXEC reads. Because
// engines work in order, that covers all earlier ones, and a wait that is already covered is left out. So the posts and
// waits of a pair of engines come in the same order, one for one, and a semaphore's count is at most the length of the
// queues. Each descriptor waits only for earlier ones, so there is no deadlock.
func order(steps []Step) {
	var of [isa.Engines][]int               // the steps of each engine
	var known [isa.Engines][isa.Engines]int // how many of an engine's steps are known to be done, by engine that knows
	for i := range steps {
		s := &steps[i]
		*s.Cmd.Syncs() = isa.Sync{}
		e, _ := isa.EngineOf(s.Cmd.Op())
		for f := range isa.Engines {
			for k := len(of[f]) - 1; k >= known[e][f] && (f != e || e == isa.EngineExec); k-- {
				t := &steps[of[f][k]]
				if !conflict(t, s, f == e) {
					continue
				}
				mask := uint8(1) << isa.SemaphoreOf(f, e)
				t.Cmd.Syncs().Post |= mask
				s.Cmd.Syncs().Wait |= mask
				known[e][f] = k + 1
				break
			}
		}
		of[e] = append(of[e], i)
	}
}

// conflict reports whether t has to be done before s; on one engine only results that are read matter.
func conflict(t, s *Step, same bool) bool {
	for _, w := range t.writes {
		for _, r := range s.reads {
			if w.meets(r) {
				return true
			}
		}
		for _, v := range s.writes {
			if !same && w.meets(v) {
				return true
			}
		}
	}
	if same {
		return false
	}
	for _, r := range t.reads {
		for _, w := range s.writes {
			if r.meets(w) {
				return true
			}
		}
	}
	return false
}

func ceil(a, b int) int { return (a + b - 1) / b }

// up is n rounded up to a multiple of m.
func up(n, m int) int { return ceil(n, m) * m }
