package cuda

import (
	"fmt"
	"math"
	"slices"

	"fusec/graph"
)

// A hopperTile is how gemm_hopper cuts a product; see src/gemm_hopper.cuh.
type hopperTile struct {
	bm, bn   int // of a block; if it is turned, bm columns of the result by bn rows
	stages   int
	cm, cn   int // blocks of a cluster along them
	ck       int // if more than 1, so many times these share k
	pingpong bool
	turned   bool // the operands change places; without pingpong a block has one tile, which its threads store
	resident int  // slices of B at most that stay in shared memory; or 0
	splits   int  // parts that k is cut into
	operands int  // of the body, which the copy engine brings
	more     int  // bytes of shared memory of a warp that finishes a tile, beside leastTurn
}

// leastTurn is what a warp needs at least to finish a tile: 16 rows of 64 sums.
const leastTurn = 4096

// shared is the shared memory of a block in bytes: the stages, that of eight warps, two barriers a stage, what stays of B and its
// barrier.
func (t hopperTile) shared() int {
	side := t.bn
	if !t.turned {
		side = roundUp(side, 64)
	}
	bytes := (t.bm+side)*sliceBytes*t.stages + 8*(leastTurn+t.more) + 2*8*t.stages
	if t.resident > 0 {
		bytes += side*sliceBytes*(t.resident-t.stages) + 8
	}
	if k := t.shares(); k > 1 {
		bytes += (k-1)*(t.bm*t.bn/k)*4 + 8
	}
	return bytes
}

// shares is how many blocks of a cluster share k.
func (t hopperTile) shares() int { return max(t.ck, 1) }

// cluster is the number of blocks of a cluster.
func (t hopperTile) cluster() int { return t.cm * t.cn * t.shares() }

// columns are those of the result that a block finishes.
func (t hopperTile) columns() int {
	if t.turned {
		return t.bm
	}
	return t.bn / t.shares()
}

// tiles is how many tiles of a cluster's size there are.
func (m *matmul) tiles(t hopperTile) int {
	rows, columns := m.m, m.n
	if t.turned {
		rows, columns = columns, rows
	}
	return m.batch * ceilDiv(rows, t.bm*t.cm) * ceilDiv(columns, t.bn*t.cn)
}

// hopperTemplate is the template that computes a tile on the chip, with the files that it needs and the shared memory of a block
// in bytes: in tensor memory, with four barriers more and an address.
func (c *Config) hopperTemplate(t hopperTile) (name string, source []string, shared int) {
	source = []string{"cluster", "hopper", "gemm_hopper"}
	if c.tensorMemory() {
		return "gemm_blackwell", append(source, "blackwell", "gemm_blackwell"), t.shared() + 4*8 + 8
	}
	return "gemm_hopper", source, t.shared()
}

const (
	// leastPiece is how many bytes of patches are copied at once at least.
	leastPiece = 8
	// sliceBytes is how much of each row a stage holds.
	sliceBytes = 128
	// hopperThreads are a warpgroup that loads and two that multiply.
	hopperThreads = 3 * 128
	// relayoutReuse, over the size of an element, is how many rows or columns must meet an operand for it to be worth
	// copying to where the copy engine can read it.
	relayoutReuse = 1024
	// leastCopy is how many bytes an asynchronous copy takes at least, and oddReuse what relayoutReuse is for operands in smaller
	// pieces.
	leastCopy, oddReuse = 4, 24
	// oddSide is how many rows and columns B has at least that the threads of a producer copy.
	oddSide = 512
	// relayoutTile is how many rows and columns a block of relayout copies.
	relayoutTile = 64
)

// A hopperPlan is a product on Hopper's own instructions.
type hopperPlan struct {
	tile    hopperTile
	kind    string // bf16, f16 or tf32
	batches batches
	a, b    hopperFactor
	time    int // that it should take, in ns
}

// A hopperFactor is an operand as the copy engine reads it.
type hopperFactor struct {
	factor
	rows   int    // along m (n)
	pitch  int    // if it is first copied to rows of that many elements along its inner axis, else 0
	stride [2]int // along the axes of batches, in elements; 0: all have the same matrix
	kInner bool
	once   bool // of B: it is larger than what the L2 cache keeps, and all that read it do so at once
	odd    int  // of B, whose rows along n the threads of the producer copy, wherever they begin: the elements up to its last; or 0
}

