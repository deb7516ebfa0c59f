package plan

import "fusec/fpga/isa"

// exec is how long EXEC takes for a command: the cycles until it can take the next, those until everything is written after that, and
// those of them in which the array gets operands.
func (c *clock) exec(cmd isa.Command) (busy, drain, multiply float64) {
	switch x := cmd.(type) {
	case *isa.Gemm:
		k := int(x.Words) * c.cfg.WordBytes
		panels := int(x.Panels)
		if x.Listed {
			panels = min(panels, max(0, ceil(c.listed(x.List)-int(x.Start)*c.cfg.Rows, c.cfg.Rows)))
		}
		tiles := panels * int(x.Tiles)
		period := max(k, c.drain())
		if x.Hold {
			period = k
		}
		return float64(tiles*period + execCycles), float64(c.cfg.Rows + c.drain() + finishCycles), float64(tiles * k)
	case *isa.Attention:
		return c.attention(x)
	case *isa.Vector:
		panel := int(x.Words)*c.cfg.WordBytes*c.step() + vectorCycles
		switch x.Kind {
		case isa.VectorLayerNorm, isa.VectorRMSNorm:
			panel += int(x.Words)*c.cfg.WordBytes + normCycles
		case isa.VectorCombine:
			panel = int(x.Words)*c.cfg.WordBytes*int(x.TopK) + c.cfg.Rows*int(x.TopK) + vectorCycles
		}
		return float64(int(x.Panels)*panel + execCycles), float64(c.cfg.Rows + vectorDrain), 0
	case *isa.Route:
		if x.First {
			clear(c.lists)
		}
		rows, lanes := int(x.Rows), c.cfg.Rows
		panels := (rows + lanes - 1) / lanes
		for e := range min(int(x.Experts), len(c.lists)) {
			c.lists[e] = min(c.lists[e]+(rows*int(x.TopK)+int(x.Experts)-1)/int(x.Experts), c.cfg.ListLen)
		}
		words := ceil(2*int(x.Experts), c.cfg.WordBytes) * c.cfg.WordBytes
		panel := max(words+3, lanes*max(int(x.TopK)+3, 8))
		if !x.Renormalise {
			panel = words + lanes*(words+24+int(x.TopK)) + 3
		}
		return float64(panels * panel), routeDrain, 0
	}
	return 0, 0, 0
}

// drain is how many cycles the result registers need for a tile.
func (c *clock) drain() int {
	if c.cfg.SerialMul {
		return serialStep * c.cfg.Cols
	}
	return 2*c.cfg.Cols + drainCycles
}

// step is the cycles of a result in the scale path.
func (c *clock) step() int {
	if c.cfg.SerialMul {
		return serialStep
	}
	return 1
}

// attention follows the items of fx_attention.sv: scores of the next block before the values of this one.
func (c *clock) attention(x *isa.Attention) (busy, drain, multiply float64) {
	dim := int(x.Dim) * c.cfg.WordBytes
	items := 0
	for start := 0; start < int(x.Keys); start += c.cfg.KeyBlock {
		for p := range int(x.QPanels) {
			keys := min(c.cfg.KeyBlock, int(x.Keys)-start)
			if x.Causal {
				keys = min(keys, (p+1)*c.cfg.Rows-1+int(x.Diagonal)+1-start)
			}
			if keys <= 0 {
				continue
			}
			items++
			scores := ceil(keys, c.cfg.Cols) * dim
			values := dim / c.cfg.Cols * ceil(keys, c.cfg.WordBytes) * c.cfg.WordBytes
			multiply += float64(scores + values)
			busy += float64(max(scores, ceil(keys, c.cfg.Cols)*c.drain()) + max(values, dim/c.cfg.Cols*c.drain()))
		}
	}
	if items == 1 { // the values wait for the probabilities
		busy += float64(c.cfg.KeyBlock + c.drain() + softmaxCycles)
	}
	busy += float64(execCycles)
	drain = float64(c.cfg.Rows + c.drain() + finishCycles)
	if x.Last { // the last panel's finish; those before hide behind the array
		drain += float64(dim + finishPanelCycles)
	}
	return busy, drain, multiply
}

// listed is how many entries a list is taken to have.
func (c *clock) listed(list uint8) int { return c.lists[int(list)%len(c.lists)] }

func ceil(a, b int) int { return (a + b - 1) / b }
