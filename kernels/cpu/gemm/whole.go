package gemm

import (
	"unsafe"

	"fusec/kernels/cpu/tiling"
)

// A product whose operands, packed, fit a cache together is computed tile by tile, each over the whole reduction while the tile
// stays in the first-level cache.
//
// What one worker packs and another reads is fetched from the other's cache, and taken back from there when the next product is
// packed. Both take long where the workers' cores do not share a cache. So a tile's worker packs the block of the larger operand
// that the tile needs, unless it has just done so for another tile. The smaller operand, which all tiles need, is packed by each
// worker for itself, if it is soon done beside the worker's tiles, and else by all together, before the tiles.
//
// Packed, A is [block of the reduction][row block][panel][kc][mr] and B [block of the reduction][panel][kc][nr].

const (
	// wholeBytes bounds the packed operands, and all copies of the smaller one.
	wholeBytes = 4 << 20
	// ownBytes bounds the block that a worker packs for several tiles: it stays in the second level.
	ownBytes = 576 << 10
	// aloneSteps is the number of multiplications by an element, for each worker, from which on each packs it for itself.
	aloneSteps = 128
)

// An own is the operand that is packed by the tile: its row blocks of A or its columns of B.
type own int

const (
	ownNone own = iota
	ownA
	ownB
)

// A holding is what a worker has packed for itself in a run.
type holding struct {
	block  int  // of the own operand; -1 for none
	common bool // the other one
	_      [lineBytes - 2*unsafe.Sizeof(0)]byte
}

// packWhole decides whether the product is packed whole, and by whom.
func (p *Plan[T]) packWhole() {
	if !p.commonB {
		return
	}
	size, workers := int(unsafe.Sizeof(*new(T))), p.pool.Workers()
	blocks, columns := p.cfg.Batch*p.rowBlocks, tiling.CeilDiv(p.cfg.N, p.tileCols)
	lenA, lenB := blocks*p.mc*p.cfg.K, tiling.RoundUp(p.cfg.N, p.kern.nr)*p.cfg.K
	if p.cfg.Prepacked != nil {
		lenB = 0
	}
	s := scratch{edge: p.mc * p.kern.nr}
	var common int
	if columns > 1 && lenB > 0 && (lenB > 2*lenA || blocks == 1) {
		p.own, s.workerB, common = ownB, p.tileCols*p.cfg.K, lenA
		if p.ownOnce = blocks == 1; p.ownOnce {
			s.workerB, lenB = p.tileCols*p.kc, 0
		}
	} else {
		p.own, s.workerA, common = ownA, p.mc*p.cfg.K, lenB
		if p.ownOnce = columns == 1; p.ownOnce {
			s.workerA, lenA = p.mc*p.kc, 0
		}
	}
	if p.whole = (lenA+lenB)*size <= wholeBytes; !p.whole {
		return
	}
	steps := p.cfg.Batch * p.cfg.M
	if p.own == ownB {
		steps = p.cfg.N
	}
	p.alone = steps >= aloneSteps*workers && common*size*workers <= wholeBytes
	p.held = make([]holding, workers)
	switch {
	case max(s.workerA, s.workerB)*size > ownBytes && !p.ownOnce:
		p.own, p.alone = ownNone, false
		s.workerA, s.workerB, s.sharedA, s.sharedB = 0, 0, lenA, lenB
	case p.own == ownA && p.alone:
		s.workerB = lenB
	case p.own == ownA:
		s.sharedB = lenB
	case p.alone:
		s.workerA = lenA
	default:
		s.sharedA = lenA
	}
	p.scratch = s
}

// runWhole packs, and then computes.
func (p *Plan[T]) runWhole() {
	reduction := tiling.CeilDiv(p.cfg.K, p.kc)
	ph := &p.run.phase
	ph.cols, ph.blocks = p.cfg.N, p.cfg.Batch*p.rowBlocks
	if p.cfg.Prepacked == nil && p.own != ownB {
		ph.itemsB = tiling.CeilDiv(ph.cols, packPanels*p.kern.nr)
	}
	ph.items = reduction * ph.itemsB
	if p.own != ownA {
		ph.items += reduction * ph.blocks
	}
	if ph.items > 0 && !p.alone {
		p.pool.Run(ph.items, (*packWholeTask[T])(p))
	}
	for i := range p.held {
		p.held[i] = holding{block: -1}
	}
	p.pool.Run(ph.blocks*tiling.CeilDiv(ph.cols, p.tileCols), (*tileWholeTask[T])(p))
}

