package cuda

import (
	"fmt"

	"fusec/graph"
)

// On Hopper, products of few rows bring weights in panels to shared memory by bulk copies.

// A panelStream is how gemm_panels cuts a product; see src/gemm_panels.cuh.
type panelStream struct {
	form                    *fewForm
	panels, cluster, chunks int
	slots, ahead            int
	shared                  int
	blocks                  int // that have room on a multiprocessor
}

const (
	// panelStreamRows is how many rows such a product has at most, and halfPanelRows up to how many it is faster than gemm_stream:
	// on an H200 a decoder layer takes 118 and 122 µs with 4 rows, and 129 and 123 with 8.
	panelStreamRows, halfPanelRows = 8, 4
	// groupedRows is up to how many rows gemm_few is faster with weights of i4 in groups, on an H100. Of other weights in groups,
	// and of i4 without, one row has been timed.
	groupedRows, timedRows = 4, 1
	// panelWarps is how many warps multiply, and panelSlice how many bytes a slice has, as was fastest on an H200.
	panelWarps, panelSlice = 8, 16 << 10
	// leastSlots is how many slots a block has at least, if it has as much to read.
	leastSlots = 3
	// bitsAhead is how many slices of few bits come to the L2 cache, and halfAhead how many of 16 bits, as was fastest on an H200.
	// A launch beside another brings none: the other's are read first.
	bitsAhead, halfAhead = 8, 2
	// roundedShares is by how many bytes at most the sums of each block of a cluster are rounded up to whole pieces of 16 bytes.
	roundedShares = 32
)

// panelStream plans a product of few rows and panels for gemm_panels; nil if it is not one for it.
func (m *matmul) panelStream() *panelStream {
	q := m.panels
	if q == nil || !m.cfg.hopper() || m.m > panelStreamRows || min(m.m, m.n, m.k) == 0 || m.batch != 1 || m.n*m.k < leastFew {
		return nil
	}
	switch grouped, four := q.block > 0, q.dtype == graph.I4; {
	case grouped && four && m.m <= groupedRows, grouped != four && m.m > timedRows:
		return nil
	}
	h := &panelStream{form: q.form(), blocks: streamBlocks}
	// With weights of 16 bits more slots save more time than a next launch that begins to load before this one ends.
	if q.dtype.Is16() && !m.cfg.Leads && !m.cfg.Beside {
		h.blocks = 1
	}
	chunk := h.form.k * int(q.dtype.Span(graph.PanelColumns))
	h.chunks = panelSlice / chunk / panelWarps
	own := h.chunks * h.form.k // steps of a slice that are a warp's
	slice, slot := panelWarps*own, panelSlice+16
	if q.block > 0 {
		if q.vec == 1 || q.block%own != 0 ||
			slice%q.block != 0 && q.block%slice != 0 {
			return nil
		}
		slot += max(slice/q.block, 1) * 4 * graph.PanelColumns
	}
	panels, steps := ceilDiv(m.n, graph.PanelColumns), ceilDiv(m.k, slice)
	const most = 8 // blocks of a cluster
	// As few slices as possible, of one block on a multiprocessor.
	for s, least := 1, 0; s <= min(most, steps, m.cfg.Chip.SMs); s *= 2 {
		p, each := ceilDiv(panels, m.cfg.Chip.SMs/s), ceilDiv(steps, s)
		pitch := roundUp(each*own, 64) + 32
		fixed := panelWarps*m.m*pitch*2 + (2*panelWarps+p)*m.m*4*graph.PanelColumns + p*4*graph.PanelColumns + roundedShares*s + 16
		if m.norm != nil { // squares of warps, and of blocks
			fixed += roundUp((panelWarps+s)*m.m*4, 8)
		}
		slots := min((m.cfg.Chip.Shared/h.blocks-reservedShared-fixed)/slot, p*each)
		if slots < min(leastSlots, p*each) || least > 0 && p*each >= least {
			continue
		}
		least, h.panels, h.cluster, h.slots = p*each, p, s, slots
		h.shared = fixed + slots*slot
	}
	if h.slots == 0 {
		return nil
	}
	switch {
	case m.cfg.Beside:
	case q.dtype.Is16():
		h.ahead = halfAhead
	default:
		h.ahead = bitsAhead
	}
	return h
}

// panelStreamCut is the cut by gemm_panels.
func (m *matmul) panelStreamCut(h *panelStream) cut {
	c := cut{bm: m.m, bn: graph.PanelColumns * h.panels, splits: 1, threads: 32 * (panelWarps + 1), blocks: h.blocks,
		grid: ceilDiv(ceilDiv(m.n, graph.PanelColumns), h.panels) * h.cluster, cluster: h.cluster, shared: h.shared,
		early:  m.early(),
		work:   fmt.Sprintf("%s, %s, %s", m.rowsOf(), m.pointer(m.b), m.scales()),
		source: []string{"mma", "cluster", "hopper", "bits", "gemm_few", "gemm_packed", "gemm_panels"}}
	c.call = fmt.Sprintf("gemm_panels<Problem, %%s, %s, PanelTile<%d, %d, %d, %d, %d, %d, %v>>(%%s, %%s, %%s)", h.form.name,
		panelWarps, h.panels, h.cluster, h.slots, h.chunks, h.ahead, c.early)
	return c
}
