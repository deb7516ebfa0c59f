package plan

import "fusec/fpga/isa"

// execute is EXEC: its sequencers, the feed of the array, and the lanes.
type execute struct {
	c     *clock
	op    isa.Op  // of the last command
	out   isa.Out // what the lanes were told last
	taken float64 // when a sequencer took the last command
	fed   float64 // when the feed is free for another slot
	tile  float64 // the last slot of the last tile
	quiet float64 // when the last result is written
}

func (x *execute) start(i int, at float64) {
	q := x.c.queues[isa.EngineExec]
	cmd := x.c.program[i]
	op := cmd.Op()
	if op != x.op && (x.op != 0 || op != isa.OpGemm) {
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
	q.finish(i, x.quiet)
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

// gemm feeds tile after tile. A tile's last slot waits until the result registers are empty, and, if the lanes are told anew what
// to do, until all results have left them.
func (x *execute) gemm(g *isa.Gemm, at float64) {
	c := x.c
	word, words := float64(c.cfg.WordBytes), float64(g.Words)*float64(c.cfg.WordBytes)
	panels, tiles := int(g.Panels), float64(g.Tiles)
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
	change := !g.Hold && !sameOut(&g.Out, &x.out)
	if !g.Hold {
		x.out = g.Out
	}
	x.fed = max(x.fed, first)
	period := max(words, float64(c.drain()))
	for range panels {
		last := x.fed + words - word
		if g.Hold {
			x.fed = last + (tiles-1)*words + word
			continue
		}
		last = max(last, x.tile+float64(c.drain()))
		if change {
			last = max(last, x.quiet+outCycles)
		}
		if change = g.RowParam; change {
			last = max(last, x.quiet+recordCycles+float64(c.cfg.Rows))
		}
		x.tile = last + (tiles-1)*period
		x.fed = x.tile + word
		x.quiet = x.tile + float64(c.results())
	}
	if g.Hold {
		x.quiet = max(x.quiet, x.fed-word+float64(c.results()))
	}
	c.timing.Multiply += float64(panels) * tiles * words
}

// sameOut reports whether two commands tell the lanes the same.
func sameOut(a, b *isa.Out) bool {
	lanes := func(o isa.Out) isa.Out {
		o.Base, o.Panel, o.Res, o.ResPanel, o.Param = 0, 0, 0, 0, 0
		return o
	}
	return lanes(*a) == lanes(*b)
}

// vector goes through its panels, and is done before the next command is taken.
func (x *execute) vector(v *isa.Vector, at float64) {
	c := x.c
	words := int(v.Words) * c.cfg.WordBytes
	panel := words*max(1, c.step()/resultStep) + vectorCycles
	switch v.Kind {
	case isa.VectorLayerNorm, isa.VectorRMSNorm:
		panel += words + normCycles
	case isa.VectorCombine:
		panel = (words+c.cfg.Rows)*int(v.TopK) + vectorCycles
	}
	x.taken, x.out = at, v.Out
	x.fed = at + float64(int(v.Panels)*panel) + vectorCycles
	x.quiet = x.fed + float64(vectorLatency+c.finish()+vectorDone)
}

// route sends panels of tokens on to the lists.
func (x *execute) route(r *isa.Route, at float64) {
	c := x.c
	lanes := c.cfg.Rows
	words := ceil(2*int(r.Experts), c.cfg.WordBytes) * c.cfg.WordBytes
	panel := max(words+3, lanes*max(int(r.TopK)+3, 8))
	if !r.Renormalise {
		panel = words + lanes*(words+24+int(r.TopK)) + 3
	}
	x.taken = at
	x.fed = at + float64(ceil(int(r.Rows), lanes)*panel)
	x.quiet = x.fed + routeDrain
}

// attention follows the items of fx_attention.sv: scores of the next block before the values of this one.
func (x *execute) attention(a *isa.Attention, at float64) {
	c := x.c
	dim := int(a.Dim) * c.cfg.WordBytes
	items, busy := 0, attentionCycles
	for start := 0; start < int(a.Keys); start += c.cfg.KeyBlock {
		for p := range int(a.QPanels) {
			keys := min(c.cfg.KeyBlock, int(a.Keys)-start)
			if a.Causal {
				keys = min(keys, (p+1)*c.cfg.Rows-1+int(a.Diagonal)+1-start)
			}
			if keys <= 0 {
				continue
			}
			items++
			scores := ceil(keys, c.cfg.Cols) * dim
			values := dim / c.cfg.Cols * ceil(keys, c.cfg.WordBytes) * c.cfg.WordBytes
			c.timing.Multiply += float64(scores + values)
			busy += max(scores, ceil(keys, c.cfg.Cols)*c.drain()) + max(values, dim/c.cfg.Cols*c.drain())
		}
	}
	if items == 1 { // the values wait for the probabilities
		busy += c.cfg.KeyBlock + c.drain() + softmaxCycles
	}
	x.taken = max(at, x.fed)
	x.fed = x.taken + float64(busy)
	x.quiet = x.fed + float64(c.results())
	if a.Last { // the last panel's finish; those before hide behind the array
		x.quiet += float64(dim + finishPanelCycles)
	}
}

func ceil(a, b int) int { return (a + b - 1) / b }
