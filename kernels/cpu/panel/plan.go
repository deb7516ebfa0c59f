package panel

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"unsafe"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/cpu/tiling"
	"fusec/kernels/cpu/vec"
)

const (
	columns = graph.PanelColumns
	steps   = 8 // rows of the weights in an octet
	// most is the number of rows of an item.
	most = 64
	// items is about how many items there should be, and widest how many panels one has at most. Of few rows, whose time is that of
	// reading the weights, a worker has shares items, so that it reads long pieces of memory.
	items, widest   = 64, 8
	fewRows, shares = 8, 8
	// manyRows is the number of rows from which on weights are unpacked to memory, once for an item, and pieceRows is how many rows
	// of a panel are at a time: 32 KB, which stay in the cache.
	manyRows, pieceRows = 32, 256
)

// An Epilogue finishes tiles of C; see [gemm.Epilogue], whose batch is 0.
type Epilogue interface {
	Tile(worker, batch, row, col, rows, cols int)
}

// A Config describes a product C [M, N] = X [M, K] · W [K, N].
type Config struct {
	M, N, K int
	Type    graph.DType // of the panels
	Block   int         // rows of weights that share a scale, a multiple of 8; 0: all
	Scaled  bool
	// Offset adds numbers to the weights, one for each block of a column; see [Plan.Offsets]. It is for X of float32 that is not
	// rounded.
	Offset bool
	// Integers rounds X to 8 bits and sums integers; see [graph.PanelMatMul]. Panels of I8 are in quads.
	Integers bool
	// BF16 says that X is of BF16, as the panels are, which have no scales; see [Plan.RunBF16].
	BF16 bool
	// Bytes says that X is of U8, and multiplied as it is. Panels of I8 are in quads; there are no scales and no blocks.
	Bytes bool
	// LDX and LDC are the distances of the rows of X and C, whose elements are side by side. With Trans X lies as [K, M], and LDX is
	// the distance of its columns. Such an X is of BF16.
	LDX, LDC int
	Trans    bool
	// Workspace, if not nil, is shared with other plans: X is packed there.
	Workspace *gemm.Workspace
}

// A Plan computes the products of one Config. Make it with New.
type Plan struct {
	cfg  Config
	pool *pool.Pool
	kern *kernel
	by   *integerKernel // of products of integers
	// The routines for the type, of numbers or of integers.
	tiles        []tile
	integerTiles []integerTile
	pairs        []pairTile
	half         halfTile
	integerHalf  integerHalfTile
	byteTiles    []byteTile
	unpack       unpacker            // of products of many rows, or nil
	micro        gemm.Micro[float32] // which they are computed with
	octets       int
	panels       int
	bytes        int // of a panel
	group        int // panels of an item
	blocks       int // of weights with a scale
	piece        int // octets that a kernel multiplies before it adds to the sums

	packed  int       // elements of X, packed: blocks of rows, each [octets][rows][8]
	x       []float32 // in which it is packed
	bf16    []uint16  // the same in BF16
	rounded rounded   // the same as integers
	private []float32 // of each worker: sums, and the scales of a panel, or a row to be converted, and its offsets
	sums    []float32 // of X [M, blocks], where offsets of weights are added to the products
	axpy4   func(n int, alpha, x *float32, stride int, y *float32)
	run     run
}

// A run is the operands of a product that is computed.
type run struct {
	x, scale, c []float32
	offset      []float32
	bf16        []uint16 // X where it is of that type
	u8          []byte   // X where it is of that type
	halves      []uint16 // scales in panels, or nil
	q           []byte
	epilogue    Epilogue
}

// A kernel is the routines of an instruction set. Those of a type are for blocks of 1, 2, 4, … rows; halves are those for one row
// where scales are of binary16, of types that have them.
type kernel struct {
	name   string
	tiles  map[graph.DType][]tile
	halves map[graph.DType]halfTile
	// piece is the number of octets that stay in the cache, where a tile reads them several times; 0 where it does not.
	piece int
	// unpack is for products of many rows, where few fit the registers, or with offsetsOnly for those whose weights have offsets,
	// which cost next to nothing there.
	unpack      map[graph.DType]unpacker
	offsetsOnly bool
	integers    *integerKernel // that of products of integers; nil for the portable one
	pairs       []pairTile     // of products of BF16 and BF16; nil where X is converted to float32
	// transpose is for operands of 16 bits that lie the other way round.
	transpose transposer
}

// A tile adds the product of a block of rows and a panel to y; see the generated functions.
type tile = func(octets, block int, x *float32, q *byte, scale *float32, lds int, y *float32)

