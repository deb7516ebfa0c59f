package cuda

// On Hopper, products of few rows read weights of 16 bits by the copy engine, as they lie.

// A streamPlan is how gemm_stream cuts a product; see src/gemm_stream.cuh.
type streamPlan struct {
	rows, columns, stages, cluster, tiles int
	over                                  bool // the sums take the place of the stages
	shared                                int
	a, b                                  hopperFactor
	batches                               batches
}

const (
	// streamRows is how many rows a product has at most.
	streamRows = 64
	// streamColumns is the number of columns of a tile, and streamSlice of the steps of k of a slice. A tile has wideStreamColumns,
	// and A is read half as often, where the largest clusters divide k anyway, and where such tiles have more than half of the
	// multiprocessors and there are more than separateRows rows, or k is not the inner axis of the weights.
	streamColumns, wideStreamColumns, streamSlice = 64, 128, 64
	// separateRows is up to how many rows the sums have shared memory of their own.
	separateRows = 32
	// streamThreads are a warpgroup that multiplies and a warp that loads.
	streamThreads = 128 + 32
	// streamBlocks is how many blocks fit on a multiprocessor: one of this launch, and one of the next, which loads weights
	// while this one ends.
	streamBlocks = 2
	// apartShared is by how much the blocks that are to be apart have more than half of a multiprocessor's shared memory, and others
	// less, so that one of each fits.
	apartShared = 1 << 10
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
	const most = 8 // blocks of a cluster
	h.over = h.rows > separateRows
	h.columns = streamColumns
	wide := m.batch * ceilDiv(m.n, wideStreamColumns)
	if sms := m.cfg.Chip.SMs; most*wide <= sms || 2*wide > sms && (h.over || !h.b.kInner) {
		h.columns = wideStreamColumns
	}
	h.tiles = m.batch * ceilDiv(m.n, h.columns)
	slices := ceilDiv(m.k, streamSlice)
	for h.cluster = most; h.cluster > 1; h.cluster /= 2 {
		if h.tiles*h.cluster <= m.cfg.Chip.SMs && (h.cluster-1)*ceilDiv(slices, h.cluster) < slices {
			break
		}
	}
	half := m.cfg.Chip.Shared/streamBlocks - reservedShared
	size, fixed := half-apartShared, 16
	if m.apart(h) {
		size = half + apartShared
		h.shared = size
	}
	if !h.over {
		fixed += h.sums()
	}
	h.stages = (size - fixed) / (h.stage() + 16)
	h.shared = max(h.shared, h.stages*(h.stage()+16)+fixed)
	return h
}

// apart reports whether no two blocks of the launch are to share a multiprocessor. Else the blocks of the next launch, which load
// ahead, take what this one leaves, two on a multiprocessor, and so on: each launch reads by a part of the multiprocessors. Of two
// such launches the second could not load ahead. So they are those that do not have more columns than steps of k, since others
// come between these in most models. Clusters of more than two blocks do not all fit at once then.
func (m *matmul) apart(h *streamPlan) bool {
	return h.cluster <= 2 && h.tiles*h.cluster <= m.cfg.Chip.SMs && m.n <= m.k && !m.cfg.Leads && !m.cfg.Beside
}

// stage is the size of a stage, and sums that of the sums in shared memory, in bytes.
func (h *streamPlan) stage() int { return (h.columns + h.rows) * 2 * streamSlice }
func (h *streamPlan) sums() int  { return h.rows * (h.columns + 4) * 4 }

// streamCut is the cut by gemm_stream.
func (m *matmul) streamCut(h *streamPlan) cut {
	c := cut{bm: h.rows, bn: h.columns, splits: 1, threads: streamThreads, blocks: streamBlocks, cluster: h.cluster,
		grid: h.tiles * h.cluster, shared: h.shared, early: m.early(), fast: m.cfg.Precision != F32,
		source: []string{"cluster", "hopper", "gemm_hopper", "gemm_stream"}}
	var maps [2]string
	for i, f := range []*hopperFactor{&h.a, &h.b} {
		tm := f.tensorMap(m.k, []int{h.rows, h.columns}[i], h.batches, 0)
		tm.Lines = true
		maps[i] = "&" + m.field(Param{Kind: MapParam, Map: tm}, "TensorMap ", "map_"+string("ab"[i])+m.tag)
	}
	m.printf("struct Tile {\n  typedef %s T;\n", ctype(m.a.dtype))
	m.printf("  static constexpr int BN = %d, ROWS = %d, S = %d, STAGES = %d, INNER = %d, A_AXES = %d, B_AXES = %d;\n",
		h.columns, h.rows, h.cluster, h.stages, h.batches[0], h.a.axes(), h.b.axes())
	m.printf("  static constexpr bool B_KINNER = %v, EARLY = %v, OVER = %v;\n};\n\n", h.b.kInner, c.early, h.over)
	c.work = maps[0] + ", " + maps[1]
	c.call = "gemm_stream<Problem, %s, Tile>(%s, %s, %s)"
	return c
}
