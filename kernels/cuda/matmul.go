package cuda

import (
	"fmt"
	"slices"
	"strings"

	"fusec/graph"
	"fusec/graph/body"
)

// compileMatMul makes the kernel of a fusion anchored on a MatMul: the product, with the body run over each tile while
// it is in registers. If the product is split along k, a second step adds the parts and runs the body; if there are
// column sums, a last step adds those of the blocks of rows.
func compileMatMul(f graph.Fusion, args, results []Operand, cfg Config) (*Kernel, error) {
	m, err := newMatMul(f, args, results, cfg)
	if err != nil {
		return nil, err
	}
	return m.kernel(), nil
}

// newMatMul prints Problem and Body.
func newMatMul(f graph.Fusion, args, results []Operand, cfg Config) (*matmul, error) {
	p, err := body.Lower(f, args, results)
	if err != nil {
		return nil, err
	}
	if err := checkPanels(p, cfg); err != nil {
		return nil, err
	}
	m := &matmul{unit: newUnit(args, results), product: newProduct(p), body: p, cfg: cfg}
	if err := m.checkNorm(); err != nil {
		return nil, err
	}
	return m, m.write()
}

// write chooses how many columns the body takes at once, and prints Problem and Body.
func (m *matmul) write() error {
	limit := 16 / m.elementBytes()
	if m.math() == "" {
		limit = min(limit, simtColumns)
	}
	if m.cfg.Chained || m.panelStream() != nil {
		limit = min(limit, m.m) // so that more threads have columns
	} else if _, _, few := m.few(); !few && m.stream() == nil {
		if _, across := m.hopperPlans(); across != nil {
			limit = min(limit, acrossColumns)
		}
	}
	if m.filled > 0 && m.wide > 0 {
		limit = 1 // not all neighbours are in the result
	}
	m.columns(limit)
	return m.writeBody()
}

// elementBytes is the size of the largest of the results' elements, as far as it decides how many columns go at once: sums over
// rows are stored once for many rows.
func (m *matmul) elementBytes() int {
	size := 2
	for i, r := range m.results {
		if !m.body.Stores[i].Sums {
			size = max(size, r.DType.Size())
		}
	}
	return size
}

// A matmul is a kernel in the making.
type matmul struct {
	*unit
	*product
	body   *body.Program
	cfg    Config
	sums   []columnSum
	sum    string // C++ type of the column sums
	update bool   // a result is a State or Param
	rows   int    // of the tile, where that is settled; such products are not split
	whole  bool   // not split
	tag    string // of the names of the entries, where a kernel is several products
	before []Step // that make factors
	taps   [2]int // strides of the rows and columns of depthwise filters
	boxes  *resultBoxes
	used   int64 // bytes of the scratch memory that belong to others, or hold what those steps make
	joined joinedBlocks
}

// reserve takes bytes of the scratch memory, and returns where they begin.
func (m *matmul) reserve(bytes int64) (at int64) {
	at = roundUp(m.used, 256)
	m.used = at + bytes
	return at
}

// A columnSum is a result that sums a value over all rows.
type columnSum struct {
	result         int
	stride, offset int
}

// writeBody prints Problem and Body.
func (m *matmul) writeBody() error {
	p := m.product
	coords, lines := p.coords()
	wide := p.column
	if p.inBody != nil {
		coords = p.inBody(coords)
		if wide = p.wide; wide == 0 {
			wide = len(coords) - 1
		}
	}
	if p.filled > 0 {
		lines = append(lines, fmt.Sprintf("if (%s >= %d) return;", coords[2], p.filled))
		if p.filledTaps != p.space.At(1) {
			coords[1] = fmt.Sprintf("(%s - %d)", coords[1], p.shift)
			lines = append(lines, fmt.Sprintf("if (u32(%s) >= %d) return;", coords[1], p.filledTaps))
		}
	}
	b := newPrinter(m.unit, m.body, coords, wide, p.w)
	b.overtake = !m.cfg.Awaits && !m.cfg.Chained
	b.define(m.body.IndexOf(0), value{kind: vector, expr: "acc", lane: lane(m.body.Anchor.Type.DType)})
	var summed []value
	m.sum = "float"
	for i := range m.body.Stores {
		s := &m.body.Stores[i]
		m.update = m.update || m.results[i].Update
		if !s.Sums {
			if err := b.store(i); err != nil {
				return err
			}
			continue
		}
		v, err := b.operand(s.Value)
		if err != nil {
			return err
		}
		if v.lane != "float" {
			m.sum = "double"
		}
		summed = append(summed, v)
		m.sums = append(m.sums, columnSum{i, s.Layout.Stride[s.Layout.Shape.Rank()-1], s.Layout.Offset})
	}
	for i, v := range summed {
		b.line(v, "sums[%d] = op::add(sums[%d], op::cast<%s>(widen<W>(%s)));", i, i, m.sum, v.expr)
	}
	if m.update {
		m.status()
	}
	p.write(m.unit)
	text := ""
	for _, l := range lines {
		text += "    " + l + "\n"
	}
	fields := m.readAhead(b)
	if h, _ := m.hopperPlans(); h != nil && h.tile.splits == 1 {
		if m.boxes = m.resultBoxes(h.tile.columns()); m.boxes != nil {
			m.boxes.direct = h.tile.turned && !h.tile.pingpong
		}
	}
	m.printf("struct Body {\n  static constexpr int SUMS = %d;\n  static constexpr bool AHEAD = %v, LONG = false;\n"+
		"  typedef %s Sum;\n  const Params &p;\n", len(m.sums), len(fields) > 0, m.sum)
	if m.boxes != nil {
		if err := m.openBoxes(b, text); err != nil {
			return err
		}
	}
	if len(fields) > 0 {
		m.openAhead("batch", lane(p.acc), text, fields)
	} else {
		m.printf("  template <int W>\n  DEVICE void operator()(int batch, int m, int n, const Vec<%s, W> &acc, "+
			"Vec<Sum, W> *sums) const {\n%s", lane(p.acc), text)
	}
	m.printf("%s  }\n};\n\n", b.text("    "))
	return nil
}