// An unpacker unpacks some octets that share scales; see the generated functions.
type unpacker = func(octets int, q *byte, scale, offset *float32, y *float32, row, half int)

// A pairTile is a tile of products of BF16 and BF16, which sets y; see the generated functions.
type pairTile = func(octets int, x *uint16, q *byte, y *float32)

// A halfTile is a tile with scales of binary16.
type halfTile = func(octets, block int, x *float32, q *byte, scale *uint16, lds int, y *float32)

// Pairs reports, as an error that carries the reason, that this processor is not faster with X of BF16.
func Pairs() error {
	if kernels[0].pairs == nil {
		return errors.New("this processor has no instructions for products of bf16")
	}
	return nil
}

// kernels are those that this processor can run, the preferred one first.
var kernels = append(native(), &portable)

// Kernel returns the name of the instruction set in use.
func Kernel() string { return kernels[0].name }

// New makes a plan that runs on the workers of p.
func New(cfg Config, p *pool.Pool) (*Plan, error) { return newPlan(cfg, p, kernels[0]) }

func newPlan(cfg Config, p *pool.Pool, kern *kernel) (*Plan, error) {
	switch {
	case p == nil:
		return nil, errors.New("panel: no pool")
	case cfg.M < 0 || cfg.N < 0 || cfg.K < 0 || cfg.Block < 0 || cfg.Block%steps != 0:
		return nil, fmt.Errorf("panel: a product %d×%d×%d with blocks of %d", cfg.M, cfg.N, cfg.K, cfg.Block)
	case kern.tiles[cfg.Type] == nil || cfg.Integers && portableIntegers.tiles[cfg.Type] == nil:
		return nil, fmt.Errorf("panel: weights of %v", cfg.Type)
	case cfg.BF16 && (cfg.Type != graph.BF16 || cfg.Scaled || cfg.Integers):
		return nil, fmt.Errorf("panel: rows of bf16 times weights of %v, or with scales", cfg.Type)
	case cfg.Offset && (cfg.Integers || cfg.BF16 || cfg.Bytes):
		return nil, errors.New("panel: offsets of weights, and X is rounded or not of f32")
	case cfg.Bytes && (cfg.Type != graph.I8 || cfg.Scaled || cfg.Integers || cfg.Block != 0):
		return nil, fmt.Errorf("panel: rows of u8 times weights of %v, or with scales", cfg.Type)
	case (cfg.Integers || cfg.Bytes) && cfg.K > graph.MaxIntegerRows && (cfg.Block == 0 || cfg.Block > graph.MaxIntegerRows):
		return nil, fmt.Errorf("panel: sums of more than %d integers", graph.MaxIntegerRows)
	case cfg.Trans && !cfg.BF16:
		return nil, errors.New("panel: X lies as [K, M], and is not of bf16")
	case cfg.M > 1 && (!cfg.Trans && cfg.LDX < cfg.K || cfg.LDC < cfg.N), cfg.Trans && cfg.K > 1 && cfg.LDX < cfg.M:
		return nil, fmt.Errorf("panel: rows of X %d and of C %d apart", cfg.LDX, cfg.LDC)
	}
	if cfg.K == 0 { // there may be no blocks, and so no scales
		cfg.Scaled, cfg.Offset = false, false
	}
	l := &Plan{cfg: cfg, pool: p, kern: kern, by: cmp.Or(kern.integers, &portableIntegers)}
	switch {
	case cfg.Bytes && kern.integers != nil && kern.integers.bytes != nil:
		l.byteTiles = kern.integers.bytes
	case cfg.Bytes:
		l.byteTiles = portableIntegers.bytes
	case cfg.Integers:
		l.integerTiles, l.integerHalf = l.by.tiles[cfg.Type], l.by.halves[cfg.Type]
	case cfg.BF16 && kern.pairs != nil:
		l.pairs = kern.pairs
	default:
		l.tiles, l.half = kern.tiles[cfg.Type], kern.halves[cfg.Type]
		if m := gemm.MicroOf[float32]().Fit(min(cfg.M, most)); cfg.M >= manyRows && !cfg.BF16 &&
			(cfg.Offset || !kern.offsetsOnly) && (m.NR == columns || m.NR == columns/2) {
			l.unpack, l.micro = kern.unpack[cfg.Type], m
		}
	}
	l.octets = (cfg.K + steps - 1) / steps
	l.panels = (cfg.N + columns - 1) / columns
	l.bytes = int(cfg.Type.Span(int64(l.octets * steps * columns)))
	l.group = max(1, min(widest, l.panels*((cfg.M+most-1)/most)/items))
	if cfg.M <= fewRows {
		l.group = max(1, l.panels/(shares*p.Workers()))
	}
	if cfg.Block == 0 {
		l.cfg.Block = max(l.octets, 1) * steps
	}
	l.blocks = max((cfg.K+l.cfg.Block-1)/l.cfg.Block, 1)
	if l.piece = l.cfg.Block / steps; kern.piece > 0 && l.blocks == 1 {
		l.piece = min(l.piece, kern.piece)
	}
	switch {
	case cfg.Integers:
		l.rounded = rounded{make([]byte, l.octets*steps*cfg.M), make([]float32, 2*l.blocks*cfg.M)}
	case l.inPlace():
	case cfg.Bytes:
		l.rounded.x = make([]byte, l.octets*steps*cfg.M)
	case l.unpack != nil:
		l.packed = tiling.CeilDiv(cfg.M, most) * l.packedItem()
	default:
		l.packed = l.octets * steps * cfg.M
	}
	switch {
	case cfg.Workspace != nil && l.pairs != nil:
		gemm.Reserve[float32](cfg.Workspace, (l.packed+1)/2)
	case cfg.Workspace != nil:
		gemm.Reserve[float32](cfg.Workspace, l.packed)
	case l.pairs != nil:
		l.bf16 = make([]uint16, l.packed)
	default:
		l.x = make([]float32, l.packed)
	}
	if cfg.Offset && l.unpack == nil {
		l.sums, l.axpy4 = make([]float32, cfg.M*l.blocks), gemm.MicroOf[float32]().Axpy4
	}
	l.private = make([]float32, p.Workers()*l.each())
	return l, nil
}

