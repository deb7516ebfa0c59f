package cuda

// On Hopper, products of few rows read weights of 16 bits by the copy engine, as they lie.

// A streamPlan is how gemm_stream cuts a product; see src/gemm_stream.cuh.
type streamPlan struct {
	rows, stages, cluster, tiles int
	blocks                       int // that have room on a multiprocessor
	a, b                         hopperFactor
	batches                      batches
}

const (
	// streamRows is how many rows a product has at most.
	streamRows = 64
	// streamColumns is the number of columns of a tile, and streamSlice of the steps of k of a slice.
	streamColumns, streamSlice = 128, 64
	// streamThreads are a warpgroup that multiplies and a warp that loads.
	streamThreads = 128 + 32
	// streamBlocks is how many blocks of up to pairedRows rows have room on a multiprocessor: one of this launch, and one of the next,
	// which loads weights while this one ends. More rows need the shared memory for their sums.
	streamBlocks, pairedRows = 2, 32
	// reservedShared is how much shared memory of a block the driver takes.
	reservedShared = 1024
)

// stream plans a product of few rows for gemm_stream; nil if it is not one for it.
func (m *matmul) stream() *streamPlan {
	switch {
	case !m.cfg.hopper(), m.panels != nil, !m.a.dtype.Is16(), m.a.dtype != m.b.dtype,
		m.m > streamRows, min(m.m, m.n, m.k, m.batch) == 0, m.n*m.k < leastFew,
		m.a.patches != nil || m.b.patches != nil || m.a.taps != nil || m.b.taps != nil || m.convolves,
		m.a.listed != noAxis || m.b.listed != noAxis || m.a.made != "" || m.b.made != "",
		m.rows > 0 || m.body == nil || m.body.SumsColumns(), m.way(m.math()) != "":
		return nil
	}
	h := &streamPlan{}
	var ok bool
	if h.batches, h.a.stride, h.b.stride, ok = m.mergeBatches(); !ok {
		return nil
	}
	h.a.factor, h.a.rows = m.a, m.m
	h.b.factor, h.b.rows = m.b, m.n
	h.a.kInner, _ = m.pieces(m.a, m.m)
	h.b.kInner, _ = m.pieces(m.b, m.n)
	if !h.a.kInner || !h.a.aligned(m.k) || !h.b.aligned(m.k) {
		return nil
	}
	for h.rows = 8; h.rows < m.m; h.rows *= 2 {
	}
	h.tiles = m.batch * ceilDiv(m.n, streamColumns)
	const most = 8 // blocks of a cluster
	slices := ceilDiv(m.k, streamSlice)
	for h.cluster = most; h.cluster > 1; h.cluster /= 2 {
		if h.tiles*h.cluster <= m.cfg.Chip.SMs && (h.cluster-1)*ceilDiv(slices, h.cluster) < slices {
			break
		}
	}
	if h.blocks = 1; h.rows <= pairedRows {
		h.blocks = streamBlocks
	}
	h.stages = (m.cfg.Chip.Shared/h.blocks - reservedShared - h.sums() - 16) / (h.stage() + 16)
	return h
}

// stage is the size of a stage, and sums that of the sums in shared memory, in bytes.
func (h *streamPlan) stage() int { return (streamColumns + h.rows) * 2 * streamSlice }
func (h *streamPlan) sums() int  { return h.rows * (streamColumns + 4) * 4 }

// streamCut is the cut by gemm_stream.
func (m *matmul) streamCut(h *streamPlan) cut {
	c := cut{bm: h.rows, bn: streamColumns, splits: 1, threads: streamThreads, blocks: h.blocks, cluster: h.cluster,
		grid: h.tiles * h.cluster, shared: h.stages*(h.stage()+16) + h.sums() + 16, early: m.early(), fast: m.cfg.Precision != F32,
		source: []string{"cluster", "hopper", "gemm_hopper", "gemm_stream"}}
	var maps [2]string
	for i, f := range []*hopperFactor{&h.a, &h.b} {
		tm := f.tensorMap(m.k, []int{h.rows, streamColumns}[i], h.batches, 0)
		maps[i] = "&" + m.field(Param{Kind: MapParam, Map: tm}, "TensorMap ", "map_"+string("ab"[i])+m.tag)
	}
	m.printf("struct Tile {\n  typedef %s T;\n", ctype(m.a.dtype))
	m.printf("  static constexpr int BN = %d, ROWS = %d, S = %d, STAGES = %d, INNER = %d, A_AXES = %d, B_AXES = %d;\n",
		streamColumns, h.rows, h.cluster, h.stages, h.batches[0], h.a.axes(), h.b.axes())
	m.printf("  static constexpr bool B_KINNER = %v, EARLY = %v;\n};\n\n", h.b.kInner, c.early)
	c.work = maps[0] + ", " + maps[1]
	c.call = "gemm_stream<Problem, %s, Tile>(%s, %s, %s)"
	return c
}
