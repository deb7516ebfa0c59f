package gemm

import (
	"unsafe"

	"fusec/kernels/cpu/tiling"
)

// Sizes that the caches suggest. They are the same on every processor, so that
// results depend on the instruction set alone.
const (
	// reductionMax bounds a block of the reduction: a panel of B then takes
	// half of a first-level cache of 32 KiB.
	reductionMax = 256
	// blockBytesA bounds a packed block of A: it stays in the second level.
	blockBytesA = 144 << 10
	// sharedBytes bounds what is packed of A, and of B, at one time: it
	// stays in the third level.
	sharedBytes = 4 << 20
	// tileColsMax and tileColsMin bound the width of a tile of C.
	tileColsMax = 512
	tileColsMin = 64
	// tilesWanted is the number of tiles of a product, if it is large enough, so that the workers share them evenly.
	tilesWanted = 32
	// packPanels is how many panels of B one packing item fills.
	packPanels = 4

	// fewRows is the number of rows up to which a product of prepacked B is one of few rows: reading B takes a good part of
	// the time. One of more than aheadBytes is not in the cache.
	fewRows    = 64
	aheadBytes = 4 << 20

	// localVolume is the number of multiplications up to which one worker
	// computes a product alone, sooner than another could help;
	// localBatchVolume and localBytesB are the same for members of a batch
	// of at least localBatch.
	localVolume      = 1 << 18
	localBatch       = 8
	localBatchVolume = 1 << 23
	localBytesB      = 256 << 10
)

// A blocking is the block sizes of a product. It is a function of the shape, the element type and the kernel.
type blocking struct {
	kc       int // steps of the reduction per block, the last block excepted
	mc       int // rows per block of A and per tile, a multiple of mr
	nc       int // columns per block of B, a multiple of nr
	tileCols int // columns per tile, a multiple of nr

	rowBlocks int // blocks of rows in one matrix
	chunk     int // row blocks of A that are packed at one time

	// local: one work item computes a whole matrix with private packing.
	local bool
	// privateA: a tile spans all columns, so the worker that computes it packs its block of A, which no other tile
	// needs.
	privateA bool
	// commonB: all matrices of the batch have the same B.
	commonB bool
}

// reductionBlock cuts k into equal blocks. Prepacked operands rely on its
// depending on k alone.
func reductionBlock(k int) int {
	if k <= reductionMax {
		return max(k, 1)
	}
	return tiling.RoundUp(tiling.CeilDiv(k, tiling.CeilDiv(k, reductionMax)), 8)
}

// cut chooses the blocking of cfg.
func cut[T Float](cfg *Config[T], kern *kernel[T]) blocking {
	size := int(unsafe.Sizeof(*new(T)))
	mr, nr := kern.mr, kern.nr
	kc := reductionBlock(cfg.K)
	b := blocking{kc: kc, local: cfg.local(kc, size), commonB: cfg.oneB()}

	rows := max(blockBytesA/size/kc, mr)
	b.setRows(cfg.M, min(rows, blockBytesA/size/reductionMax*2), mr)
	b.nc = evenly(cfg.N, sharedBytes/size/kc, nr)
	if cfg.Prepacked != nil {
		b.nc = tiling.RoundUp(cfg.N, nr)
	}
	b.tileCols = evenly(cfg.N, tileColsMax, nr)
	if b.local {
		b.nc, b.tileCols = tiling.RoundUp(cfg.N, nr), tiling.RoundUp(cfg.N, nr)
		return b
	}
	tiles := func() int { return cfg.Batch * b.rowBlocks * tiling.CeilDiv(cfg.N, b.tileCols) }
	few := func() bool { // of a tile whose worker packs B, short pieces of rows are slow to read
		alone := cfg.Batch*b.rowBlocks == 1 && cfg.Prepacked == nil && b.tileCols <= 2*tileColsMin
		return tiles() < tilesWanted && !(alone && tiles() >= tilesWanted/2)
	}
	for few() && b.tileCols > tiling.RoundUp(tileColsMin, nr) {
		b.tileCols = tiling.RoundUp(max(b.tileCols/2, tileColsMin), nr)
	}
	for tiles() < tilesWanted/2 && b.mc > 6*mr {
		b.setRows(cfg.M, b.mc/2, mr)
	}

	b.privateA = cfg.N <= b.tileCols
	b.chunk = b.rowBlocks
	if b.commonB {
		b.chunk *= cfg.Batch
	}
	if !b.privateA {
		b.chunk = min(b.chunk, max(sharedBytes/size/(b.mc*kc), 1))
	}
	return b
}

// setRows cuts m into equal blocks of at most limit rows.
func (b *blocking) setRows(m, limit, mr int) {
	b.mc = evenly(m, limit, mr)
	b.rowBlocks = tiling.CeilDiv(m, b.mc)
}

// evenly returns the size of the parts when n is cut into equal parts that are
// multiples of step and, where step allows, not above limit.
func evenly(n, limit, step int) int {
	return tiling.RoundUp(tiling.CeilDiv(n, tiling.CeilDiv(n, max(limit/step*step, step))), step)
}

// local reports whether one work item should compute a whole matrix.
func (cfg *Config[T]) local(kc, size int) bool {
	volume := float64(cfg.M) * float64(cfg.N) * float64(cfg.K)
	bytesB := kc * cfg.N * size
	switch {
	case cfg.Batch > 1 && cfg.oneB() && cfg.Prepacked == nil:
		return false // B would be packed once for each matrix
	case volume <= localVolume:
		return bytesB <= localBytesB
	}
	return cfg.Batch >= localBatch && volume <= localBatchVolume && bytesB <= localBytesB
}

// oneB reports whether all matrices of the batch have the same B, or one that
// need not be packed.
func (cfg *Config[T]) oneB() bool {
	switch {
	case cfg.Batch == 1:
		return true
	case cfg.Prepacked != nil:
		return true
	case cfg.PackB != nil:
		return false
	}
	for _, o := range cfg.B.Offsets {
		if o != cfg.B.Offsets[0] {
			return false
		}
	}
	return true
}