// inPlace reports whether rows are read where they lie: one of numbers, or any of bytes.
func (p *Plan) inPlace() bool {
	return (p.cfg.M == 1 || p.cfg.Bytes) && p.cfg.K%steps == 0 && !p.cfg.Trans && !p.cfg.Integers && p.cfg.BF16 == (p.pairs != nil)
}

// each is the private memory of a worker.
func (p *Plan) each() int {
	n := 8*columns + p.edge()
	if p.cfg.Offset {
		n += p.blocks * columns
	}
	if p.unpack != nil {
		n += p.unpacked()
	}
	return n
}

// edge is the room for the scales of a panel, or for a row to be converted.
func (p *Plan) edge() int { return max((p.blocks+steps-1)/steps*steps*columns, p.octets*steps) }

// Bytes is the memory that the plan has.
func (p *Plan) Bytes() int64 {
	return 4*int64(len(p.x)+len(p.private)+len(p.sums)+len(p.rounded.scales)) + 2*int64(len(p.bf16)) + int64(len(p.rounded.x))
}

// TileRows is the number of rows of the tiles that an Epilogue is given: all start at a multiple of it.
func (p *Plan) TileRows() int { return most }

// Run computes the product, and calls the epilogue, if it is not nil, for every tile of C. The scales are [⌈K/Block⌉, N]; they
// are nil if there are none. C must not overlap X.
func (p *Plan) Run(x []float32, q []byte, scale, c []float32, epilogue Epilogue) error {
	if p.cfg.Scaled && len(scale) < p.blocks*p.cfg.N {
		return p.short()
	}
	if !p.cfg.Scaled {
		scale = nil
	}
	p.run.scale = scale
	return p.multiply(x, nil, q, c, epilogue)
}

// Offsets are those of the next run of a plan that adds them to the weights, [⌈K/Block⌉, N].
func (p *Plan) Offsets(offset []float32) { p.run.offset = offset }

// RunBF16 is [Plan.Run] of a plan for X of BF16, without scales.
func (p *Plan) RunBF16(x []uint16, q []byte, c []float32, epilogue Epilogue) error {
	return p.multiply(nil, x, q, c, epilogue)
}

// RunBytes is [Plan.Run] of rows of U8.
func (p *Plan) RunBytes(x, q []byte, c []float32, epilogue Epilogue) error {
	p.run.u8 = x
	return p.multiply(nil, nil, q, c, epilogue)
}

// RunHalves is [Plan.Run] with scales of binary16 in panels of their own, as [graph.PackWeights] makes them of [⌈K/Block⌉, N].
func (p *Plan) RunHalves(x []float32, q []byte, scale []uint16, c []float32, epilogue Epilogue) error {
	if p.cfg.K > 0 {
		if !p.cfg.Scaled || len(scale) < p.panels*p.halves() {
			return p.short()
		}
		p.run.halves = scale
	}
	return p.multiply(x, nil, q, c, epilogue)
}

