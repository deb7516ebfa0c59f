package gemm

import (
	"fmt"
	"unsafe"

	"fusec/kernels/cpu/tiling"
	"fusec/kernels/cpu/vec"
)

// A product by packed panels of B, whose rows of A have contiguous elements, reads A where it lies, by the kernels of Gather. B
// is prepacked, or packed in each run if it is small. Rows are not packed, and a tile is computed over the whole reduction,
// whose blocks are those of other products, so that the result has the same bits. What follows the sums may be applied while
// they are in registers. A tile is multiplied by a part of each of its panels that stays in the second-level cache, then by the
// next part.

const (
	// panelBytes bounds the part of a panel of B that the rows of a tile are multiplied by at one time.
	panelBytes = 128 << 10
	// inPlaceBlocks is the number of blocks of rows of a tile, aheadBlocks the least one if there are enough rows: from which on
	// Gather asks for all of the next panel.
	inPlaceBlocks, aheadBlocks = 8, gatherUnroll
	// inPlaceTiles is the number of tiles of a product, if it is large enough.
	inPlaceTiles = 24
	// nextBytes is the size of a panel from which on the next one is loaded ahead: one that the processor does not fetch by itself
	// while it begins.
	nextBytes = 8 << 10
)

// A MatrixFinish is what follows the sums of a matrix while they are in registers: y = min(max(Gate(sum + Shift + Residual), Low),
// High). Shift has a number for each column. Residual is a matrix whose rows are RowStride elements apart; it may be the result.
// What is nil is left out. A NaN stays a NaN.
//
// Where [Micro.StoresBytes], Bias is added to sums first, and they are multiplied by Scale. They go to Bytes if that is not nil, in
// rows that are Step apart; see [Finish].
type MatrixFinish[T Float] struct {
	Shift, Residual []T
	RowStride       int
	Low, High       T
	Gate            vec.Gate[T]
	Bias, Scale     []T
	Bytes           []byte
	Step            int
	Zero            int32
}

// Check reports, as an error, what is too short for a matrix of rows of out elements.
func (f *MatrixFinish[T]) Check(rows, out int) error {
	if f != nil && (f.Shift != nil && len(f.Shift) < out ||
		f.Residual != nil && (f.RowStride < 0 || len(f.Residual) < (rows-1)*f.RowStride+out)) {
		return fmt.Errorf("slices too short: the shift has %d elements, the residual %d, %d apart, of %d×%d",
			len(f.Shift), len(f.Residual), f.RowStride, rows, out)
	}
	if f != nil && (f.Bias != nil && len(f.Bias) < out || f.Scale != nil && len(f.Scale) < out ||
		f.Bytes != nil && (f.Step < 0 || len(f.Bytes) < (rows-1)*f.Step+out)) {
		return fmt.Errorf("slices too short: the bias has %d elements, the scale %d, and there are %d bytes, %d apart, of %d×%d",
			len(f.Bias), len(f.Scale), len(f.Bytes), f.Step, rows, out)
	}
	return nil
}

// At is what follows the sums from a row and column of the matrix on, in w, or nil if nothing does.
func (f *MatrixFinish[T]) At(w *Finish[T], row, col int) *Finish[T] {
	if f == nil {
		return nil
	}
	*w = Finish[T]{Stride: f.RowStride, Low: f.Low, High: f.High, Gate: f.Gate, Step: f.Step, Zero: f.Zero}
	f.move(w, row, col)
	return w
}

// move has what At gave begin at a row and column of the matrix.
func (f *MatrixFinish[T]) move(w *Finish[T], row, col int) {
	if f.Bias != nil {
		w.Bias = &f.Bias[col]
	}
	if f.Scale != nil {
		w.Scale = &f.Scale[col]
	}
	if f.Bytes != nil {
		w.Bytes = &f.Bytes[row*f.Step+col]
	}
	if f.Shift != nil {
		w.Shift = &f.Shift[col]
	}
	if f.Residual != nil {
		w.Residual = &f.Residual[row*f.RowStride+col]
	}
}

// An inPlace is what a plan needs that reads A in place.
type inPlace[T Float] struct {
	parts      []Pieces          // of a row, each of which a tile is multiplied by before the next
	rows, last []int             // where the rows of a block of A begin, and those of the last block of a matrix
	finish     []workerFinish[T] // of each worker
}

