package fpga

import (
	"fmt"
	"math"

	"fusec/fpga/isa"
)

// rows is a matrix in external memory: where its first row begins, and how far the next one is.
type rows struct {
	addr, step int64
	n, cols    int
	patches    *patches // or nil: then the rows are made of an image
}

// in is the location of a matrix of a value in external memory.
func (a *assembler) in(m matrix) rows {
	start, step, err := m.place(a.cfg.WordBytes)
	if err != nil && a.err == nil {
		a.err = err
	}
	return rows{addr: m.v.addr[m.image] + start, step: step, n: m.rows, cols: m.cols}
}

// words is how many words a row of n bytes takes.
func (a *assembler) words(n int) int { return ceil(n, a.cfg.WordBytes) }

// load brings rows from to from+n of a matrix, words of each from the first-th on, to a scratchpad.
func (a *assembler) load(s isa.Space, r rows, from, n, first, words, base, panel int) {
	if r.patches != nil {
		a.patches(r.patches, from, n, first, words, base, panel)
		return
	}
	step := r.step
	if n == 1 {
		step = 0
	}
	a.emit(&isa.Load{Space: s, Addr: uint32(r.addr + int64(from)*r.step + int64(first*a.cfg.WordBytes)),
		Stride: uint32(step), Rows: uint16(n), Words: uint16(words), Base: uint16(base), Panel: uint16(panel)})
}

// store writes a block of results in Y.
func (a *assembler) store(r rows, from, n, first, words, base, panel int) {
	step := r.step
	if n == 1 {
		step = 0
	}
	a.emit(&isa.Store{Space: isa.SpaceY, Addr: uint32(r.addr + int64(from)*r.step + int64(first*a.cfg.WordBytes)),
		Stride: uint32(step), Rows: uint16(n), Words: uint16(words), Base: uint16(base), Panel: uint16(panel)})
}

// records loads n records of a blob, from the first-th on, to parameter memory and returns their position.
func (a *assembler) records(b *blob, first, n int) int {
	n = up(n, max(1, a.cfg.WordBytes/isa.RecordBytes))
	at := a.take(isa.SpaceParams, n)
	a.emit(&isa.Load{Space: isa.SpaceParams, Addr: uint32(b.addr + int64(first*isa.RecordBytes)), Rows: 1,
		Words: uint16(n * isa.RecordBytes / a.cfg.WordBytes), Base: uint16(at)})
	return at
}

// table brings a table and returns the number that selects it, 0 if there is none.
func (a *assembler) table(b *blob) uint8 {
	if b == nil {
		return 0
	}
	at := a.take(isa.SpaceTables, 1)
	a.emit(&isa.Load{Space: isa.SpaceTables, Addr: uint32(b.addr), Rows: 1, Words: uint16(256 / a.cfg.WordBytes),
		Base: uint16(at)})
	return uint8(at + 1)
}

// out is the processing of each result by EXEC for a task.
func (a *assembler) out(t *task) isa.Out {
	return isa.Out{ReLU: t.act.f != nil && t.act.relu, Wide: t.out.v.wide, Zero: t.codes.zero, ResMul: t.codes.resMul,
		Residual: t.res != nil, Table: a.table(t.codes.table)}
}

// blocking says how a product is cut: into blocks of panels of X and of tiles of W, which one descriptor computes
// with each other, the blocks of X outside or those of W.
type blocking struct {
	panels, tiles int
	wOutside      bool
}

// shape determines the tiling of a product.
type shape struct {
	panels, tiles, words int // of X, of W, and of a row of either
	bytes                int // of a result
	residual             bool
	records              bool // as many records as tiles have columns, else as panels have rows
}

// cost is about how many cycles a product takes that is cut in a way: loads and products overlap, but for the first
// block; it also says whether the scratchpads hold that.
func (a *assembler) cost(s shape, b blocking) (cycles float64, fits bool) {
	c := a.cfg
	y := b.panels * b.tiles * c.Cols * s.bytes / c.WordBytes
	if s.residual {
		y += b.panels * b.tiles * c.Cols / c.WordBytes
	}
	records := b.tiles * c.Cols
	if !s.records {
		records = b.panels * c.Rows
	}
	if 2*b.panels*s.words > c.XWords || 2*b.tiles*s.words > c.WWords || 2*y > c.YWords || 2*records > c.Params ||
		b.panels > 255 || b.tiles > 255 {
		return 0, false
	}
	xBlocks, wBlocks := ceil(s.panels, b.panels), ceil(s.tiles, b.tiles)
	x, w := float64(s.panels*c.Rows*s.words), float64(s.tiles*c.Cols*s.words) // beats, read once
	reads := x + w
	if b.wOutside {
		if xBlocks > 1 && wBlocks > 1 && !a.resident(isa.SpaceX, s, b) {
			reads += x * float64(wBlocks-1)
		}
	} else if xBlocks > 1 && wBlocks > 1 && !a.resident(isa.SpaceW, s, b) {
		reads += w * float64(xBlocks-1)
	}
	reads += float64(xBlocks*wBlocks) * 12 // the cost of a descriptor for LOAD
	if s.residual {
		reads += float64(s.panels * s.tiles * c.Rows * c.Cols / c.WordBytes)
	}
	writes := float64(s.panels * s.tiles * c.Rows * c.Cols * s.bytes / c.WordBytes)
	tile := math.Max(float64(s.words*c.WordBytes), float64(2*c.Cols))
	products := float64(s.panels*s.tiles)*tile + float64(xBlocks*wBlocks)*descriptorCycles
	first := float64((b.panels*c.Rows + b.tiles*c.Cols) * s.words)
	last := float64(b.panels * b.tiles * c.Rows * c.Cols * s.bytes / c.WordBytes)
	return math.Max(products, math.Max(reads, writes)) + first/4 + last/4, true
}