// wholeA is the row block of A, of all packed in mem, for the block of the reduction that has kc steps from k0.
func (p *Plan[T]) wholeA(mem []T, block, k0, kc int) []T {
	return mem[(k0*p.run.phase.blocks+block*kc)*p.mc:]
}

// wholeB is the same for the columns of B from col on.
func (p *Plan[T]) wholeB(mem []T, col, k0, kc int) []T {
	return mem[k0*tiling.RoundUp(p.cfg.N, p.kern.nr)+col*kc:]
}

// packCommon packs, for one block of the reduction, some panels of B into b, or a row block of A into a.
func (p *Plan[T]) packCommon(worker, item int, a, b []T) {
	ph := &p.run.phase
	reduction := tiling.CeilDiv(p.cfg.K, p.kc)
	k0 := item % reduction * p.kc
	kc := min(p.kc, p.cfg.K-k0)
	if item /= reduction; item < ph.itemsB {
		step := packPanels * p.kern.nr
		col := item * step
		p.packB(worker, p.wholeB(b, col, k0, kc), 0, col, min(step, ph.cols-col), k0, kc)
		return
	}
	block := item - ph.itemsB
	batch, row, rows := p.rowBlock(block)
	p.packA(worker, p.wholeA(a, block, k0, kc), batch, row, rows, k0, kc)
}

// packWholeTask packs what tiles do not pack.
type packWholeTask[T Float] Plan[T]

func (t *packWholeTask[T]) Do(worker, item int) {
	p := (*Plan[T])(t)
	p.packCommon(worker, item, p.run.sharedA, p.run.sharedB)
}

// tileWholeTask computes a tile of C. Successive items share the block that their worker packs.
type tileWholeTask[T Float] Plan[T]

func (t *tileWholeTask[T]) Do(worker, item int) {
	p := (*Plan[T])(t)
	columns := tiling.CeilDiv(p.cfg.N, p.tileCols)
	block, column := item/columns, item%columns
	own := block
	if p.own == ownB {
		block, column = item%p.run.phase.blocks, item/p.run.phase.blocks
		own = column
	}
	col := column * p.tileCols
	cols := min(p.tileCols, p.cfg.N-col)
	batch, row, rows := p.rowBlock(block)

	ownedA, ownedB, edge := p.private(worker)
	commonA, commonB, held := p.run.sharedA, p.run.sharedB, &p.held[worker]
	if p.alone {
		commonA, commonB = ownedA, ownedB
		for i := 0; i < p.run.phase.items && !held.common; i++ {
			p.packCommon(worker, i, commonA, commonB)
		}
		held.common = true
	}
	packs := held.block != own
	held.block = own
	c := p.run.c[p.cfg.C.at(batch)+row*p.cfg.C.RowStride+col:]
	for k0 := 0; k0 < p.cfg.K; k0 += p.kc {
		kc, at := min(p.kc, p.cfg.K-k0), k0
		if p.ownOnce {
			at = 0
		}
		var a, b []T
		if p.own == ownA {
			if a = ownedA[at*p.mc:]; packs {
				p.packA(worker, a, batch, row, rows, k0, kc)
			}
		} else {
			a = p.wholeA(commonA, block, k0, kc)
		}
		switch {
		case p.cfg.Prepacked != nil:
			b = p.cfg.Prepacked.panels(batch, k0, col)
		case p.own == ownB:
			if b = ownedB[at*p.tileCols:]; packs {
				p.packB(worker, b, 0, col, cols, k0, kc)
			}
		default:
			b = p.wholeB(commonB, col, k0, kc)
		}
		p.multiply(a, b, c, edge, rows, cols, kc, k0 > 0)
	}
	p.finish(worker, batch, row, col, rows, cols)
}