type workerFinish[T Float] struct {
	Finish[T]
	_ [lineBytes]byte
}

// ReadsInPlace reports whether a plan of cfg reads A in place. With frozen, B will be prepacked, else the plan packs it in each
// run.
func (cfg *Config[T]) ReadsInPlace(frozen bool) bool {
	kern := kernels[T]()[0]
	return cfg.readsInPlace(kern) && (frozen || cfg.packsInPlace(kern))
}

func (cfg *Config[T]) readsInPlace(kern *kernel[T]) bool {
	if cfg.PackA != nil || cfg.Batch == 0 || cfg.M == 0 || cfg.N == 0 || cfg.K == 0 || cfg.A.ColStride != 1 && cfg.K > 1 {
		return false
	}
	var t T // few rows take as long as reading B from memory, which a kernel for panels of A asks for earlier
	return cfg.M > fewRows || PackedLen(kern.nr, cfg.K, cfg.N)*int(unsafe.Sizeof(t)) <= aheadBytes
}

// packsInPlace reports whether B, for a product that reads A in place, is packed in each run: one that stays in a cache, for rows
// that take longer than packing.
func (cfg *Config[T]) packsInPlace(kern *kernel[T]) bool {
	size := int(unsafe.Sizeof(*new(T)))
	_, thin := cfg.thin()
	return !thin && cfg.PackB == nil && cfg.oneB() && cfg.M > fewRows && !cfg.local(reductionBlock(cfg.K), size) &&
		PackedLen(kern.nr, cfg.K, cfg.N)*size <= wholeBytes
}

// setInPlace makes a plan that reads A in place.
func (p *Plan[T]) setInPlace() {
	p.method, p.blocking = inPlaced, cutInPlace(&p.cfg, p.kern)
	cfg, k := &p.cfg, &p.at
	gather := &p.kern.gather[0]
	blocks := tiling.CeilDiv(cfg.K, p.kc)
	each := evenly(blocks, max(panelBytes/p.kern.nr/p.kc/int(unsafe.Sizeof(*new(T))), 1), 1)
	k.parts = make([]Pieces, tiling.CeilDiv(blocks, each))
	for i := range blocks {
		part, k0 := &k.parts[i/each], i*p.kc
		n := min(p.kc, cfg.K-k0)
		part.list = append(part.list, Piece{At: k0, Len: n})
		part.runs = append(part.runs, pieceRun{from: i % each, to: i%each + 1, before: k0, steps: n})
	}
	table := func(rows int) []int {
		list := make([]int, tiling.RoundUp(rows, gather.step))
		for i := range list {
			list[i] = min(i, rows-1) * cfg.A.RowStride
		}
		return list
	}
	k.rows, k.last = table(min(p.mc, cfg.M)), table(cfg.M-(p.rowBlocks-1)*p.mc)
	k.finish = make([]workerFinish[T], p.pool.Workers())
	if cfg.Prepacked == nil {
		p.scratch.sharedB = PackedLen(p.kern.nr, cfg.K, cfg.N)
	}
}

// cutInPlace chooses the blocking of cfg. Tiles are wide, as what follows the sums runs along their rows.
func cutInPlace[T Float](cfg *Config[T], kern *kernel[T]) blocking {
	kc := reductionBlock(cfg.K)
	step, nr := kern.gather[0].step, kern.nr
	height := len(kern.gather[0].tiles) * step
	b := blocking{kc: kc, nc: tiling.RoundUp(cfg.N, nr), commonB: cfg.oneB(), local: cfg.local(kc, int(unsafe.Sizeof(*new(T))))}
	if b.local {
		b.tileCols = b.nc
		b.setRows(cfg.M, cfg.M, step)
		return b
	}
	b.tileCols = evenly(cfg.N, tileColsMax, nr)
	b.setRows(cfg.M, inPlaceBlocks*height, step)
	tiles := func() int { return cfg.Batch * b.rowBlocks * tiling.CeilDiv(cfg.N, b.tileCols) }
	for tiles() < inPlaceTiles && b.mc/2 >= aheadBlocks*height {
		b.setRows(cfg.M, b.mc/2, step)
	}
	for tiles() < inPlaceTiles && b.tileCols > tiling.RoundUp(tileColsMin, nr) {
		b.tileCols = tiling.RoundUp(max(b.tileCols/2, tileColsMin), nr)
	}
	return b
}