// batches are the two axes, inner and outer, that batch axes are merged to.
type batches [2]int

// hopperPlan plans a product for the tensor cores of Hopper; reason says why it cannot.
func (m *matmul) hopperPlan() (h *hopperPlan, reason string) {
	h = &hopperPlan{}
	switch {
	case !m.cfg.asynchronous() && m.cfg.Chip.tensorMemory():
		return nil, "the chip has no wgmma, and products in tensor memory are off"
	case !m.cfg.asynchronous():
		return nil, "the chip has no wgmma"
	case m.a.dtype != m.b.dtype:
		return nil, "the operands differ in type"
	case m.a.dtype.Is16():
		h.kind = ctype(m.a.dtype)
	case m.a.dtype == graph.F32 && !m.cfg.strict():
		h.kind = "tf32"
	default:
		return nil, fmt.Sprintf("no product of %v in this precision", m.a.dtype)
	}
	if min(m.batch, m.m, m.n, m.k) == 0 {
		return nil, "it is empty"
	}
	if m.cfg.tensorMemory() && (m.a.gathered() || m.b.patches != nil) {
		return nil, "in tensor memory, patches are operand A alone, by the copy engine"
	}
	if q := m.a.patches; m.a.gathered() && (h.kind == "tf32" || !q.kInner || q.vec()*q.dtype.Size() < leastPiece) {
		return nil, "its patches are not pieces of 16-bit elements along k"
	}
	if q := m.a.patches; q != nil && h.kind == "tf32" && !q.kInner {
		return nil, "its patches are not along k, as tf32 must be"
	}
	if m.b.patches != nil && (h.kind == "tf32" || m.b.gathered()) {
		return nil, "B is patches that only threads can copy"
	}
	var ok bool
	if h.batches, h.a.stride, h.b.stride, ok = m.mergeBatches(); !ok {
		return nil, "more than two axes of batches"
	}
	h.a.factor, h.a.rows = m.a, m.m
	h.b.factor, h.b.rows = m.b, m.n
	for _, f := range []struct {
		*hopperFactor
		name  string
		reuse int
	}{{&h.a, "A", m.n}, {&h.b, "B", m.m}} {
		var vec int
		f.kInner, vec = m.pieces(f.factor, f.rows)
		if f.patches != nil || f.readable(m.k) {
			continue
		}
		if f.taps != nil {
			return nil, "the copy engine cannot read the filters as they lie"
		}
		if f.hopperFactor == &h.b && m.odd(f.hopperFactor) {
			f.odd = f.offset + (m.k-1)*f.k + m.n
			continue
		}
		least := relayoutReuse / f.dtype.Size()
		if vec*f.dtype.Size() < leastCopy {
			least = oddReuse
		}
		if f.reuse < least {
			return nil, "the copy engine cannot read " + f.name + " as it lies"
		}
		if f.dtype.Size() > 2 {
			f.kInner = true
		}
		inner := f.rows
		if f.kInner {
			inner = m.k
		}
		f.pitch = roundUp(inner, 16/f.dtype.Size())
		if lines := roundUp(inner, sliceBytes/f.dtype.Size()); 3*lines <= 4*inner { // no row crosses one
			f.pitch = lines
		}
	}
	if h.tile, h.time, ok = m.hopperTile(h); !ok {
		return nil, "it is too small"
	}
	h.b.once = m.cfg.Chip.Name == H200.Name && m.batch == 1 && m.m == h.tile.bm && h.tile.cm == 1 && m.b.patches == nil &&
		m.b.taps == nil && m.n*m.k*m.b.dtype.Size() > m.cfg.Chip.L2*3/4
	for _, f := range []*hopperFactor{&h.a, &h.b} {
		if f.pitch > 0 {
			h.time += f.relayoutTime(m.k, h.batches)
		}
	}
	return h, ""
}

// odd reports whether B is so large for the rows that meet it that it is read once, as it lies, by the threads of the producer.
func (m *matmul) odd(b *hopperFactor) bool {
	return m.cfg.hopper() && m.batch == 1 && m.m <= hopperRows && !b.kInner && b.outer == 1 && b.k > 0 && b.dtype.Size() == 2 &&
		b.made == "" && m.a.patches == nil && min(m.n, m.k) >= oddSide
}

