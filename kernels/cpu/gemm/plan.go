package gemm

import (
	"errors"
	"fmt"

	"fusec/kernels/cpu/pool"
)

// A Config describes a batch of products C = A·B, each of M×K by K×N. Any of
// the sizes may be 0; with K = 0 the result is zero.
type Config[T Float] struct {
	M, N, K int
	Batch   int // number of matrices

	// The layouts of the operands in the slices given to Run. C must have
	// ColStride 1, rows that do not overlap and no broadcast.
	A, B, C Layout

	// PackA and PackB, if not nil, provide an operand in place of a matrix
	// with a layout.
	PackA, PackB Packer[T]
	// Prepacked, if not nil, is B.
	Prepacked *Prepacked[T]
}

// A Plan computes the products of one Config. Make it with New.
type Plan[T Float] struct {
	cfg    Config[T]
	kern   *kernel[T]
	tile   func(tiles, kc int, a, b, c *T, ldc int, accumulate bool) // of kern
	pool   *pool.Pool
	ws     *Workspace
	method method
	blocking
	whole bool // tiled: a tile is computed over the whole reduction, see whole.go
	own   own
	// ownOnce: no block of the own operand is of two tiles. alone: each worker packs the other operand for itself.
	ownOnce, alone bool
	held           []holding // by worker
	scratch
	thin      thin
	at        inPlace[T]
	finishing *MatrixFinish[T] // of a run in place

	lenA, lenB, lenC int // elements that the operands must have

	run run[T]
}

// A method is a way to compute a product.
type method int

const (
	nothing   method = iota // C is empty
	zeroed                  // K is 0
	streamed                // few rows or columns: see thin.go
	perMatrix               // small: see local.go
	tiled                   // see tiled.go
	inPlaced                // see inplace.go
)

// A run is what the work items of a run in progress share.
type run[T Float] struct {
	a, b, c          []T
	epilogue         Epilogue
	sharedA, sharedB []T
	workers          []T // the private buffers, one worker after another
	phase            phase
}

// New makes a plan that runs on the workers of p, with its scratch in ws, which grows if necessary. If ws is nil, the
// plan has a separate workspace.
func New[T Float](cfg Config[T], p *pool.Pool, ws *Workspace) (*Plan[T], error) {
	return newPlan(cfg, p, ws, kernels[T]()[0])
}

func newPlan[T Float](cfg Config[T], p *pool.Pool, ws *Workspace, kern *kernel[T]) (*Plan[T], error) {
	if p == nil {
		return nil, errors.New("gemm: no pool")
	}
	if ws == nil {
		ws = NewWorkspace()
	}
	plan := &Plan[T]{cfg: cfg, kern: kern, tile: kern.tile, pool: p, ws: ws}
	if cfg.M <= fewRows {
		plan.kern = kern.fit(cfg.M)
		plan.tile = plan.kern.tile
		if ahead := plan.kern.tileAhead; ahead != nil && cfg.Prepacked != nil && cfg.Prepacked.Bytes() > aheadBytes {
			plan.tile = ahead
		}
	}
	if err := plan.check(); err != nil {
		return nil, err
	}
	plan.choose()
	plan.scratch = align[T](plan.scratch)
	Reserve[T](ws, plan.scratch.total(p.Workers()))
	return plan, nil
}

// check validates the configuration and computes the operands' lengths.
func (p *Plan[T]) check() (err error) {
	cfg := &p.cfg
	if cfg.M < 0 || cfg.N < 0 || cfg.K < 0 || cfg.Batch < 0 {
		return fmt.Errorf("gemm: negative size: %d×%d×%d, batch %d", cfg.M, cfg.N, cfg.K, cfg.Batch)
	}
	if cfg.PackA == nil {
		if p.lenA, err = cfg.A.extent("A", cfg.Batch, cfg.M, cfg.K); err != nil {
			return err
		}
	}
	switch pre := cfg.Prepacked; {
	case pre != nil && cfg.PackB != nil:
		return errors.New("gemm: B is given twice, as PackB and as Prepacked")
	case pre != nil:
		if err := pre.fits(cfg.K, cfg.N, cfg.Batch, p.kern.nr); err != nil {
			return err
		}
	case cfg.PackB == nil:
		if p.lenB, err = cfg.B.extent("B", cfg.Batch, cfg.K, cfg.N); err != nil {
			return err
		}
	}
	if p.lenC, err = cfg.C.extent("C", cfg.Batch, cfg.M, cfg.N); err != nil {
		return err
	}
	switch c := cfg.C; {
	case c.ColStride != 1 && cfg.N > 1:
		return fmt.Errorf("gemm: C has column stride %d; it must be 1", c.ColStride)
	case c.RowStride < cfg.N && cfg.M > 1:
		return fmt.Errorf("gemm: C has row stride %d but %d columns", c.RowStride, cfg.N)
	case c.Offsets == nil && cfg.Batch > 1:
		return fmt.Errorf("gemm: C has no offsets for a batch of %d", cfg.Batch)
	}
	return nil
}

