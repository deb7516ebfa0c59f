package plan

import (
	"slices"

	"fusec/fpga/isa"
)

// executor is EXEC: its sequencers, the feed of the array, and the lanes.
type executor struct {
	c     *clock
	op    isa.Op  // of the last command
	out   isa.Out // the last command to the lanes
	taken float64 // when a sequencer took the last command
	fed   float64 // when the feed is free for another slot
	tile  float64 // the last slot of the last tile
	quiet float64 // when the last result is written
}

func (x *executor) start(i int, at float64) {
	q := x.c.queues[isa.EngineExec]
	cmd := x.c.program[i]
	op := cmd.Op()
	if op != x.op {
		at = max(at, q.last()) + switchCycles
	}
	x.op = op
	begun := max(at, x.fed)
	switch cmd := cmd.(type) {
	case *isa.Gemm:
		x.gemm(cmd, at)
	case *isa.Attention:
		x.attention(cmd, at)
	case *isa.Vector:
		x.vector(cmd, max(at, q.last()+1))
	case *isa.Route:
		x.c.lists.route(cmd, x.c.loads[i])
		x.route(cmd, max(at, q.last()+1))
	}
	x.c.timing.Busy[isa.EngineExec] += x.fed - begun
	q.finish(i, x.quiet+doneCycles)
}

// drain is how many cycles the result registers take for a tile.
func (c *clock) drain() int { return c.step() * c.cfg.Cols }

// step is the cycles from one result to the next.
func (c *clock) step() int {
	if c.cfg.SerialMul {
		return serialStep
	}
	return resultStep
}

// finish is the cycles from a result's entry into lane 0 to when its word is in the last lane.
func (c *clock) finish() int {
	if c.cfg.SerialMul {
		return serialScale + c.cfg.Rows
	}
	return scaleCycles + c.cfg.Rows
}

// results is the cycles from a tile's last slot to when its results are written.
func (c *clock) results() int { return c.operands() + c.drain() - c.step() + c.finish() }

// operands is the cycles from a tile's last slot to its first result.
func (c *clock) operands() int {
	if c.cfg.Attention() { // probabilities take one stage more
		return c.cfg.WordBytes + operandCycles + 1
	}
	return c.cfg.WordBytes + operandCycles
}

// gemm feeds tile after tile. A tile's last slot waits until the result registers are empty, and, if the lanes get a
// new command, until all results have left them.
func (x *executor) gemm(g *isa.Gemm, at float64) {
	c := x.c
	word, elements := float64(c.cfg.WordBytes), int(g.Words)*c.cfg.WordBytes
	panels, tiles := int(g.Panels), int(g.Tiles)
	x.taken = max(at, x.fed-word+1)
	first := x.taken + gemmCycles
	if g.Listed {
		panels = min(panels, max(0, ceil(c.lists.count(g.List)-int(g.Start)*c.cfg.Rows, c.cfg.Rows)))
		first += panelsCycles
		if panels == 0 {
			x.fed, x.quiet = max(x.fed, first), max(x.quiet, first+float64(c.results()))
			return
		}
	}
	if g.Hold { // no result leaves the array
		x.fed = max(x.fed, first) + float64(panels*tiles*elements)
		x.quiet = max(x.quiet, x.fed-word+float64(c.results()))
		c.timing.Multiply += float64(panels * tiles * elements)
		return
	}
	last := 0.0
	if !sameOut(&g.Out, &x.out) {
		last = x.quiet + outCycles
	}
	x.out = g.Out
	for range panels {
		if g.RowParam {
			last = x.quiet + recordCycles + float64(c.cfg.Rows)
		}
		x.feed(tiles, elements, first, last)
		x.quiet = x.tile + float64(c.results())
	}
}

// sameOut reports whether two commands are the same for the lanes.
func sameOut(a, b *isa.Out) bool {
	lanes := func(o isa.Out) isa.Out {
		o.Base, o.Panel, o.Res, o.ResPanel, o.Param = 0, 0, 0, 0, 0
		return o
	}
	return lanes(*a) == lanes(*b)
}

// vector processes its panels, and ends before the next command starts.
func (x *executor) vector(v *isa.Vector, at float64) {
	c := x.c
	elements := int(v.Words) * c.cfg.WordBytes
	panel := elements + vectorCycles
	switch {
	case v.Kind == isa.VectorLayerNorm || v.Kind == isa.VectorRMSNorm:
		panel += elements + normCycles
	case v.Kind == isa.VectorCombine:
		panel = (elements+c.cfg.Rows)*int(v.TopK) + vectorCycles
	case c.cfg.SerialMul:
		panel = elements*serialStep + vectorCycles
	}
	panel = max(panel, c.segment())
	x.taken, x.out = at, v.Out
	x.fed = at + float64(int(v.Panels)*panel) + vectorCycles
	x.quiet = x.fed + float64(vectorLatency+c.finish()+vectorDone)
}