// hopperPlans gives the plan on Hopper's own instructions that should take the least time; where there is none, both are
// nil.
func (m *matmul) hopperPlans() (*hopperPlan, *acrossPlan) {
	h, _ := m.hopperPlan()
	if m.measured(h) != "" {
		return h, nil
	}
	a, _ := m.acrossPlan()
	if h != nil && a != nil && a.time <= h.time {
		h = nil
	}
	if h != nil {
		a = nil
	}
	return h, a
}

// mergeBatches merges the batch axes to two, where their strides in both operands allow.
func (p *product) mergeBatches() (size batches, a, b [2]int, ok bool) {
	size = batches{1, 1}
	at := 0
	for i := len(p.batchAxes) - 1; i >= 0; i-- {
		axis := p.batchAxes[i]
		x, y := p.a.batch[axis], p.b.batch[axis]
		if size[at] > 1 && (x != a[at]*size[at] || y != b[at]*size[at]) {
			if at++; at == len(size) {
				return size, a, b, false
			}
		}
		if size[at] == 1 {
			a[at], b[at] = x, y
		}
		size[at] *= p.space.At(axis)
	}
	return size, a, b, true
}

// readable reports whether the copy engine can read the factor as it lies: elements side by side, everything else at
// multiples of 16 bytes. The tensor cores require tf32 with k as the inner axis.
func (f *hopperFactor) readable(k int) bool {
	return (f.kInner || f.dtype.Size() == 2) && f.aligned(k)
}

// aligned reports the same of the copy engine alone.
func (f *hopperFactor) aligned(k int) bool {
	size := f.dtype.Size()
	inner, side, other, n := k, f.k, f.outer, f.rows
	if !f.kInner {
		inner, side, other, n = f.rows, f.outer, f.k, k
	}
	if inner > 1 && side != 1 || f.offset*size%16 != 0 {
		return false
	}
	steps := f.stride[:]
	if f.taps != nil {
		steps = f.taps.stride[:]
	}
	if n > 1 {
		steps = append(steps, other)
		if other == 0 {
			return false
		}
	}
	for _, s := range steps {
		if s < 0 || s*size%16 != 0 {
			return false
		}
	}
	return true
}

// crosses reports whether rows of a matrix, as the copy engine reads them, begin inside of lines of sliceBytes, so that a slice of
// a row lies in two of them.
func (f *hopperFactor) crosses() bool {
	if f.patches != nil || f.taps != nil {
		return false
	}
	pitch := f.pitch
	if pitch == 0 {
		pitch = f.outer
		if !f.kInner {
			pitch = f.k
		}
	}
	return pitch*f.dtype.Size()%sliceBytes != 0
}

// tensorMap describes the factor to the copy engine: the inner axis, the other, two axes of batches. Boxes are `box`
// rows by a slice of k, or where k is not the inner axis 64 by 64.
func (f *hopperFactor) tensorMap(k, box int, size batches, scratch int64) *TensorMap {
	if f.patches != nil {
		return f.patches.tensorMap(f.base(), box, f.kInner)
	}
	bytes := f.dtype.Size()
	stride := f.stride
	if f.taps != nil {
		k, stride, size = f.taps.channels, f.taps.stride, f.taps.count
	}
	slice := sliceBytes / bytes
	t := &TensorMap{Base: f.base(), DType: f.dtype, Swizzle: sliceBytes}
	var steps [3]int
	if f.kInner {
		t.Dims = []uint64{uint64(k), uint64(f.rows)}
		t.Box = []uint32{uint32(slice), uint32(box), 1, 1}
		steps[0] = f.outer
	} else {
		t.Dims = []uint64{uint64(f.rows), uint64(k)}
		t.Box = []uint32{uint32(slice), uint32(slice), 1, 1}
		steps[0] = f.k
	}
	steps[1], steps[2] = stride[0], stride[1]
	if f.pitch > 0 {
		t.Base = Scratch(scratch)
		steps[0] = f.pitch
		each := f.pitch * f.rows
		if !f.kInner {
			each = f.pitch * k
		}
		for i := range size {
			if f.stride[i] != 0 {
				steps[1+i] = each
				each *= size[i]
			}
		}
	}
	whole := t.Dims[0] * uint64(bytes) // bytes that the axes so far take
	for i, s := range steps {
		if i > 0 {
			n := 1
			if s != 0 {
				n = size[i-1]
			}
			t.Dims = append(t.Dims, uint64(n))
		}
		step := uint64(s * bytes)
		if t.Dims[1+i] == 1 { // never taken, but must be right
			step = (whole + 15) / 16 * 16
		}
		t.Strides = append(t.Strides, step)
		whole = step * t.Dims[1+i]
	}
	return t
}