// halves is the number of scales of a panel, with what fills them up.
func (p *Plan) halves() int { return (p.blocks + steps - 1) / steps * steps * columns }

func (p *Plan) short() error {
	return fmt.Errorf("panel: operands too short for %d×%d×%d", p.cfg.M, p.cfg.N, p.cfg.K)
}

func (p *Plan) multiply(x []float32, bf16 []uint16, q []byte, c []float32, epilogue Epilogue) error {
	cfg, r := &p.cfg, &p.run
	defer func() { *r = run{} }()
	if cfg.M == 0 || cfg.N == 0 {
		return nil
	}
	elems := len(x)
	switch {
	case cfg.BF16:
		elems = len(bf16)
	case cfg.Bytes:
		elems = len(r.u8)
	}
	lines, length := cfg.M, cfg.K // of X
	if cfg.Trans {
		lines, length = length, lines
	}
	if cfg.Offset && len(r.offset) < p.blocks*cfg.N {
		return p.short()
	}
	if lines > 0 && elems < (lines-1)*cfg.LDX+length || len(q) < p.panels*p.bytes || len(c) < (cfg.M-1)*cfg.LDC+cfg.N {
		return p.short()
	}
	if cfg.Workspace != nil && p.packed > 0 {
		room := gemm.Acquire[float32](cfg.Workspace)
		defer p.release()
		if p.pairs != nil {
			p.bf16 = unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(room))), p.packed)
		} else {
			p.x = room[:p.packed]
		}
	}
	r.x, r.bf16, r.q, r.c, r.epilogue = x, bf16, q, c, epilogue
	switch {
	case !p.inPlace():
		p.pool.Run((cfg.M+most-1)/most, (*packTask)(p))
		r.x, r.bf16 = p.x, p.bf16
	case p.sums != nil:
		p.sumRows(0, cfg.M)
	}
	p.pool.Run((cfg.M+most-1)/most*((p.panels+p.group-1)/p.group), (*tileTask)(p))
	return nil
}

// release ends the use of the workspace.
func (p *Plan) release() {
	p.x, p.bf16 = nil, nil
	p.cfg.Workspace.Release()
}

// height is the number of rows of the next block, of so many that are left, and the number of its kernel.
func (p *Plan) height(left int) (rows, number int) {
	number = max(len(p.tiles), len(p.integerTiles), len(p.pairs), len(p.byteTiles)) - 1
	for 1<<number > left {
		number--
	}
	return 1 << number, number
}

// packTask packs the rows of an item.
type packTask Plan

func (t *packTask) Do(worker, item int) {
	p := (*Plan)(t)
	end := min((item+1)*most, p.cfg.M)
	if p.octets == 0 {
		return
	}
	if p.sums != nil {
		p.sumRows(item*most, end)
	}
	for row := item * most; row < end; {
		rows, _ := p.height(end - row)
		switch {
		case p.unpack != nil:
			p.packMany(row, end)
			return
		case p.cfg.Bytes:
			p.padBytes(row, rows)
			row += rows
			continue
		case p.cfg.Integers:
			p.round(worker, row, rows)
			row += rows
			continue
		case p.cfg.Trans:
			p.turn(row, rows)
			row += rows
			continue
		}
		for r := range rows {
			at, first := (row+r)*p.cfg.LDX, row*p.octets*steps+r*steps
			switch {
			case p.pairs != nil:
				putOctets(p.bf16[first:], p.run.bf16[at:][:p.cfg.K], rows)
			case p.cfg.BF16:
				wide := p.private[worker*p.each():][8*columns:][:p.cfg.K]
				vec.FromHalf(wide, p.run.bf16[at:][:p.cfg.K], graph.BF16)
				putOctets(p.x[first:], wide, rows)
			default:
				putOctets(p.x[first:], p.run.x[at:][:p.cfg.K], rows)
			}
		}
		row += rows
	}
}

// sumRows sums the blocks of some rows.
func (p *Plan) sumRows(row, end int) {
	sum := vec.F32().Reduce(vec.SumOf)
	for ; row < end; row++ {
		x := p.run.x[row*p.cfg.LDX:][:p.cfg.K]
		for b := range p.blocks {
			p.sums[row*p.blocks+b] = sum(x[min(b*p.cfg.Block, len(x)):min((b+1)*p.cfg.Block, len(x))])
		}
	}
}

