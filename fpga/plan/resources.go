package plan

import "fusec/fpga/isa"

// Resources are the resources of an overlay on a device with multipliers (ECP5's, by the counts of yosys's synth_ecp5).
type Resources struct {
	Multipliers int // of 18 × 18 bits
	MemoryBits  int // of the scratchpads and all other memories
	Cells       int // look-up tables of four inputs, carries counted as two: an estimate, see cellsOf
}

// ResourcesOf counts the resources of a configuration, but for Patches, which add two multipliers and about 230 cells.
func ResourcesOf(c isa.Config) Resources {
	var r Resources
	if !c.SerialMul {
		r.Multipliers = c.Rows*c.Cols + c.Rows*laneMultipliers
		if c.Norms {
			r.Multipliers += c.Rows * normMultipliers
		}
		if c.Router() {
			r.Multipliers += routerMultipliers
		}
	}
	word := 8 * c.WordBytes
	r.MemoryBits = word*(c.Rows*(c.XWords+c.YWords)+c.Cols*c.WWords) + 8*isa.RecordBytes*c.Params + c.Rows*c.Tables*256*8
	if c.Attention() {
		r.MemoryBits += c.Rows * (c.KeyBlock*(isa.ScoreBits+2*isa.ProbFrac) + c.QPanels*c.HeadDim*isa.AccumulatorBits)
	}
	if c.Router() {
		r.MemoryBits += c.Experts*c.ListLen*19 + c.Tokens*c.TopK*16
	}
	r.Cells = cellsOf(c)
	return r
}

// cellsOf estimates cells: those of the shell, of each element of the array, and of each lane with its features.
func cellsOf(c isa.Config) int {
	cells := shellCells + c.Rows*c.Cols*elementCells
	lane := laneCells
	if c.Attention() {
		lane += softmaxCells
	}
	if c.Norms {
		lane += normCells
	}
	if c.Router() {
		lane += routeCells
		cells += routerCells
	}
	return cells + c.Rows*lane
}