// axes tells the template which axes of batches the factor has: bit 0 the inner, bit 1 the outer.
func (f *hopperFactor) axes() (bits int) {
	for i, s := range f.stride {
		if s != 0 {
			bits |= 1 << i
		}
	}
	return bits
}

// copies is how many matrices are copied if the factor is.
func (f *hopperFactor) copies(size batches) int {
	n := 1
	for i, s := range f.stride {
		if s != 0 {
			n *= size[i]
		}
	}
	return n
}

// hopperCut is the cut by gemm_hopper.
func (m *matmul) hopperCut(h *hopperPlan) cut {
	t := h.tile
	cluster := t.cluster()
	spots := m.tiles(t) * t.splits
	warps := 8
	if t.pingpong {
		warps = 4
	}
	name, source, shared := m.cfg.hopperTemplate(t)
	c := cut{bm: t.bm, bn: t.bn, splits: t.splits, threads: hopperThreads, shared: shared, blocks: 1, cluster: cluster,
		grid: cluster * min(m.cfg.Chip.SMs/cluster, spots), sumBlocks: m.batch * ceilDiv(m.m, t.bm*t.cm) * t.cm * warps,
		scratch: m.used, fast: m.cfg.Precision != F32, work: "Whole<Problem, Tile>{}",
		late: m.cfg.hopper() && !m.update, source: source}
	maps := [2]string{}
	factors := []*hopperFactor{&h.a, &h.b}
	if t.turned {
		slices.Reverse(factors)
	}
	for i, f := range factors {
		if f.gathered() || f.odd > 0 {
			maps[i] = "(const TensorMap *)nullptr"
			continue
		}
		operand := string("ab"[i])
		box := t.bm / t.cn
		if i == 1 {
			box = t.bn / t.cm
		}
		at := roundUp(c.scratch, 256)
		if f.pitch > 0 {
			m.relayout(&c, f, h.batches, operand, at, f.nearest())
		}
		tm := f.tensorMap(m.k, box, h.batches, at)
		tm.Round = h.kind == "tf32" && f.pitch == 0
		maps[i] = "&" + m.field(Param{Kind: MapParam, Map: tm}, "TensorMap ", "map_"+operand+m.tag)
	}
	m.relayouts(&c)
	t.write(m.unit, "Tile", h.kind, factors[0], factors[1], h.batches, m.boxes != nil, m.joined)
	c.call = fmt.Sprintf("%s<Problem, %%s, Tile>(%%s, %s, %s, %%s, %%s", name, maps[0], maps[1])
	if m.a.gathered() {
		c.call += ", " + m.pointer(m.a)
		c.source = []string{"mma", "cluster", "hopper", "gemm_hopper", "gemm_hopper_patches"}
	} else if h.b.odd > 0 {
		c.call += ", " + m.pointer(m.b)
		c.source = append(c.source, "gemm_hopper_odd")
	}
	c.call += ")"
	return c
}

// write prints the tile as the Tile of the template.
func (t hopperTile) write(u *unit, name, kind string, a, b *hopperFactor, size batches, stores bool, blocks joinedBlocks) {
	u.printf("struct %s {\n  typedef %s T;\n", name, kind)
	u.printf("  static constexpr int BM = %d, BN = %d, STAGES = %d, CM = %d, CN = %d, CK = %d, SPLITS = %d;\n", t.bm, t.bn,
		t.stages, t.cm, t.cn, t.shares(), t.splits)
	u.printf("  static constexpr int INNER = %d, A_AXES = %d, B_AXES = %d;\n", size[0], a.axes(), b.axes())
	u.printf("  static constexpr bool A_KINNER = %v, B_KINNER = %v, PINGPONG = %v, GATHERS = %v, TAPS = %v;\n", a.kInner,
		b.kInner, t.pingpong, a.gathered(), b.taps != nil)
	u.printf("  static constexpr bool B_PATCHES = %v;\n  static constexpr i64 ODD = %d;\n", b.patches != nil, b.odd)
	u.printf("  static constexpr bool TURNED = %v, B_ONCE = %v;\n  static constexpr int RESIDENT = %d;\n", t.turned, b.once,
		t.resident)
	u.printf("  static constexpr int FIRST = %d, BLOCKS = %d;\n", blocks.first, blocks.count)
	u.printf("  static constexpr int TURN = %d, OPERANDS = %d;\n  static constexpr bool STORES = %v;\n};\n\n", leastTurn+t.more,
		t.operands, stores)
}