// resident reports whether all blocks of an operand stay in its scratchpad, so that they are read once.
func (a *assembler) resident(s isa.Space, g shape, b blocking) bool {
	n, block := g.tiles, b.tiles
	if s == isa.SpaceX {
		n, block = g.panels, b.panels
	}
	return ceil(n, block)*block*g.words <= a.size(s)*3/4
}

// cut chooses how a product is cut.
func (a *assembler) cut(s shape) (blocking, error) {
	best, least := blocking{}, math.Inf(1)
	for _, wOutside := range []bool{false, true} {
		for panels := 1; panels < 2*s.panels; panels *= 2 {
			for tiles := 1; tiles < 2*s.tiles; tiles *= 2 {
				b := blocking{min(panels, s.panels), min(tiles, s.tiles), wOutside}
				if c, fits := a.cost(s, b); fits && c < least {
					best, least = b, c
				}
			}
		}
	}
	if best.panels == 0 {
		return best, fmt.Errorf("a product over %d words: the scratchpads do not hold two panels of it", s.words)
	}
	return best, nil
}

// block is a part of an operand in a scratchpad.
type block struct {
	base, from, n int // its first word; its first panel or tile, and how many
}

// product is a product in external memory: result row i, column j is finished of x's row i and w's row j.
type product struct {
	x, w, to rows
	residual *rows
	records  *blob
	out      isa.Out
	byRow    bool // a record for each row of x
}

// product computes a product, block by block.
func (a *assembler) product(p product) {
	c := a.cfg
	s := shape{panels: ceil(p.x.n, c.Rows), tiles: ceil(p.w.n, c.Cols), words: a.words(p.x.cols), bytes: 1,
		residual: p.residual != nil, records: !p.byRow}
	if p.out.Wide {
		s.bytes = 2
	}
	if 2*s.words > min(c.XWords, c.WWords) {
		a.longProduct(p, s)
		return
	}
	b, err := a.cut(s)
	if err != nil {
		if a.err == nil {
			a.err = err
		}
		return
	}
	fill := func(space isa.Space, r rows, base, from, n int) block {
		lanes := a.cfg.Lanes(space)
		at := block{base, from, n}
		if base < 0 {
			at.base = a.take(space, n*s.words)
		}
		a.load(space, r, from*lanes, min(n*lanes, r.n-from*lanes), 0, s.words, at.base, s.words)
		return at
	}
	// The outer operand's blocks come one after the other; the inner one's are brought again for each, or stay.
	outer, inner := isa.SpaceX, isa.SpaceW
	outerRows, innerRows, outerN, innerN, outerBlock, innerBlock := p.x, p.w, s.panels, s.tiles, b.panels, b.tiles
	if b.wOutside {
		outer, inner = inner, outer
		outerRows, innerRows, outerN, innerN, outerBlock, innerBlock = p.w, p.x, s.tiles, s.panels, b.tiles, b.panels
	}
	stays := ceil(innerN, innerBlock) == 1 || a.resident(inner, s, b)
	base := -1 // of the inner operand, if it stays
	if stays {
		base = a.take(inner, innerN*s.words)
	}
	var kept []block
	records := map[int]int{} // positions of a block's records, by its first panel or tile
	for o := 0; o < outerN; o += outerBlock {
		ob := fill(outer, outerRows, -1, o, min(outerBlock, outerN-o))
		for i := 0; i < innerN; i += innerBlock {
			var ib block
			if k := i / innerBlock; k < len(kept) {
				ib = kept[k]
			} else {
				at := -1
				if stays {
					at = base + i*s.words
				}
				ib = fill(inner, innerRows, at, i, min(innerBlock, innerN-i))
				if stays {
					kept = append(kept, ib)
				}
			}
			x, w := ob, ib
			if b.wOutside {
				x, w = ib, ob
			}
			a.productBlock(p, s, x, w, records)
		}
	}
}