// addOffsets adds to a row of y what the offsets of a panel's columns bring, of blocks ldo elements apart.
func (p *Plan) addOffsets(y []float32, row int, offset []float32, ldo int) {
	sums, b := p.sums[row*p.blocks:][:p.blocks], 0
	for ; b+4 <= p.blocks; b += 4 {
		p.axpy4(columns, &sums[b], &offset[b*ldo], ldo, &y[0])
	}
	for ; b < p.blocks; b++ {
		vec.F32().Axpy(y[:columns], offset[b*ldo:][:columns], sums[b])
	}
}

// putOctets copies a row to octets, those of a block of rows, and fills the last one up with zeros.
func putOctets[E any](to, from []E, rows int) {
	for o := 0; o < len(from); o += steps {
		octet := to[o*rows:][:steps]
		clear(octet[copy(octet, from[o:]):])
	}
}

// turn packs a block of rows of an X that lies as [K, M].
func (p *Plan) turn(row, rows int) {
	first, octets, k := row*p.octets*steps, 0, p.cfg.K
	if p.pairs != nil && rows == steps && k >= steps {
		octets = k / steps
		p.kern.transpose(octets, &p.run.bf16[row], 2*p.cfg.LDX, 2*steps*p.cfg.LDX, &p.bf16[first], 2*steps, 2*steps*steps)
	}
	for i := octets * steps; i < p.octets*steps; i++ {
		for r := range rows {
			at, v := first+(i/steps*rows+r)*steps+i%steps, uint16(0)
			if i < k {
				v = p.run.bf16[i*p.cfg.LDX+row+r]
			}
			if p.pairs != nil {
				p.bf16[at] = v
			} else {
				p.x[at] = math.Float32frombits(uint32(v) << 16)
			}
		}
	}
}

// tileTask computes a tile of C: the rows of an item, and some panels.
type tileTask Plan

func (t *tileTask) Do(worker, item int) {
	p := (*Plan)(t)
	groups := (p.panels + p.group - 1) / p.group
	first, row := item%groups*p.group, item/groups*most
	last, end := min(first+p.group, p.panels), min(row+most, p.cfg.M)
	mem := p.private[worker*p.each():][:p.each()]
	for panel := first; panel < last; panel++ {
		p.panel(mem, panel, row, end)
	}
	if p.run.epilogue != nil {
		p.run.epilogue.Tile(worker, 0, row, first*columns, end-row, min(last*columns, p.cfg.N)-first*columns)
	}
}

// ones are the scales of weights without.
var ones = func() (list [columns]float32) {
	for i := range list {
		list[i] = 1
	}
	return
}()

// zeros are the offsets of weights without.
var zeros [columns]float32

// columnsFrom is the part for a panel, from column col on, of numbers [blocks, N], and how far apart the blocks are. Kernels read
// as many numbers as a panel has columns, so those of the last one are copied to room.
func (p *Plan) columnsFrom(col int, of, room []float32) ([]float32, int) {
	if col+columns <= p.cfg.N {
		return of[col:], p.cfg.N
	}
	for b := range p.blocks {
		copy(room[b*columns:][:columns], of[b*p.cfg.N+col:][:p.cfg.N-col])
	}
	return room, columns
}