// nearest is what a relayout copies of the elements, as a Copied of the template, for a product of one pass.
func (f *hopperFactor) nearest() string {
	if f.dtype == graph.F32 {
		return "NEAREST"
	}
	return "ALL"
}

// relayoutTime is what a relayout takes, in ns.
func (f *hopperFactor) relayoutTime(k int, size batches) int {
	return finishTime + 2*f.copies(size)*f.rows*k*f.dtype.Size()/finishBytes
}

// relayout has a factor copied to rows of f.pitch in the scratch memory from byte at on, along k or, if k is not to be the inner
// axis, along n; what is a Copied of the template.
func (m *matmul) relayout(c *cut, f *hopperFactor, size batches, name string, at int64, what string) {
	typ := ctype(f.dtype)
	n := f.copies(size)
	rows, cols, outer, side := f.rows, m.k, f.outer, f.k
	if !f.kInner {
		rows, cols, outer, side = cols, rows, side, outer
	}
	wide := relayoutTile
	if side == 1 && cols <= 2*relayoutTile {
		wide = cols
	} else if side != 1 {
		c.turned = max(c.turned, relayoutTile*(relayoutTile*f.dtype.Size()+4))
	}
	from, to := m.pointer(f.factor), m.scratch(typ, "rows_"+name+m.tag, at)
	inner := 1
	if f.stride[0] != 0 {
		inner = size[0]
	}
	across, down := ceilDiv(cols, wide), ceilDiv(rows, relayoutTile)
	c.copies = append(c.copies, relayoutCopy{across * down * n, fmt.Sprintf(
		"    const int x = i %% %d, y = i / %d %% %d, z = i / %d, b0 = z %% %d, b1 = z / %d;\n"+
			"    relayout<%d, %d, %d, %d, %d, %d, %s>(%s + i64(z) * %d, %s + %d + i64(b0) * %d + i64(b1) * %d, y * %d, x * %d);\n",
		across, across, down, across*down, inner, inner, rows, cols, f.pitch, outer, side, wide, what, to, f.pitch*rows, from,
		f.offset, f.stride[0], f.stride[1], relayoutTile, wide)})
	c.scratch = at + int64(n)*int64(rows)*int64(f.pitch)*int64(f.dtype.Size())
}

// A relayoutCopy copies a factor: the text is what block i of them does.
type relayoutCopy struct {
	blocks int
	text   string
}

// relayouts adds the step that makes all copies of factors.
func (m *matmul) relayouts(c *cut) {
	if len(c.copies) == 0 {
		return
	}
	m.printf("KERNEL(relayout%s, 256, 1) {\n", m.tag)
	blocks := 0
	for _, r := range c.copies {
		m.printf("  if (const int i = int(blockIdx.x) - %d; i >= 0 && i < %d) {\n%s  }\n", blocks, r.blocks, r.text)
		blocks += r.blocks
	}
	m.printf("}\n\n")
	c.before = append(c.before, Step{Entry: "relayout" + m.tag, Grid: [3]int{blocks, 1, 1}, Block: 256, Shared: c.turned})
}

// A hopperCost is what a tile takes, in ns: a step of k, and what it takes beside its steps.
type hopperCost struct{ step, fixed int }

// A hopperTileCost is a tile with what it was measured to take on an H200: of matrices, of matrices whose results of 16 bits the
// copy engine stores, of patches that the copy engine takes from images along k, and of such patches whose positions k counts,
// where they were; and what the last tile takes in addition, in ns. That of boxes is of one warpgroup alone if they take turns.
type hopperTileCost struct {
	hopperTile
	plain, boxes, patches, positions hopperCost
	last                             int
}

