package winograd

import (
	"cmp"
	"errors"
	"fmt"

	"fusec/graph"
	"fusec/kernels/cpu/conv"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/cpu/tiling"
)

// A Config describes a convolution of images X [N, H, W, C], in a layout with strides that are not negative. Pad is top, left,
// bottom, right, and not negative.
type Config struct {
	X         graph.Layout
	Pad       graph.Ints
	Filters   *Filters
	RowStride int // distance of the rows of the result [N·OH·OW, O], which have O contiguous elements
	Band      int // most tiles of a band; 0 chooses by the shape. It changes no bit of the result
}

// A Plan computes the convolutions of one Config. Make it with New.
type Plan struct {
	cfg           Config
	kern          kernel
	pool          *pool.Pool
	ws            *gemm.Workspace
	tile, points  int // along a side
	images        int
	height, width axis

	batch    int // images of a band
	split    int // work items of a band, each of some panels
	segments int // a band's blocks of successive rows of the result
	pieces   gemm.Pieces

	pixel      int // distance of the rows of v, which are the tiles
	vPoint     int // distances of the points of v and of m
	mPoint     int
	patch, out int // where these begin in a worker's scratch, behind v and m
	room       int // elements of scratch for each worker
	filters    int // and for filters that change, before those of the workers
	need       int // elements of x
	workers    []worker

	x, y     []float32 // during a run
	scratch  []float32
	epilogue conv.Epilogue
}

// An axis is the height or the width of the images.
type axis struct {
	in, out, pad int
	tiles        int // of the result
	band         int // tiles of a band
}

// bands is the number of bands.
func (a *axis) bands() int { return tiling.CeilDiv(a.tiles, a.band) }

// A worker is what a worker knows of the band whose v it computed last.
type worker struct {
	band int // -1: none
	rows []int
	_    [64]byte
}

// Sizes that the caches suggest. They are the same on every processor.
const (
	// bandTiles bounds the tiles of a band, bandBytes its v. It is halved while there are fewer than bandsWanted bands of
	// itemPanels panels, as long as it is above bandTilesMin.
	bandTiles, bandTilesMin = 64, 24
	bandBytes               = 2 << 20
	bandsWanted, itemPanels = 8, 4
	// itemsWanted is the number of work items, if there are enough panels.
	itemsWanted = 8
	// nextBytes is the size of a point's panel from which on the next one is loaded ahead.
	nextBytes = 16 << 10
	// farElements is a distance of rows of which multiples evict one another from a first-level cache, lineElements a
	// cache line.
	farElements, lineElements = 512, 16
)

// New makes a plan that runs on the workers of p, with its scratch in ws, which grows if necessary. If ws is nil, the
// plan has a separate workspace.
func New(cfg Config, p *pool.Pool, ws *gemm.Workspace) (*Plan, error) {
	return newPlan(cfg, p, ws, kernels[0])
}

func newPlan(cfg Config, p *pool.Pool, ws *gemm.Workspace, kern kernel) (*Plan, error) {
	f, s := cfg.Filters, cfg.X.Shape
	switch {
	case p == nil || f == nil:
		return nil, errors.New("winograd: no pool or no filters")
	case s.Rank() != 4 || s.At(3) != f.channels:
		return nil, fmt.Errorf("winograd: images %v and filters %v", s, f.layout.Shape)
	case cfg.Band < 0:
		return nil, fmt.Errorf("winograd: bands of %d tiles", cfg.Band)
	case cfg.Pad.Len() != 4:
		return nil, fmt.Errorf("winograd: padding %v", cfg.Pad)
	}
	if ws == nil {
		ws = gemm.NewWorkspace()
	}
	k := &Plan{cfg: cfg, kern: kern, pool: p, ws: ws, tile: f.tile, points: f.tile + 2, images: s.At(0), need: conv.Extent(cfg.X)}
	k.height = axis{in: s.At(1), pad: cfg.Pad.At(0), out: s.At(1) + cfg.Pad.At(0) + cfg.Pad.At(2) - 2}
	k.width = axis{in: s.At(2), pad: cfg.Pad.At(1), out: s.At(2) + cfg.Pad.At(1) + cfg.Pad.At(3) - 2}
	for i, a := range []*axis{&k.height, &k.width} {
		if cfg.Pad.At(i) < 0 || cfg.Pad.At(i+2) < 0 || a.out < 1 {
			return nil, fmt.Errorf("winograd: images %v with padding %v", s, cfg.Pad)
		}
		a.tiles = tiling.CeilDiv(a.out, k.tile)
	}
	if cfg.RowStride < f.out && k.Rows() > 1 {
		return nil, fmt.Errorf("winograd: rows of %d elements at distances of %d", f.out, cfg.RowStride)
	}
	if k.Rows() == 0 || f.out == 0 {
		return k, nil
	}
	k.cut()
	if f.data == nil {
		k.filters = tiling.RoundUp(f.elements(), lineElements)
	}
	gemm.Reserve[float32](ws, k.filters+k.room*p.Workers())
	k.workers = make([]worker, p.Workers())
	for i := range k.workers {
		k.workers[i].rows = make([]int, tiling.RoundUp(k.tiles(), f.micro.GatherStep()))
	}
	return k, nil
}

