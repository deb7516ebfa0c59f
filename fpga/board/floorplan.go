package board

import (
	"fmt"
	"strings"

	"fusec/fpga/isa"
)

// fixed is a cell of the synthesised netlist and the site that it is given.
type fixed struct {
	cell string // with ? for the brackets of an index, as yosys's patterns require
	site string
}

// floorplan gives the multipliers and memories of the ECP5-85F's own overlay, of 8 × 8, their sites; of other overlays and boards
// nothing.
//
// The device has its memories in four rows and its multipliers in three. A placer that starts from wire length only
// puts both into parts of one row each. The wires along those rows are then overused: placement succeeds, but routing
// is slow or fails. So the chip is divided into two rows of four blocks, one for each lane, in a ring: lane 0 is next
// to lanes 1 and 7, and wires between neighbouring lanes cross one block.
//
//	1 0 7 6
//	2 3 4 5
//
// A block has the array's row of its lane from left to right, with the lane's other multipliers next to it. The
// memories of the row, of the column with the same number and of the lane's table are in the chip's inner rows, and
// those of softmax in the outer ones. Look-up tables and registers are placed by the placer.
func (b Board) floorplan(c isa.Config) []fixed {
	const sites = 13 // of a block in a row
	if b.Family != ECP5 || c != b.Config {
		return nil
	}
	var plan []fixed
	put := func(site, format string, args ...any) {
		plan = append(plan, fixed{"overlay." + strings.NewReplacer("[", "?", "]", "?").Replace(fmt.Sprintf(format, args...)), site})
	}
	for place, lane := range []int{1, 0, 7, 6, 2, 3, 4, 5} {
		upper, first := place < 4, place%4*sites
		inner, outer, products := 70, 82, 58
		if upper {
			inner, outer, products = 46, 22, 34
		}

		put(memorySite(first+1, inner), "exec.row[%d].ram.mem.0.0", lane)
		put(memorySite(first+2, inner), "exec.row[%d].ram.mem.0.1", lane)
		put(memorySite(first+4, inner), "exec.row[%d].ram_y.mem.0.0", lane)
		put(memorySite(first+5, inner), "exec.row[%d].ram_y.mem.0.1", lane)
		put(memorySite(first+7, inner), "exec.col[%d].ram.mem.0.0", lane)
		put(memorySite(first+8, inner), "exec.col[%d].ram.mem.0.1", lane)
		put(memorySite(first+10, inner), "exec.lanes[%d].lane.finish.tables.ram.mem.0.0", lane)
		for i, memory := range []string{"accumulators.0.0", "accumulators.0.1", "probabilities.0.0", "scores.0.0"} {
			put(memorySite(first+[]int{2, 4, 7, 9}[i], outer), "exec.parts[%d].softmax.softmax_lane.%s", lane, memory)
		}

		at := first
		if upper {
			at++ // one of two rows of multipliers is enough, and Vector's go to the other
		}
		next := func() string { at++; return multiplierSite(at-1, products) }
		put(next(), "exec.lanes[%d].lane.scale.whole.m_MULT18X18D_A0", lane)
		put(next(), "exec.lanes[%d].lane.scale.whole.m_MULT18X18D_B0", lane)
		put(next(), "exec.lanes[%d].lane.res_mul_MULT18X18D_A0", lane)
		for column := range c.Cols {
			put(next(), "exec.array.row[%d].col[%d].pe.w_i_MULT18X18D_B0", lane, column)
		}
		for i, port := range []string{"A0", "B0"} {
			site := multiplierSite(first+4+2*i, 10)
			if !upper {
				site = next()
			}
			put(site, "exec.parts[%d].vector_lane.whole.b_MULT18X18D_%s", lane, port)
		}
	}

	// Parameters go to lane 0; queues, LOAD and STORE are between the lanes.
	for part, site := range []int{16, 19, 22, 24} {
		put(memorySite(site, 46), "exec.control.params.bank[0].part[%d].ram.mem.0.0", part)
	}
	put(memorySite(26, 46), "load.pending.entries.0.0")
	put(memorySite(29, 46), "queues.store.0.0")
	put(memorySite(32, 46), "queues.store.0.1")
	put(memorySite(35, 46), "store.data_queue.entries.0.0")
	put(memorySite(37, 46), "store.data_queue.entries.0.1")
	put(memorySite(16, 70), "store.go.entries.0.0")
	put(memorySite(19, 70), "store.go.entries.0.1")
	return plan
}

// memorySite is the site of the ECP5-85F's block memory i, of 52 from the left, in the row at y.
func memorySite(i, y int) string {
	return fmt.Sprintf("X%d/Y%d/EBR%d", columnOf(i)+2*(i%4), y, i%4)
}

// multiplierSite is the site of its multiplier i, of 52 from the left, in the row at y.
func multiplierSite(i, y int) string {
	k := []int{0, 1, 4, 5}[i%4]
	return fmt.Sprintf("X%d/Y%d/MULT18_%d", columnOf(i)+k, y, k)
}

// columnOf is the start of the group of four that contains i. The clock's trunk is between the seventh group and the
// eighth.
func columnOf(i int) int {
	x := 4 + 9*(i/4)
	if i/4 >= 7 {
		x += 2
	}
	return x
}