// hopperTiles are the tiles to choose from.
var hopperTiles = []hopperTileCost{
	{hopperTile{bm: 128, bn: 256, stages: 4, cm: 1, cn: 1},
		hopperCost{667, 3500}, hopperCost{665, 1550}, hopperCost{622, 3200}, hopperCost{667, 3500}, 0},
	{hopperTile{bm: 128, bn: 192, stages: 4, cm: 1, cn: 1},
		hopperCost{515, 2300}, hopperCost{515, 950}, hopperCost{563, 2630}, hopperCost{515, 2300}, 0},
	{hopperTile{bm: 128, bn: 128, stages: 6, cm: 1, cn: 1},
		hopperCost{353, 1650}, hopperCost{355, 500}, hopperCost{296, 2740}, hopperCost{353, 1650}, 0},
	{hopperTile{bm: 128, bn: 64, stages: 8, cm: 1, cn: 1},
		hopperCost{205, 450}, hopperCost{205, 450}, hopperCost{238, 1240}, hopperCost{450, 450}, 0},
	{hopperTile{bm: 64, bn: 256, stages: 4, cm: 2, cn: 1, pingpong: true},
		hopperCost{406, 200}, hopperCost{390, 2100}, hopperCost{406, 200}, hopperCost{406, 200}, 3000},
	{hopperTile{bm: 128, bn: 128, stages: 6, cm: 1, cn: 1, pingpong: true},
		hopperCost{360, 400}, hopperCost{355, 2200}, hopperCost{}, hopperCost{}, 3000},
	{hopperTile: hopperTile{bm: 128, bn: 128, stages: 5, cm: 1, cn: 1, pingpong: true, more: 4096}, boxes: hopperCost{357, 2140}},
}

// wideTiles are further ones for operands of 16 bits that are matrices, on an H200, where several are beside one another. On an
// H100 that of 224 columns was no faster, and the other has not been timed.
var wideTiles = []hopperTileCost{
	{hopperTile: hopperTile{bm: 128, bn: 224, stages: 4, cm: 1, cn: 1}, plain: hopperCost{595, 3000}, boxes: hopperCost{595, 1300}},
	{hopperTile: hopperTile{bm: 64, bn: 192, stages: 6, cm: 1, cn: 1, pingpong: true}, plain: hopperCost{300, 200},
		boxes: hopperCost{290, 2100}, last: 3000},
}

// turnedTile is a further one for matrices of 16 bits, A with k as its inner axis, and results that the copy engine stores, on an
// H200: the rows of a tile need not be a multiple of 64.
var turnedTile = hopperTileCost{hopperTile: hopperTile{bm: 128, bn: 160, stages: 5, cm: 2, cn: 1, pingpong: true, turned: true},
	boxes: hopperCost{445, 4700}}

// residentTile is a further one for matrices of 16 bits and such results, where k has 3 or 4 slices, on an H200.
var residentTile = hopperTileCost{hopperTile: hopperTile{bm: 64, bn: 256, stages: 8, cm: 1, cn: 1, pingpong: true, resident: 4},
	boxes: hopperCost{390, 1640}}

// patchTiles are further ones for patches along k: each warpgroup finishes a tile while the other multiplies.
var patchTiles = []hopperTileCost{
	{hopperTile: hopperTile{bm: 128, bn: 128, stages: 6, cm: 1, cn: 1, pingpong: true}, patches: hopperCost{296, 1900}, last: 1000},
	{hopperTile: hopperTile{bm: 128, bn: 64, stages: 8, cm: 1, cn: 1, pingpong: true}, patches: hopperCost{238, 1010}, last: 300},
}

// crossingTile is a further one for small products whose operands both have rows that cross lines: the blocks of a cluster load the
// same columns once.
var crossingTile = hopperTileCost{
	hopperTile: hopperTile{bm: 64, bn: 128, stages: 8, cm: 2, cn: 1, pingpong: true}, boxes: hopperCost{235, 2600}}