// Rows is the number of pixels of the result.
func (k *Plan) Rows() int { return k.images * k.height.out * k.width.out }

// Bands is the number of blocks of rows into which the result is cut; see [conv.Epilogue].
func (k *Plan) Bands() int {
	if k.batch == 0 {
		return 1
	}
	return k.bands() * k.segments
}

func (k *Plan) bands() int {
	return tiling.CeilDiv(k.images, k.batch) * k.height.bands() * k.width.bands()
}

// tiles is the number of tiles of a band.
func (k *Plan) tiles() int { return k.batch * k.height.band * k.width.band }

// Bytes is the memory that the plan keeps.
func (k *Plan) Bytes() int64 { return int64(len(k.workers)) * int64(k.tiles()) * 8 }

// cut chooses the bands, which are several images, several rows of tiles of one, or a part of one row, and lays out the
// scratch.
func (k *Plan) cut() {
	f := k.cfg.Filters
	k.pixel = tiling.RoundUp(f.channels, k.kern.lanes)
	if k.pixel > 0 && k.pixel%farElements == 0 {
		k.pixel += lineElements
	}
	points := f.points()
	limit := cmp.Or(k.cfg.Band, min(bandTiles, max(bandBytes/4/max(k.pixel*points, 1), bandTilesMin)))
	for ; ; limit /= 2 {
		k.cutBands(limit)
		if k.cfg.Band > 0 || k.bands()*max(f.panels()/itemPanels, 1) >= bandsWanted || limit/2 < bandTilesMin/2 {
			break
		}
	}
	k.split = min(max(itemsWanted/k.bands(), 1), f.panels())
	k.segments = 1
	if k.width.bands() > 1 || k.batch > 1 && k.height.bands() > 1 {
		k.segments = k.batch * k.height.band * k.tile
	}
	k.pieces = gemm.CutPieces([]gemm.Piece{{Len: f.channels}})
	odd := func(n int) int { // lines
		n = tiling.RoundUp(n, lineElements)
		return n + lineElements*(1-n/lineElements%2)
	}
	k.vPoint, k.mPoint = odd(k.tiles()*k.pixel), odd(k.tiles()*f.micro.NR)
	k.patch = points * (k.vPoint + k.mPoint)
	k.out = k.patch + points*tiling.RoundUp(k.pixel, lineElements)
	k.room = k.out + k.tile*k.tile*f.micro.NR
}

// cutBands cuts bands of no more than limit tiles.
func (k *Plan) cutBands(limit int) {
	k.batch, k.height.band = 1, 1
	if k.width.band = evenly(k.width.tiles, limit); k.width.band < k.width.tiles {
		return
	}
	rows := limit / k.width.tiles
	if rows > k.height.tiles {
		k.batch = evenly(k.images, rows/k.height.tiles)
	}
	k.height.band = evenly(k.height.tiles, rows)
}

// evenly returns the size of the parts when n is cut into parts that are as equal as possible, and not above limit.
func evenly(n, limit int) int { return tiling.CeilDiv(n, tiling.CeilDiv(n, max(limit, 1))) }

// Run convolves x, beginning with element 0 of the layout's memory, and writes y, from the first pixel on. Filters that change are
// those of w, others are not read. A nil Epilogue does nothing. Run returns an error if a slice is too short, before anything is
// written. A panic in the epilogue is passed on as a *pool.Panic; the plan can be run again afterwards.
func (k *Plan) Run(x, w, y []float32, epilogue conv.Epilogue) error {
	f := k.cfg.Filters
	rows, out := k.Rows(), f.out
	if rows == 0 || out == 0 {
		return nil
	}
	if needY := (rows-1)*k.cfg.RowStride + out; len(x) < k.need || len(y) < needY {
		return fmt.Errorf("winograd: slices too short: x has %d elements of %d, y %d of %d", len(x), k.need, len(y), needY)
	}
	mem := gemm.Acquire[float32](k.ws)
	defer k.release()
	k.x, k.y, k.epilogue, k.scratch = x, y, epilogue, mem[k.filters:]
	if k.filters > 0 {
		f.data = mem[:f.elements()]
		if err := f.Update(w); err != nil {
			return err
		}
	}
	for i := range k.workers {
		k.workers[i].band = -1
	}
	k.pool.Run(k.bands()*k.split, (*bandTask)(k))
	return nil
}

// release drops the references to the caller's data and releases the workspace.
func (k *Plan) release() {
	k.x, k.y, k.epilogue, k.scratch = nil, nil, nil, nil
	if k.filters > 0 {
		k.cfg.Filters.data = nil
	}
	k.ws.Release()
}