// InPlace reports whether RunFinished can apply a finish.
func (p *Plan[T]) InPlace() bool { return p.method == inPlaced }

// RunFinished is Run with what follows the sums while they are in registers, which comes before the epilogue. Only a plan that is
// InPlace has a finish that is not nil.
func (p *Plan[T]) RunFinished(a, b, c []T, finish *MatrixFinish[T], epilogue Epilogue) error {
	if finish != nil {
		if !p.InPlace() {
			return fmt.Errorf("gemm: a product of %d×%d×%d finishes nothing in registers", p.cfg.M, p.cfg.N, p.cfg.K)
		}
		if err := finish.Check(p.cfg.Batch*p.cfg.M, p.cfg.N); err != nil {
			return fmt.Errorf("gemm: %w", err)
		}
	}
	p.finishing = finish
	defer func() { p.finishing = nil }()
	return p.Run(a, b, c, epilogue)
}

// runInPlace packs B, if that is not done, and computes.
func (p *Plan[T]) runInPlace() {
	if p.cfg.Prepacked == nil {
		p.pool.Run(tiling.CeilDiv(p.cfg.N, packPanels*p.kern.nr), (*packPanelsTask[T])(p))
	}
	p.pool.Run(p.cfg.Batch*p.rowBlocks*tiling.CeilDiv(p.cfg.N, p.tileCols), (*inPlaceTask[T])(p))
}

// packPanelsTask packs some panels of B as those of a Prepacked are.
type packPanelsTask[T Float] Plan[T]

func (t *packPanelsTask[T]) Do(worker, item int) {
	p := (*Plan[T])(t)
	step := packPanels * p.kern.nr
	col := item * step
	p.packB(worker, p.run.sharedB[col*p.cfg.K:], 0, col, min(step, p.cfg.N-col), 0, p.cfg.K)
}

// inPlaceTask computes a tile of C. Successive items share their rows of A.
type inPlaceTask[T Float] Plan[T]

func (t *inPlaceTask[T]) Do(worker, item int) {
	p := (*Plan[T])(t)
	cfg, nr := &p.cfg, p.kern.nr
	columns := tiling.CeilDiv(cfg.N, p.tileCols)
	block, from := item/columns, item%columns*p.tileCols
	to := min(from+p.tileCols, cfg.N)
	batch, row, rows := p.rowBlock(block)
	table := p.at.rows
	if row+rows == cfg.M {
		table = p.at.last
	}
	a := &p.run.a[cfg.A.at(batch)+row*cfg.A.RowStride]
	c := p.run.c[cfg.C.at(batch)+row*cfg.C.RowStride:]
	far := p.kc*nr*int(unsafe.Sizeof(*a)) >= nextBytes
	finishing, gather, stride, panels := p.finishing, &p.kern.gather[0], cfg.C.RowStride, p.panels(batch)
	for i := range p.at.parts {
		part, last := &p.at.parts[i], i == len(p.at.parts)-1
		before := part.runs[0].before * nr
		var then *Finish[T]
		if last {
			then = finishing.At(&p.at.finish[worker].Finish, batch*cfg.M+row, from)
		}
		for col := from; col < to; col += nr {
			if then != nil && col > from {
				finishing.move(then, batch*cfg.M+row, col)
			}
			var next *T
			switch {
			case !far:
			case col+nr < to:
				next = &panels[before+(col+nr)*cfg.K]
			case !last:
				next = &panels[p.at.parts[i+1].runs[0].before*nr+from*cfg.K]
			case to < cfg.N:
				next = &panels[to*cfg.K]
			}
			gather.gather(part, rows, table, a, &panels[col*cfg.K], next, &c[col], stride, min(nr, to-col), i > 0, then)
		}
	}
	p.finish(worker, batch, row, from, rows, to-from)
}

// panels are those of B, cfg.K·nr elements apart.
func (p *Plan[T]) panels(batch int) []T {
	if p.cfg.Prepacked == nil {
		return p.run.sharedB
	}
	return p.cfg.Prepacked.panels(batch, 0, 0)
}