// crossingTurnedTile is a further one for such products on an H200, where A has k as its inner axis and the columns nearly fill
// clusters: eight blocks load a slice of 512 columns and 144 rows once. Its cost is low beside the others', which are those of rows
// that cross no lines.
var crossingTurnedTile = hopperTileCost{
	hopperTile: hopperTile{bm: 128, bn: 72, stages: 7, cm: 4, cn: 2, turned: true}, boxes: hopperCost{150, 1200}}

// shareTile is a further one for products of at most two tiles for each step of k, of 16-bit matrices with results that the copy
// engine stores, on an H200: the two blocks of a cluster share k.
var shareTile = hopperTileCost{
	hopperTile: hopperTile{bm: 128, bn: 64, stages: 7, cm: 1, cn: 1, ck: 2}, boxes: hopperCost{175, 2200}}

// flatTiles are those for B of patches whose positions k counts: where a tile has 64 columns, more is loaded for each product.
var flatTiles = []hopperTileCost{
	{hopperTile: hopperTile{bm: 64, bn: 192, stages: 5, cm: 1, cn: 1, pingpong: true}, plain: hopperCost{620, 1700}},
	{hopperTile: hopperTile{bm: 64, bn: 256, stages: 4, cm: 1, cn: 1, pingpong: true}, plain: hopperCost{800, 2000}},
}

// oddTiles are those where threads of the producer copy B.
var oddTiles = []hopperTileCost{
	{hopperTile: hopperTile{bm: 128, bn: 256, stages: 4, cm: 1, cn: 1}, plain: hopperCost{1800, 3500}},
	{hopperTile: hopperTile{bm: 128, bn: 128, stages: 6, cm: 1, cn: 1}, plain: hopperCost{1250, 1650}},
	{hopperTile: hopperTile{bm: 128, bn: 64, stages: 8, cm: 1, cn: 1}, plain: hopperCost{1000, 450}},
}

const (
	// hopperLeast is the least size of a product for which the tiles are not too large.
	hopperLeast = 64
	// residentRows are how many rows there are at least for B to stay in shared memory.
	residentRows = 4096
	// clustersOfEight are how many clusters of eight blocks fit on an H200 at once.
	clustersOfEight = 14
	// leastShared is the least k that two blocks share.
	leastShared = 1024
	// finishTime is what a second step takes to start, in ns, and finishBytes what it moves in one.
	finishTime, finishBytes = 2500, 3000
	// leastSteps are the steps of k that a share has at least.
	leastSteps = 4
	// memoryBytes is what a product writes in a ns at most.
	memoryBytes = 3450
	// crossingRows are how many slices of rows that cross lines come from the L2 cache in a ns.
	crossingRows = 58
)

// A hopperCandidate is a tile, and the time in ns that it should take.
type hopperCandidate struct {
	tile hopperTile
	time int
}