// segment is the cycles from one panel of a vector operation to the next, at least: the lanes take a panel's addresses when
// those of the panel before have left their stages.
func (c *clock) segment() int {
	switch {
	case c.cfg.SerialMul:
		return serialScale + vectorSerial + segmentCycles
	case c.cfg.Norms:
		return scaleCycles + vectorLatency + segmentCycles
	}
	return scaleCycles + vectorPlain + segmentCycles
}

// route follows the panels of fx_route: their words are fed, then their tokens leave the lanes one by one, each for a slot,
// where its reciprocal is found. If all experts count in the sum, the panel is fed again for each token, whose logits
// come back along the lanes.
func (x *executor) route(r *isa.Route, at float64) {
	c := x.c
	k := float64(r.TopK)
	words := float64(up(2*int(r.Experts), c.cfg.WordBytes))
	fed, left := at, at           // the panel's words; the last token
	var slots [routeSlots]float64 // when each is free
	if r.First {
		slots[0] = at + float64(c.cfg.Experts) + clearCycles
	}
	for row := range int(r.Rows) {
		lane := row % c.cfg.Rows
		if lane == 0 {
			fed = max(fed+words+panelCycles, left)
			left = fed + tokenCycles
		}
		slot := row % routeSlots
		taken := max(left, slots[slot])
		if !r.Renormalise {
			taken += words + returnCycles + 2*float64(lane)
		}
		slots[slot] = taken + slotCycles + 2*k
		left = taken + k + leaveCycles
		if !r.Renormalise {
			fed = left
		}
	}
	x.taken, x.fed = at, left
	x.quiet = slices.Max(slots[:]) + routeCycles
}

// attention follows the items of fx_attention: scores of the next one before the values of this one, which wait for their
// probabilities; then the panels are finished. Items of the last block wait until the descriptor before is done.
func (x *executor) attention(a *isa.Attention, at float64) {
	c := x.c
	dim := int(a.Dim) * c.cfg.WordBytes
	var (
		made   = at + firstItemCycles
		exp    float64             // when the exponentials of the last item are there
		sums   [aheadItems]float64 // when the last items' values were added up, the oldest first
		panels = make([]float64, a.QPanels)
		values func() // those of the last item
	)
	for start := 0; start < int(a.Keys); start += c.cfg.KeyBlock {
		if start+c.cfg.KeyBlock >= int(a.Keys) {
			made = max(made, c.queues[isa.EngineExec].last())
		}
		for p := range panels {
			keys := min(c.cfg.KeyBlock, int(a.Keys)-start)
			if a.Causal {
				keys = min(keys, (p+1)*c.cfg.Rows-1+int(a.Diagonal)+1-start)
			}
			if keys <= 0 {
				continue
			}
			made = max(made+itemCycles, sums[0])
			x.feed(ceil(keys, c.cfg.Cols), dim, made, 0)
			seen := up(keys, c.cfg.WordBytes)
			begun := max(exp, x.tile+float64(c.operands()+c.drain()-c.step()+scoreCycles))
			exp = begun + float64(seen) + restCycles
			if values != nil {
				values()
			}
			values = func() {
				x.feed(dim/c.cfg.Cols, seen, begun+expCycles, 0)
				panels[p] = x.tile + float64(c.operands()+c.drain())
				copy(sums[:], sums[1:])
				sums[aheadItems-1] = panels[p]
			}
		}
	}
	x.taken = made
	if values != nil {
		values()
	}
	x.quiet = slices.Max(panels) + sumCycles
	if !a.Last {
		return
	}
	finished := 0.0
	for _, ready := range panels {
		finished = max(finished, ready) + divideCycles + float64(dim)
	}
	x.quiet = finished + float64(c.finish()) + giveCycles
}

// feed feeds tiles of so many elements, from a time on, the first one's last slot not before another.
func (x *executor) feed(tiles, elements int, from, last float64) {
	word := x.c.cfg.WordBytes
	last = max(last, max(x.fed, from)+float64(elements-word), x.tile+float64(x.c.drain()))
	x.tile = last + float64((tiles-1)*max(elements, x.c.drain()))
	x.fed = x.tile + float64(word)
	x.c.timing.Multiply += float64(tiles * elements)
}

func ceil(a, b int) int { return (a + b - 1) / b }

// up is a rounded up to a multiple of b.
func up(a, b int) int { return ceil(a, b) * b }
