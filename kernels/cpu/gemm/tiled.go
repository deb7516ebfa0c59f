package gemm

import "fusec/kernels/cpu/tiling"

// A phase is one step of a tiled run: a block of B, times as many blocks of A
// as are packed at one time.
type phase struct {
	k0, kc     int
	col, cols  int // of the block of B
	first      int // row block, counted through the matrices of the batch
	blocks     int // number of row blocks
	packsB     bool
	itemsB     int // packing items for B, followed by one for each row block
	items      int // of all, where operands are packed whole
	accumulate bool
	last       bool // of the reduction
}

// runTiled iterates over the phases. All workers pack each phase, then all workers compute it.
func (p *Plan[T]) runTiled() {
	cfg, ph := &p.cfg, &p.run.phase
	total := cfg.Batch * p.rowBlocks
	for ph.col = 0; ph.col < cfg.N; ph.col += p.nc {
		ph.cols = min(p.nc, cfg.N-ph.col)
		columns := tiling.CeilDiv(ph.cols, p.tileCols)
		for ph.k0 = 0; ph.k0 < cfg.K; ph.k0 += p.kc {
			ph.kc = min(p.kc, cfg.K-ph.k0)
			ph.accumulate = ph.k0 > 0
			ph.last = ph.k0+ph.kc == cfg.K
			for ph.first = 0; ph.first < total; ph.first += ph.blocks {
				p.nextChunk(total)
				if items := p.packingItems(); items > 0 {
					p.pool.Run(items, (*packTask[T])(p))
				}
				p.pool.Run(ph.blocks*columns, (*tileTask[T])(p))
			}
		}
	}
}

// nextChunk sets how many row blocks the phase covers. It does not cross from
// one matrix to the next if their B differ.
func (p *Plan[T]) nextChunk(total int) {
	ph := &p.run.phase
	inMatrix := ph.first % p.rowBlocks
	if p.commonB {
		ph.blocks = min(p.chunk, total-ph.first)
		ph.packsB = ph.first == 0
	} else {
		ph.blocks = min(p.chunk, p.rowBlocks-inMatrix)
		ph.packsB = inMatrix == 0
	}
	ph.packsB = ph.packsB && p.cfg.Prepacked == nil
}

// packingItems counts the work items of the packing half of the phase.
func (p *Plan[T]) packingItems() int {
	ph := &p.run.phase
	ph.itemsB = 0
	if ph.packsB {
		ph.itemsB = tiling.CeilDiv(ph.cols, packPanels*p.kern.nr)
	}
	if p.privateA {
		return ph.itemsB
	}
	return ph.itemsB + ph.blocks
}

// rowBlock returns the position of row block number i.
func (p *Plan[T]) rowBlock(i int) (batch, row, rows int) {
	batch, row = i/p.rowBlocks, i%p.rowBlocks*p.mc
	return batch, row, min(p.mc, p.cfg.M-row)
}

// packTask packs some panels of B or a block of A.
type packTask[T Float] Plan[T]

func (t *packTask[T]) Do(worker, item int) {
	p := (*Plan[T])(t)
	ph := &p.run.phase
	if item < ph.itemsB {
		step := packPanels * p.kern.nr
		from := item * step
		cols := min(step, ph.cols-from)
		p.packB(worker, p.run.sharedB[from*ph.kc:], ph.first/p.rowBlocks, ph.col+from, cols, ph.k0, ph.kc)
		return
	}
	block := item - ph.itemsB
	batch, row, rows := p.rowBlock(ph.first + block)
	p.packA(worker, p.run.sharedA[block*p.mc*ph.kc:], batch, row, rows, ph.k0, ph.kc)
}

// tileTask computes a tile of C. Successive items share their block of A.
type tileTask[T Float] Plan[T]

func (t *tileTask[T]) Do(worker, item int) {
	p := (*Plan[T])(t)
	ph := &p.run.phase
	columns := tiling.CeilDiv(ph.cols, p.tileCols)
	block, from := item/columns, item%columns*p.tileCols
	cols := min(p.tileCols, ph.cols-from)
	batch, row, rows := p.rowBlock(ph.first + block)

	a, _, edge := p.private(worker)
	if p.privateA {
		p.packA(worker, a, batch, row, rows, ph.k0, ph.kc)
	} else {
		a = p.run.sharedA[block*p.mc*ph.kc:]
	}
	var b []T
	if pre := p.cfg.Prepacked; pre != nil {
		b = pre.panels(batch, ph.k0, ph.col+from)
	} else {
		b = p.run.sharedB[from*ph.kc:]
	}
	col := ph.col + from
	c := p.run.c[p.cfg.C.at(batch)+row*p.cfg.C.RowStride+col:]
	p.multiply(a, b, c, edge, rows, cols, ph.kc, ph.accumulate)
	if ph.last {
		p.finish(worker, batch, row, col, rows, cols)
	}
}