// A resultBoxes is a result that the copy engine stores, in boxes of a tensor with two axes of batches.
type resultBoxes struct {
	tensor *TensorMap
	inner  int  // the size of the inner of these
	direct bool // threads store the boxes instead
}

// resultBoxes is the one result of a product on Hopper's own instructions, where the copy engine can store it in boxes of 16 rows
// and 64 columns, or 32 if 64 do not divide the columns of a tile: it has 16 bits, and nothing of each row is read for it.
func (m *matmul) resultBoxes(columns int) *resultBoxes {
	if !m.cfg.hopper() || m.inBody != nil || m.filled > 0 || len(m.results) != 1 || !m.results[0].DType.Is16() || m.n%8 != 0 {
		return nil
	}
	for i := range m.body.Values {
		v := &m.body.Values[i]
		if v.Kind == body.Draw || v.Kind == body.Load &&
			slices.ContainsFunc(m.product.rows, func(axis int) bool { return v.Layout.Stride[axis] != 0 }) {
			return nil
		}
	}
	s := &m.body.Stores[0]
	layouts := []graph.Layout{s.Layout}
	rows, batch := mergeAxes(m.space, m.product.rows, layouts), mergeAxes(m.space, m.batchAxes, layouts)
	if s.Sums || len(rows) > 1 || len(batch) > 2 || s.Layout.Stride[m.column] != 1 {
		return nil
	}
	outer := [3]run{{size: 1}, {size: 1}, {size: 1}} // innermost first
	copy(outer[:1], rows)
	slices.Reverse(batch)
	copy(outer[1:], batch)
	size := m.results[0].DType.Size()
	wide := sliceBytes
	if columns*size%wide != 0 {
		wide /= 2
	}
	t := &TensorMap{Base: Result(0, int64(s.Layout.Offset*size)), DType: m.results[0].DType, Swizzle: wide,
		Dims: []uint64{uint64(m.n)}, Box: []uint32{uint32(wide / size), 16, 1, 1}}
	whole := m.n * size
	for _, a := range outer {
		step := s.Layout.Stride[a.axis] * size
		if a.size == 1 { // never taken, but must be right
			step = roundUp(whole, 16)
		} else if step < 0 {
			return nil
		}
		t.Dims, t.Strides = append(t.Dims, uint64(a.size)), append(t.Strides, uint64(step))
		whole = step * a.size
	}
	if slices.ContainsFunc(append(t.Strides, uint64(t.Base.Byte)), func(x uint64) bool { return x%16 != 0 }) {
		return nil
	}
	return &resultBoxes{tensor: t, inner: outer[1].size}
}

// openBoxes prints what a body has for store_tile.
func (m *matmul) openBoxes(b *printer, lines string) error {
	v, err := b.stored(0)
	if err != nil {
		return err
	}
	field := m.field(Param{Kind: MapParam, Map: m.boxes.tensor}, "TensorMap ", "map_y"+m.tag)
	m.printf("  typedef %s Result;\n  DEVICE void store_box(const void *box, int batch, int m, int n) const {\n"+
		"    tma_store(&%s, box, n, m, batch %% %d, batch / %d);\n  }\n", ctype(m.results[0].DType), field, m.boxes.inner,
		m.boxes.inner)
	if m.boxes.direct {
		m.printf("  DEVICE Result *at(int batch, int m, int n) const { return %s + %s; }\n", m.result(0),
			b.offset(m.body.Stores[0].Layout))
	}
	m.printf("  template <int W> DEVICE auto value(int batch, int m, int n, const Vec<%s, W> &acc) const {\n%s", lane(m.acc), lines)
	for _, s := range b.stmts {
		if !s.store {
			m.printf("    %s\n", s.text)
		}
	}
	m.printf("    return widen<W>(%s);\n  }\n", v.expr)
	return nil
}