// panel computes some rows of the columns of a panel.
func (p *Plan) panel(mem []float32, panel, row, end int) {
	col := panel * columns
	cols := min(columns, p.cfg.N-col)
	y, edge := mem[:8*columns], mem[8*columns:]
	if p.cfg.Bytes {
		p.bytePanel(y, panel, row, end)
		return
	}
	scale, lds := ones[:], 0
	var half *uint16 // the same in binary16
	switch {
	case p.run.halves != nil && end-row == 1 && p.unpack == nil && (p.half != nil || p.integerHalf != nil):
		half, lds = &p.run.halves[panel*p.halves()], columns
	case p.run.halves != nil:
		vec.FromHalf(edge[:p.blocks*columns], p.run.halves[panel*p.halves():][:p.blocks*columns], graph.F16)
		scale, lds = edge, columns
	case p.run.scale != nil:
		scale, lds = p.columnsFrom(col, p.run.scale, edge)
	}
	if p.blocks == 1 {
		lds = 0 // all pieces have the same
	}
	offset, ldo := zeros[:], 0
	if p.cfg.Offset {
		offset, ldo = p.columnsFrom(col, p.run.offset, edge[p.edge():])
	}
	if p.unpack != nil {
		p.many(mem[p.each()-p.unpacked():], panel, row, end, &scale[0], lds, &offset[0], ldo)
		return
	}
	for row < end {
		rows, number := p.height(end - row)
		clear(y[:rows*columns])
		switch {
		case p.octets == 0:
		case p.pairs != nil:
			p.pairs[number](p.octets, &p.run.bf16[row*p.octets*steps], &p.run.q[panel*p.bytes], &y[0])
		case p.cfg.Integers && half != nil:
			p.integerHalf(p.octets, p.cfg.Block/steps, &p.rounded.x[row*p.octets*steps], &p.rounded.scales[2*row*p.blocks],
				&p.run.q[panel*p.bytes], half, lds, &y[0])
		case p.cfg.Integers:
			p.integerTiles[number](p.octets, p.cfg.Block/steps, &p.rounded.x[row*p.octets*steps],
				&p.rounded.scales[2*row*p.blocks], &p.run.q[panel*p.bytes], &scale[0], lds, &y[0])
		case half != nil:
			p.half(p.octets, p.piece, &p.run.x[row*p.octets*steps], &p.run.q[panel*p.bytes], half, lds, &y[0])
		default:
			p.tiles[number](p.octets, p.piece, &p.run.x[row*p.octets*steps], &p.run.q[panel*p.bytes], &scale[0], lds, &y[0])
		}
		for r := range rows {
			if p.sums != nil {
				p.addOffsets(y[r*columns:], row+r, offset, ldo)
			}
			copy(p.run.c[(row+r)*p.cfg.LDC+col:][:cols], y[r*columns:])
		}
		row += rows
	}
}

// bytePanel computes some rows of bytes of the columns of a panel. Whole panels are stored in C; y has room for 8 rows of another.
func (p *Plan) bytePanel(y []float32, panel, row, end int) {
	x, ldx := p.run.u8, p.cfg.LDX
	if !p.inPlace() {
		x, ldx = p.rounded.x, p.octets*steps
	}
	col := panel * columns
	cols := min(columns, p.cfg.N-col)
	for row < end {
		rows, number := p.height(end - row)
		c := p.run.c[row*p.cfg.LDC+col:]
		to, ldy := c, p.cfg.LDC
		if cols < columns {
			to, ldy = y, columns
		}
		if p.octets == 0 {
			clear(y)
			to = y
		} else {
			p.byteTiles[number](p.octets, &x[row*ldx], ldx, &p.run.q[panel*p.bytes], &to[0], 4*ldy)
		}
		for r := range rows {
			if &to[0] == &y[0] {
				copy(c[r*p.cfg.LDC:][:cols], y[r*columns:])
			}
		}
		row += rows
	}
}

// portable computes one row at a time.
var portable = kernel{name: "portable", transpose: transposeOctets, tiles: map[graph.DType][]tile{
	graph.I4: {portableTile(func(q []byte, i, j int) float32 { return float32(graph.Nibble(q, j*steps+i)) }, columns*steps/2)},
	graph.I8: {portableTile(func(q []byte, i, j int) float32 { return float32(int8(q[i*columns+j])) }, columns*steps)},
	graph.BF16: {portableTile(func(q []byte, i, j int) float32 {
		return graph.BF16ToFloat32(*(*uint16)(unsafe.Pointer(&q[2*(i*columns+j)])))
	}, 2*columns*steps)},
	graph.F16: {portableTile(func(q []byte, i, j int) float32 {
		return graph.F16ToFloat32(*(*uint16)(unsafe.Pointer(&q[2*(i*columns+j)])))
	}, 2*columns*steps)},
}}

// portableTile is a tile of one row, given row i of column j of an octet of so many bytes.
func portableTile(weight func(q []byte, i, j int) float32, bytes int) tile {
	return func(octets, block int, x *float32, q *byte, scale *float32, lds int, y *float32) {
		xs, qs, ys := unsafe.Slice(x, octets*steps), unsafe.Slice(q, octets*bytes), unsafe.Slice(y, columns)
		for b := 0; b*block < octets; b++ {
			s := unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(scale), 4*b*lds)), columns)
			var sums [columns]float32
			for o := b * block; o < min((b+1)*block, octets); o++ {
				octet := qs[o*bytes:][:bytes]
				for i, v := range xs[o*steps:][:steps] {
					for j := range sums {
						sums[j] += v * weight(octet, i, j)
					}
				}
			}
			for j, v := range sums {
				ys[j] += v * s[j]
			}
		}
	}
}