// choose selects the method and computes the scratch that it needs.
func (p *Plan[T]) choose() {
	cfg := &p.cfg
	if cfg.Batch == 0 || cfg.M == 0 || cfg.N == 0 {
		return
	}
	if cfg.readsInPlace(p.kern) && (cfg.Prepacked != nil || cfg.packsInPlace(p.kern)) {
		p.setInPlace()
		return
	}
	p.blocking = cut(cfg, p.kern)
	if cfg.K == 0 {
		p.method = zeroed
		return
	}
	if t, ok := cfg.thin(); ok {
		p.method, p.thin = streamed, t
		p.scratch = scratch{workerA: t.vectors * cfg.K, edge: t.vectors * t.block}
		return
	}
	panelsB := p.nc * p.kc
	if cfg.Prepacked != nil {
		panelsB = 0
	}
	p.scratch.edge = p.mc * p.kern.nr
	if p.local {
		p.method = perMatrix
		p.scratch.workerA, p.scratch.workerB = p.mc*p.kc, panelsB
		return
	}
	p.method = tiled
	p.scratch.sharedB = panelsB
	if p.privateA {
		p.scratch.workerA = p.mc * p.kc
	} else {
		p.scratch.sharedA = p.chunk * p.mc * p.kc
	}
	p.packWhole()
}

// Run computes C = A·B for every matrix of the batch and calls the epilogue, if
// it is not nil, for every tile of C. Operands that the Config provides by
// other means are ignored and may be nil. C must not overlap A or B. Elements of c that belong to no matrix are not
// changed.
//
// Run returns an error if a slice is too short for its layout, before anything
// is written. A panic in the epilogue or in a Packer is passed on as a
// *pool.Panic; the plan can be run again afterwards.
func (p *Plan[T]) Run(a, b, c []T, epilogue Epilogue) error {
	if len(a) < p.lenA || len(b) < p.lenB || len(c) < p.lenC {
		return p.tooShort(len(a), len(b), len(c))
	}
	if p.method == nothing {
		return nil
	}
	p.prepare(Acquire[T](p.ws), a, b, c, epilogue)
	defer p.release()
	switch p.method {
	case zeroed:
		p.pool.Run(p.cfg.Batch*p.rowBlocks, (*zeroTask[T])(p))
	case streamed:
		p.pool.Run(p.cfg.Batch*p.thin.blocks, (*thinTask[T])(p))
	case inPlaced:
		p.runInPlace()
	case perMatrix:
		p.pool.Run(p.cfg.Batch, (*localTask[T])(p))
	case tiled:
		if p.whole {
			p.runWhole()
		} else {
			p.runTiled()
		}
	}
	return nil
}

// prepare lays the scratch buffers out in the workspace's memory.
func (p *Plan[T]) prepare(mem, a, b, c []T, epilogue Epilogue) {
	s := p.scratch
	p.run = run[T]{
		a: a, b: b, c: c, epilogue: epilogue,
		sharedA: mem[:s.sharedA],
		sharedB: mem[s.sharedA:][:s.sharedB],
		workers: mem[s.sharedA+s.sharedB:],
	}
}

// release drops the references to the caller's data and releases the workspace.
func (p *Plan[T]) release() {
	p.run = run[T]{}
	p.ws.Release()
}

// private returns the buffers of one worker.
func (p *Plan[T]) private(worker int) (a, b, edge []T) {
	s := p.scratch
	mem := p.run.workers[worker*s.perWorker():][:s.perWorker()]
	return mem[:s.workerA], mem[s.workerA:][:s.workerB], mem[s.workerA+s.workerB:]
}

func (p *Plan[T]) tooShort(a, b, c int) error {
	return fmt.Errorf("gemm: operands too short for %d×%d×%d, batch %d: a has %d elements of %d, b %d of %d, c %d of %d",
		p.cfg.M, p.cfg.N, p.cfg.K, p.cfg.Batch, a, p.lenA, b, p.lenB, c, p.lenC)
}

// TileRows is the number of rows of the tiles that an Epilogue is given: all start at a multiple of it.
func (p *Plan[T]) TileRows() int {
	switch {
	case p.method != streamed:
		return p.mc
	case p.thin.alongRows:
		return p.cfg.M
	}
	return p.thin.block
}

// finish passes a finished tile to the epilogue.
func (p *Plan[T]) finish(worker, batch, row, col, rows, cols int) {
	if p.run.epilogue != nil {
		p.run.epilogue.Tile(worker, batch, row, col, rows, cols)
	}
}

// zeroTask clears C, a block of rows per item.
type zeroTask[T Float] Plan[T]

func (t *zeroTask[T]) Do(worker, item int) {
	p := (*Plan[T])(t)
	batch, row := item/p.rowBlocks, item%p.rowBlocks*p.mc
	rows := min(p.mc, p.cfg.M-row)
	for i := row; i < row+rows; i++ {
		clear(p.run.c[p.cfg.C.at(batch)+i*p.cfg.C.RowStride:][:p.cfg.N])
	}
	p.finish(worker, batch, row, 0, rows, p.cfg.N)
}