// readAhead takes out of a body on Hopper's own instructions what it reads of each row in 16 bits, where nothing is written
// meanwhile. It is kept as it is read. Numbers of 32 bits would take twice the registers, and reading those ahead gains nothing.
// Of a product of a chain it is all that is read of each column.
func (m *matmul) readAhead(b *printer) (fields []aheadField) {
	if h, _ := m.hopperPlans(); h == nil && !m.cfg.Chained || m.inBody != nil || m.filled > 0 {
		return nil
	}
	for _, i := range b.reads {
		v, l, d := b.values[i], m.body.Values[i].Layout, m.args[m.body.Values[i].Arg].DType
		if v.kind != vector || !m.cfg.Chained &&
			(!d.Is16() || !slices.ContainsFunc(m.product.rows, func(axis int) bool { return l.Stride[axis] != 0 })) {
			continue
		}
		s := &b.stmts[slices.IndexFunc(b.stmts, func(s stmt) bool { return s.name == v.expr })]
		head := "const auto " + s.name + " = "
		read, remark, _ := strings.Cut(strings.TrimPrefix(s.text, head), ";")
		read, still := strings.CutPrefix(read, "load<"+v.lane)
		if !still || !m.cfg.Chained && !strings.Contains(read, "fixed(") {
			continue
		}
		fields = append(fields, aheadField{typ: "Vec<" + ctype(d) + ", W>", name: s.name, read: "load<" + ctype(d) + read})
		s.text = fmt.Sprintf("%sop::cast<%s>(read.%s);%s", head, v.lane, s.name, remark)
	}
	return fields
}

// sumBytes is the scratch memory that the sums of blocks of rows take.
func (m *matmul) sumBytes(blocks int) int64 {
	return roundUp(int64(len(m.sums))*int64(blocks)*int64(m.n)*8, 256)
}

// finishRows is the number of rows that a block takes in the second step of a split product.
const finishRows = 16

// A cut is how a template divides a product among blocks of threads.
type cut struct {
	bm, bn  int    // the tile of a block
	bk      int    // steps along k at a time
	splits  int    // parts that k is cut into
	threads int    // of a block
	blocks  int    // on a multiprocessor at once, at least
	shared  int    // bytes for a body with the column sums
	call    string // the template with its arguments; %s are the Body, its value, the Piece and where column sums go
	source  []string

	// Of a template whose blocks take one tile after another:
	grid      int    // blocks; 0: one for each tile
	cluster   int    // blocks of a cluster
	work      string // what takes the place of the Piece
	sumBlocks int    // blocks of rows that column sums come from
	before    []Step // that prepare operands
	copies    []relayoutCopy
	turned    int   // bytes of shared memory of a block for those
	scratch   int64 // bytes that those use
	early     bool  // it may begin before the step before it has ended; see [Step]
	late      bool  // it calls late_read when it is prepared; see src/prelude.cuh
	fast      bool  // functions of the body may be as inaccurate as the operands
}

// entry begins the function of that name.
func (c *cut) entry(name string) string {
	entry := entryText(name, c.threads, c.blocks, c.cluster)
	if c.late {
		return "LATE_" + entry
	}
	return entry
}

// entryText begins an entry of blocks of so many threads, of which at least so many run on a multiprocessor, in clusters of some.
func entryText(name string, threads, blocks, cluster int) string {
	if cluster > 1 {
		return fmt.Sprintf("CLUSTER_KERNEL(%s, %d, %d, %d)", name, threads, blocks, cluster)
	}
	return fmt.Sprintf("KERNEL(%s, %d, %d)", name, threads, blocks)
}

// fastText begins a translation unit whose functions may be as inaccurate as 16 bits or tf32; see src/ops.cuh.
const fastText = "#define FUSEC_FAST\n"

// kernel chooses a tile and puts the unit together.
func (m *matmul) kernel() *Kernel {
	k, c := m.steps()
	return m.finish(k, c.fast, c.source...)
}