// longProduct computes a product whose rows the scratchpads do not hold twice: tile by tile, each from parts of the
// rows that are brought one after the other while the array keeps the sums.
func (a *assembler) longProduct(p product, s shape) {
	c := a.cfg
	words := min(c.XWords, c.WWords) / 4
	records := map[int]int{}
	for panel := range s.panels {
		for tile := range s.tiles {
			for at := 0; at < s.words; at += words {
				n := min(words, s.words-at)
				x := block{a.take(isa.SpaceX, n), panel, 1}
				a.load(isa.SpaceX, p.x, panel*c.Rows, min(c.Rows, p.x.n-panel*c.Rows), at, n, x.base, n)
				w := block{a.take(isa.SpaceW, n), tile, 1}
				a.load(isa.SpaceW, p.w, tile*c.Cols, min(c.Cols, p.w.n-tile*c.Cols), at, n, w.base, n)
				g := isa.Gemm{X: uint16(x.base), XPanel: uint16(n), W: uint16(w.base), WPanel: uint16(n), Words: uint16(n),
					Panels: 1, Tiles: 1, More: at > 0, Hold: at+n < s.words}
				if g.Hold {
					a.emit(&g)
				} else {
					a.finishBlock(p, s, x, w, records, g)
				}
			}
		}
	}
}

// productBlock multiplies a block of X with one of W.
func (a *assembler) productBlock(p product, s shape, x, w block, records map[int]int) {
	a.finishBlock(p, s, x, w, records, isa.Gemm{X: uint16(x.base), XPanel: uint16(s.words), W: uint16(w.base),
		WPanel: uint16(s.words), Words: uint16(s.words), Panels: uint8(x.n), Tiles: uint8(w.n)})
}

// finishBlock emits the product of a block of X with one of W, with the loads of its records and residuals before and
// the store of its results after. Records has the positions of records that are already loaded, by the block's first
// panel or tile.
func (a *assembler) finishBlock(p product, s shape, x, w block, records map[int]int, g isa.Gemm) {
	c := a.cfg
	n, first, lanes := w.n, w.from, c.Cols
	if p.byRow {
		n, first, lanes = x.n, x.from, c.Rows
	}
	all := p.records.count() <= c.Params/2
	key := first
	if all {
		key = 0
	}
	at, ok := records[key]
	switch {
	case ok:
	case all:
		at = a.records(p.records, 0, p.records.count())
		records[key] = at
	default:
		at = a.records(p.records, first*lanes, n*lanes) // others may overwrite it before it is needed again
	}
	if all {
		at += first * lanes
	}
	out := p.out
	width := c.Cols * s.bytes / c.WordBytes // words of a tile's row of results
	row, cols := x.from*c.Rows, w.from*c.Cols
	rowsN, wordsN := min(x.n*c.Rows, p.x.n-row), a.words(min(w.n*c.Cols, p.w.n-cols)*s.bytes)
	if p.residual != nil {
		words := a.words(min(w.n*c.Cols, p.w.n-cols))
		panel := w.n * c.Cols / c.WordBytes
		out.Res, out.ResPanel = uint16(a.take(isa.SpaceY, x.n*panel)), uint16(panel)
		a.load(isa.SpaceY, *p.residual, row, rowsN, cols/c.WordBytes, words, int(out.Res), panel)
	}
	out.Base, out.Panel = uint16(a.take(isa.SpaceY, x.n*w.n*width)), uint16(w.n*width)
	out.Param, out.RowParam = uint16(at), p.byRow
	g.Out = out
	a.emit(&g)
	a.store(p.to, row, rowsN, cols*s.bytes/c.WordBytes, wordsN, int(out.Base), int(out.Panel))
}

// gemm emits a product task.
func (a *assembler) gemm(t *task) {
	p := product{to: a.in(t.out), records: t.codes.records, out: a.out(t)}
	switch {
	case t.kind == taskTranspose:
		p.x = a.constant(t.codes.weights, t.x.cols, t.x.cols)
		p.w, p.byRow = a.in(t.x), true
	case t.weight == nil:
		p.x, p.w = a.in(t.x), a.in(t.w)
	case t.swapped:
		p.x, p.w, p.byRow = a.constant(t.codes.weights, t.weight.n, t.weight.k), a.in(t.x), true
	default:
		p.x, p.w = a.in(t.x), a.constant(t.codes.weights, t.weight.n, t.weight.k)
	}
	if t.res != nil {
		r := a.in(*t.res)
		p.residual = &r
	}
	a.product(p)
}

// constant is a matrix of weights in external memory.
func (a *assembler) constant(b *blob, n, k int) rows {
	return rows{addr: b.addr, step: int64(b.size / b.rows), n: n, cols: k}
}