// hopperCandidates are the tiles to choose from with the shares of k that may go with them. For tensor memory they are chosen by
// what they take on an H200: nobody has measured them.
func (m *matmul) hopperCandidates(h *hopperPlan) (list []hopperCandidate) {
	odd := h.b.odd > 0
	steps := ceilDiv(m.k*m.a.dtype.Size(), sliceBytes)
	short := m.cfg.hopper() && !odd && m.a.patches == nil && m.b.patches == nil && m.elementBytes() == 2
	boxes := short && m.resultBoxes(64) != nil
	shapes := hopperTiles
	if odd {
		shapes = oddTiles
	} else if m.b.patches != nil {
		shapes = flatTiles
	} else if q := m.a.patches; q != nil && q.kInner && !m.a.gathered() {
		shapes = slices.Concat(hopperTiles, patchTiles)
	} else if q == nil && !m.convolves && m.b.taps == nil && m.a.dtype.Is16() && m.n > 256 && m.cfg.hopper() &&
		m.cfg.Chip.Name == H200.Name {
		shapes = slices.Concat(hopperTiles, wideTiles)
	}
	alone := m.cfg.Chip.Name == H200.Name && m.cfg.Chip.SMs == H200.SMs // products of one launch have parts of the chip
	crossing := boxes && h.a.crosses() && h.b.crosses() && m.batch*ceilDiv(m.m, 128)*ceilDiv(m.n, 128) <= m.cfg.Chip.SMs/2
	if boxes && !m.convolves && m.b.taps == nil && m.cfg.Chip.Name == H200.Name {
		shapes = slices.Clip(shapes)
		if h.a.kInner {
			shapes = append(shapes, turnedTile)
		}
		if t := residentTile; m.batch == 1 && m.m >= residentRows && steps > 2 && steps <= t.resident &&
			ceilDiv(m.n, t.bn) <= m.cfg.Chip.SMs {
			shapes = append(shapes, t)
		}
		if t := shareTile; alone && m.batch == 1 && m.k >= leastShared &&
			m.tiles(t.hopperTile) <= min(2*steps, m.cfg.Chip.SMs/t.cluster()) {
			shapes = append(shapes, t)
		}
	}
	if crossing {
		shapes = append(slices.Clip(shapes), crossingTile)
		if t := crossingTurnedTile; alone && m.batch == 1 && h.a.kInner &&
			m.tiles(t.hopperTile) <= clustersOfEight && 4*m.n >= 3*roundUp(m.n, t.bm*t.cm) {
			shapes = append(shapes, t)
		}
	}
	for _, c := range shapes {
		t := c.hopperTile
		cost := c.plain
		switch q := m.a.patches; {
		case q == nil || m.a.gathered():
		case t.bn >= 2*m.n:
			continue // half of it would be empty
		case q.kInner:
			cost = c.patches
		default:
			cost = c.positions
		}
		slots := m.cfg.Chip.SMs / t.cluster() // clusters that run at once
		if slots == 0 || cost.step == 0 && !boxes || (m.a.gathered() || m.cfg.tensorMemory()) && (t.cluster() > 1 || t.pingpong) {
			continue
		}
		tiles := m.tiles(t)
		for t.splits = 1; ; t.splits++ {
			each := ceilDiv(steps, t.splits)
			time := ceilDiv(tiles*t.splits, slots)*(each*cost.step+cost.fixed) + c.last
			if short && t.splits == 1 {
				if t.turned && t.pingpong && tiles <= slots { // one warpgroup multiplies alone
					c.boxes.step += c.boxes.step / 5
				}
				if crossing {
					c.boxes.step = max(c.boxes.step, (t.bm/t.cn+t.bn/t.cm)*tiles*t.cm*t.cn/crossingRows)
				}
				each := ceilDiv(tiles, slots)
				if columns := ceilDiv(m.n, t.bn); t.resident > 0 {
					each = ceilDiv(tiles/columns, slots/columns)
				}
				time = m.shortTime(c, ceilDiv(steps, t.shares()), each, boxes)
			} else if t.splits > 1 {
				time += finishTime + (t.splits+1)*m.batch*m.m*m.n*m.acc.Size()/finishBytes
			}
			if (t.splits-1)*each < steps {
				list = append(list, hopperCandidate{t, time})
			}
			if (t.pingpong || t.turned || t.ck > 1) && m.b.patches == nil || tiles*t.splits >= 2*slots || each <= leastSteps {
				break
			}
		}
	}
	return list
}

// shortTime is what a product takes whose results have 16 bits, where a multiprocessor has that many tiles one after another.
func (m *matmul) shortTime(c hopperTileCost, steps, tiles int, boxes bool) int {
	const bytes = 2
	multiply, finish, store := steps*c.boxes.step, c.boxes.fixed, 0
	if !boxes { // threads store pieces of up to 16 bytes
		area := c.bm * c.bn
		store = area/60 + (8/min(m.n&-m.n, 8)-1)*(90+area/64)
	}
	time := tiles * (multiply + finish + store)
	if c.pingpong {
		time = tiles*max(multiply, (multiply+finish)/2+store) + finish/2
	}
	return max(time, m.batch*m.m*m.n*bytes/memoryBytes)
}

// hopperTile chooses the tile that was measured to take the least time, or else should, and says how long it should take.
func (m *matmul) hopperTile(h *hopperPlan) (best hopperTile, least int, ok bool) {
	if min(m.m, m.n, m.k) < hopperLeast && h.b.odd == 0 {
		return best, 0, false
	}
	least = math.MaxInt
	way := m.way(h.kind)
	for _, c := range m.hopperCandidates(h) {
		if way != "" && c.tile.String() == way {
			return c.tile, c.time, true
		}
		if c.time < least {
			least, best = c.time, c.tile
		}
	}
	return best, least, true
}