// finish puts the unit of products together.
func (u *unit) finish(k *Kernel, fast bool, templates ...string) *Kernel {
	if len(k.Steps) == 0 {
		return &Kernel{}
	}
	for i := range k.Steps {
		k.Steps[i].Params = u.fields
	}
	k.Source = u.source(append([]string{"gemm", "patches"}, templates...)...)
	if fast {
		k.Source = fastText + k.Source
	}
	return k
}

// steps chooses a tile and writes the entries of the product.
func (m *matmul) steps() (*Kernel, cut) {
	var c cut
	way, time := "", 0
	var late []int
	if h := m.stream(); h != nil {
		c, late = m.streamCut(h), m.late()
	} else if h := m.panelStream(); h != nil {
		c, late = m.panelStreamCut(h), m.late()
	} else if f, t, ok := m.few(); ok {
		c, late = m.fewCut(f, t), m.late()
	} else if h, a := m.hopperPlans(); h != nil {
		c, way, time = m.hopperCut(h), m.measured(h), h.time
	} else if a != nil {
		c = m.acrossCut(a)
	} else {
		c, way = m.cut(), m.measured(nil)
	}
	k := &Kernel{Way: way, Time: time, Late: late, Steps: append(m.before, c.before...), Scratch: roundUp(max(c.scratch, m.used), 256)}
	rows := c.bm
	if c.splits > 1 {
		rows = finishRows
	}
	blocks := m.batch * ceilDiv(m.m, rows)
	if c.grid > 0 && c.splits == 1 {
		blocks = c.sumBlocks
	}
	partial := fmt.Sprintf("(%s *)nullptr", m.sum)
	if len(m.sums) > 0 {
		partial = m.scratch(m.sum, "partial"+m.tag, k.Scratch)
		k.Scratch += m.sumBytes(blocks)
	}
	tiles := m.batch * ceilDiv(m.m, c.bm) * ceilDiv(m.n, c.bn)
	entry := c.entry("matmul" + m.tag)
	if m.joined.count > 0 {
		entry = joinedPart
	}
	m.printf("%s {\n%s  ", entry, m.clusterGuard(c.cluster))
	grid, piece, split := c.grid, c.work, "0" // the template sets it
	if grid == 0 {
		grid, split = tiles*c.splits, "spot.split"
		m.printf("const Spot spot = spot_of<Problem, %d, %d, %d>(blockIdx.x);\n  ", c.bm, c.bn, c.splits)
		piece = fmt.Sprintf("piece_of<Problem, %d, %d>(%s, %s, spot)", c.bk, c.splits, m.pointer(m.a), m.pointer(m.b))
	}
	if c.splits == 1 {
		m.printf(c.call+";\n}\n", "Body", "Body{p}", piece, partial)
	} else {
		parts := m.scratch(lane(m.acc), "parts"+m.tag, k.Scratch)
		k.Scratch += int64(c.splits) * int64(m.batch) * int64(m.m) * int64(m.n) * int64(m.acc.Size())
		body := fmt.Sprintf("Partial<Problem>{%s, %s}", parts, split)
		m.printf(c.call+";\n}\n", "Partial<Problem>", body, piece, "(float *)nullptr")
		m.printf("\nKERNEL(finish%s, 256, 1) {\n%s  finish_split<Problem, Body, %d, %d>(Body{p}, %s, %s);\n}\n", m.tag,
			m.guard(), c.splits, finishRows, parts, partial)
	}
	if tiles > 0 {
		grid := [3]int{grid, 1, 1}
		k.Steps = append(k.Steps, Step{Entry: "matmul" + m.tag, Grid: grid, Block: c.threads, Shared: c.shared, Early: c.early})
		if c.splits > 1 {
			grid[0] = blocks * ceilDiv(m.n, 32*m.w)
			k.Steps = append(k.Steps, Step{Entry: "finish" + m.tag, Grid: grid, Block: 256, Shared: 8 * 32 * m.w * 8})
		}
	}
	if len(m.sums) > 0 && m.n > 0 {
		m.printf("\nKERNEL(columns, 256, 1) {\n%s", m.guard())
		for i, s := range m.sums {
			m.printf("  if (blockIdx.y == %d) add_blocks<%s, %d, %d, %d>(%s + %d, %s + %d);\n", i, m.sum, blocks, m.n,
				s.stride, m.result(s.result), s.offset, partial, i*blocks*m.n)
			k.Last = append(k.Last, s.result)
		}
		m.printf("}\n")
		grid := [3]int{ceilDiv(m.n, 32), len(m.sums), 1}
		k.Steps = append(k.Steps, Step{Entry: "columns", Grid: grid, Block: 256, Shared: 8 * 32 * 8})
	}
	return k, c
}

// cut chooses the template and the tile.
func (m *matmul) cut() cut {
	if math := m.math(); math != "" {
		return m.mmaCut(math)
	}
	return m.simtCut()
}
