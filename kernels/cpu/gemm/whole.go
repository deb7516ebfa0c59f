package gemm

import (
	"unsafe"

	"fusec/kernels/cpu/tiling"
)

// A product whose operands, packed, fit a cache together is packed completely before it is computed. A tile is then
// computed over the whole reduction while it stays in the first-level cache, and the workers synchronise twice, instead
// of twice for each block of the reduction. If there is one block of rows, a panel of B is used by one tile only, and
// the tile's worker packs it.
//
// Packed, A is [block of the reduction][row block][panel][kc][mr] and B [block of the reduction][panel][kc][nr].

// wholeBytes bounds the packed operands.
const wholeBytes = 4 << 20

// packWhole decides whether the product is packed whole.
func (p *Plan[T]) packWhole() {
	if !p.commonB {
		return
	}
	s := p.wholeScratch()
	if p.whole = (s.sharedA+s.sharedB)*int(unsafe.Sizeof(*new(T))) <= wholeBytes; p.whole {
		p.scratch = s
	}
}

// wholeScratch is the scratch that a product needs that is packed whole.
func (p *Plan[T]) wholeScratch() scratch {
	s := scratch{edge: p.mc * p.kern.nr}
	blocks := p.cfg.Batch * p.rowBlocks
	if p.privateA {
		s.workerA = p.mc * p.kc
	} else {
		s.sharedA = blocks * p.mc * p.cfg.K
	}
	switch {
	case p.cfg.Prepacked != nil:
	case p.privateB():
		s.workerB = p.kc * p.tileCols
	default:
		s.sharedB = tiling.RoundUp(p.cfg.N, p.kern.nr) * p.cfg.K
	}
	return s
}

// privateB reports whether the worker that computes a tile packs its panels of B, which no other tile needs.
func (p *Plan[T]) privateB() bool { return p.cfg.Prepacked == nil && p.cfg.Batch*p.rowBlocks == 1 }

// runWhole packs, and then computes.
func (p *Plan[T]) runWhole() {
	reduction := tiling.CeilDiv(p.cfg.K, p.kc)
	ph := &p.run.phase
	ph.cols, ph.blocks = p.cfg.N, p.cfg.Batch*p.rowBlocks
	if p.cfg.Prepacked == nil && !p.privateB() {
		ph.itemsB = tiling.CeilDiv(ph.cols, packPanels*p.kern.nr)
	}
	items := reduction * ph.itemsB
	if !p.privateA {
		items += reduction * ph.blocks
	}
	if items > 0 {
		p.pool.Run(items, (*packWholeTask[T])(p))
	}
	p.pool.Run(ph.blocks*tiling.CeilDiv(ph.cols, p.tileCols), (*tileWholeTask[T])(p))
}

// wholeA is the packed row block of A, for the block of the reduction that has kc steps from k0.
func (p *Plan[T]) wholeA(block, k0, kc int) []T {
	return p.run.sharedA[(k0*p.run.phase.blocks+block*kc)*p.mc:]
}

// wholeB is the same for the columns of B from col on.
func (p *Plan[T]) wholeB(col, k0, kc int) []T {
	return p.run.sharedB[k0*tiling.RoundUp(p.cfg.N, p.kern.nr)+col*kc:]
}

// packWholeTask packs some panels of one block of B's reduction, or of one of A's a row block.
type packWholeTask[T Float] Plan[T]

func (t *packWholeTask[T]) Do(worker, item int) {
	p := (*Plan[T])(t)
	ph := &p.run.phase
	each := ph.itemsB
	if !p.privateA {
		each += ph.blocks
	}
	k0 := item / each * p.kc
	kc := min(p.kc, p.cfg.K-k0)
	if item %= each; item < ph.itemsB {
		step := packPanels * p.kern.nr
		col := item * step
		p.packB(worker, p.wholeB(col, k0, kc), 0, col, min(step, ph.cols-col), k0, kc)
		return
	}
	block := item - ph.itemsB
	batch, row, rows := p.rowBlock(block)
	p.packA(worker, p.wholeA(block, k0, kc), batch, row, rows, k0, kc)
}

// tileWholeTask computes a tile of C. Successive items share their block of A.
type tileWholeTask[T Float] Plan[T]

func (t *tileWholeTask[T]) Do(worker, item int) {
	p := (*Plan[T])(t)
	columns := tiling.CeilDiv(p.cfg.N, p.tileCols)
	block, col := item/columns, item%columns*p.tileCols
	cols := min(p.tileCols, p.cfg.N-col)
	batch, row, rows := p.rowBlock(block)
	a, b, edge := p.private(worker)
	c := p.run.c[p.cfg.C.at(batch)+row*p.cfg.C.RowStride+col:]
	for k0 := 0; k0 < p.cfg.K; k0 += p.kc {
		kc := min(p.kc, p.cfg.K-k0)
		if p.privateA {
			p.packA(worker, a, batch, row, rows, k0, kc)
		} else {
			a = p.wholeA(block, k0, kc)
		}
		switch {
		case p.cfg.Prepacked != nil:
			b = p.cfg.Prepacked.panels(batch, k0, col)
		case p.privateB():
			p.packB(worker, b, 0, col, cols, k0, kc)
		default:
			b = p.wholeB(col, k0, kc)
		}
		p.multiply(a, b, c, edge, rows, cols, kc, k0 > 0)
	}
	p.finish(worker, batch, row, col, rows, cols)
}
