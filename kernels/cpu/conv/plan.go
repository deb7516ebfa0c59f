package conv

import (
	"cmp"
	"errors"
	"fmt"
	"unsafe"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/cpu/tiling"
)

// A Config describes a convolution. Op.Layout does not matter: the layouts are those of NHWC.
type Config[T gemm.Float] struct {
	Op graph.Conv2D
	// X is the images [N, H, W, C], W the filters [KH, KW, C/G, O]. Strides may be any that are not negative.
	X, W graph.Layout
	// RowStride is the distance of the result's rows, at least O. They have O contiguous elements.
	RowStride int
	// Line and Image, if not 0, are the distances of the first pixels of the result's lines and of its images. Else rows are at equal
	// distances throughout. Such results have no Residual and no Epilogue.
	Line, Image int
	// Filters, if not nil, are the filters, in place of the slice given to Run.
	Filters *Filters[T]
	// Band bounds the pixels of a band; 0 chooses by the shape. It changes no bit of the result.
	Band int
	// Turned turns the filters by half a turn: tap (i, j) is multiplied by filter element (KH−1−i, KW−1−j).
	Turned bool
}

// An Epilogue finishes blocks of the result: for example bias, activation and residual.
type Epilogue interface {
	// Tile is called once for each block, when its elements have their final value and are still in the cache. The
	// blocks of a run cover the matrix [N·OH·OW, O] without overlap. Rows are those of one band, a number below
	// [Plan.Bands]. Blocks are cut by the shape alone.
	Tile(worker, band, row, col, rows, cols int)
}

// A Finish is what follows the sums while they are in registers. The residual is a matrix [N·OH·OW, O].
type Finish[T gemm.Float] = gemm.MatrixFinish[T]

// A Plan computes the convolutions of one Config. Make it with New.
type Plan[T gemm.Float] struct {
	cfg    Config[T]
	micro  gemm.Micro[T]
	pool   *pool.Pool
	ws     *gemm.Workspace
	shape  packing[T]
	size   int // bytes of an element
	images int
	h, w   axis

	batch      int         // images of a band
	pieces     gemm.Pieces // of a patch
	split      int         // work items of a band, each of some panels
	copies     bool        // bands are copied to scratch
	pixel      int         // distance of pixels in the copy
	line       int         // and of lines
	need       int         // elements of x
	room       int         // of scratch for each worker
	packedRoom int         // of scratch for filters
	workers    []worker[T]

	run run[T]
}

// A worker is what a worker knows of the band that it computed last, and what follows its sums.
type worker[T gemm.Float] struct {
	band   int // -1: none
	rows   []int
	finish gemm.Finish[T]
	_      [64]byte
}

type run[T gemm.Float] struct {
	x, w, y  []T
	finish   *Finish[T]
	epilogue Epilogue
	scratch  []T
	packed   []T
}

// Sizes that the caches suggest. They are the same on every processor.
const (
	// bandPixels bounds a band, of whole rows if they are not longer. It is halved while there are fewer than
	// itemsWanted work items of itemPanels panels each, as long as it is above bandPixelsMin.
	bandPixels, bandPixelsMin, itemPanels = 256, 96, 4
	// bandBytes bounds the copy of a band of more pixels than the matrix kernel computes at once, bandBytesMax that of
	// several pixels.
	bandBytes, bandBytesMax = 512 << 10, 64 << 20
	// itemsWanted is the number of work items, if there are enough panels, and so many multiplications for each as
	// itemVolume says, or partVolume where the panels of a band are cut.
	itemsWanted = 24
	itemVolume  = 1 << 18
	partVolume  = 1 << 16
	// itemsFew is the number of work items below which bands are smaller still, of at least bandPixelsFew pixels: workers
	// share few items unevenly.
	itemsFew, bandPixelsFew = 8, 24
	// nextBytes is the size of a panel from which on the next one is loaded ahead: one that the processor does not fetch by
	// itself while it begins.
	nextBytes = 8 << 10
	// farBytes is a distance of pixels of which multiples evict one another from a first-level cache.
	farBytes = 2 << 10
)

// New makes a plan that runs on the workers of p, with its scratch in ws, which grows if necessary. If ws is nil, the
// plan has a separate workspace.
func New[T gemm.Float](cfg Config[T], p *pool.Pool, ws *gemm.Workspace) (*Plan[T], error) {
	return newPlan(cfg, p, ws, gemm.MicroOf[T]())
}

func newPlan[T gemm.Float](cfg Config[T], p *pool.Pool, ws *gemm.Workspace, micro gemm.Micro[T]) (*Plan[T], error) {
	if p == nil {
		return nil, errors.New("conv: no pool")
	}
	if ws == nil {
		ws = gemm.NewWorkspace()
	}
	k := &Plan[T]{cfg: cfg, micro: micro, pool: p, ws: ws, size: int(unsafe.Sizeof(*new(T)))}
	if err := k.check(); err != nil {
		return nil, err
	}
	if k.Rows() == 0 || k.shape.out == 0 {
		return k, nil
	}
	k.cut()
	k.describe()
	gemm.Reserve[T](ws, k.packedRoom+k.room*p.Workers())
	k.workers = make([]worker[T], p.Workers())
	step := micro.GatherStep()
	for i := range k.workers { // each line may be computed by itself
		k.workers[i].rows = make([]int, tiling.RoundUp(k.batch*k.h.band*k.w.band, step)+step)
	}
	return k, nil
}

// check validates the configuration and computes the sizes.
func (k *Plan[T]) check() error {
	op, x, w := k.cfg.Op, k.cfg.X.Shape, k.cfg.W.Shape
	if err := checkFilters(op.Groups, k.cfg.W); err != nil {
		return err
	}
	if x.Rank() != 4 || x.At(3) != w.At(2)*op.Groups {
		return fmt.Errorf("conv: images %v and filters %v in %d groups", x, w, op.Groups)
	}
	if k.cfg.Band < 0 {
		return fmt.Errorf("conv: bands of %d pixels", k.cfg.Band)
	}
	for i := range 4 {
		if k.cfg.X.Stride[i] < 0 || k.cfg.W.Stride[i] < 0 {
			return errors.New("conv: negative strides")
		}
	}
	k.images = x.At(0)
	k.h = axis{in: x.At(1), taps: w.At(0), stride: op.Stride.At(0), dilation: op.Dilation.At(0), pad: op.Pad.At(0)}
	k.w = axis{in: x.At(2), taps: w.At(1), stride: op.Stride.At(1), dilation: op.Dilation.At(1), pad: op.Pad.At(1)}
	for i, a := range []*axis{&k.h, &k.w} {
		if err := a.fit(op.Pad.At(2 + i)); err != nil {
			return err
		}
	}
	if k.cfg.RowStride < w.At(3) && k.Rows() > 1 {
		return fmt.Errorf("conv: rows of %d elements at distances of %d", w.At(3), k.cfg.RowStride)
	}
	k.shape = newPacking(k.micro, op.Groups, w)
	if f := k.cfg.Filters; f == nil {
		k.packedRoom = k.shape.elements()
	} else if f.layout.Shape != w || f.shape.groups != op.Groups || f.shape.micro.NR != k.micro.NR {
		return fmt.Errorf("conv: packed filters %v in %d groups, the convolution needs %v in %d", f.layout.Shape, f.shape.groups, w,
			op.Groups)
	}
	k.need = Extent(k.cfg.X)
	return nil
}

// at is where a pixel of the result begins.
func (k *Plan[T]) at(image, line, pixel int) int {
	if k.cfg.Line == 0 {
		return ((image*k.h.out+line)*k.w.out + pixel) * k.cfg.RowStride
	}
	return image*k.cfg.Image + line*k.cfg.Line + pixel*k.cfg.RowStride
}

// Rows is the number of pixels of the result.
func (k *Plan[T]) Rows() int { return k.images * k.h.out * k.w.out }

// Bands is the number of bands into which the rows of the result are cut.
func (k *Plan[T]) Bands() int {
	if k.batch == 0 {
		return 1
	}
	return tiling.CeilDiv(k.images, k.batch) * k.h.bands() * k.w.bands()
}

// Bytes is the memory that the plan keeps.
func (k *Plan[T]) Bytes() int64 {
	n := 0
	for i := range k.workers {
		n += len(k.workers[i].rows)
	}
	return int64(n) * int64(unsafe.Sizeof(n))
}

// cut chooses the bands. A band is several images, several rows of one, or a part of one row.
func (k *Plan[T]) cut() {
	k.copies = !k.h.inside() || !k.w.inside() || k.cfg.X.Stride[3] != 1 && k.shape.ch > 1
	k.pixel = apart(k.cfg.X.Shape.At(3), k.size)
	panels, products := k.shape.groups*k.shape.panels, float64(k.Rows())*float64(k.cfg.W.Shape.Elems())
	items := func(volume float64) int { return int(min(products/volume, itemsWanted)) }
	wanted := items(itemVolume)
	for limit := cmp.Or(k.cfg.Band, bandPixels); ; limit /= 2 {
		k.cutBands(limit)
		if k.cfg.Band > 0 {
			break
		}
		least := bandPixelsMin
		if k.Bands()*panels < itemsFew {
			least = bandPixelsFew
		}
		if k.Bands()*max(panels/itemPanels, 1) >= wanted || limit/2 < least {
			break
		}
	}
	k.line = k.w.slots * k.pixel
	if k.copies {
		k.room = tiling.RoundUp(k.batch*k.copied(), 64/k.size)
	}
	k.split = min(max(tiling.CeilDiv(items(partVolume), k.Bands()), 1), panels)
}

// cutBands cuts bands of no more than limit pixels.
func (k *Plan[T]) cutBands(limit int) {
	k.batch = 1
	k.w.cut(evenly(k.w.out, limit))
	rows := limit / k.w.out
	if rows > k.h.out {
		k.batch = evenly(k.images, max(rows/k.h.out, 1))
	}
	k.h.cut(evenly(k.h.out, rows))
	for k.copies && k.batch > 1 && k.batch*k.copied() > bandBytes/k.size {
		k.batch = evenly(k.images, k.batch-1)
	}
	for k.copies && k.h.band > 1 && k.copied() > bandBytes/k.size {
		k.h.cut(evenly(k.h.out, k.h.band-1))
	}
	few := k.micro.GatherHeight()
	for k.copies && (k.w.band > few && k.copied() > bandBytes/k.size || k.w.band > 1 && k.copied() > bandBytesMax/k.size) {
		k.w.cut(evenly(k.w.out, k.w.band-1))
	}
}

// copied is the number of elements of a band's copy of one image.
func (k *Plan[T]) copied() int { return k.h.slots * k.w.slots * k.pixel }

// describe lists the pieces of a patch.
func (k *Plan[T]) describe() {
	row, tap, side := k.h.tapStep*k.line, k.w.tapStep*k.pixel, k.pixel // distances of taps, of pixels
	if !k.copies {
		row, tap, side = k.h.dilation*k.cfg.X.Stride[1], k.w.dilation*k.cfg.X.Stride[2], k.cfg.X.Stride[2]
	}
	taps, n := k.w.taps, k.shape.ch
	if taps == 1 || tap == side && side == n && !k.cfg.Turned {
		taps, n = 1, n*taps
	}
	var list []gemm.Piece
	for i := range k.h.taps {
		for j := range taps {
			at := i*row + j*tap
			if k.cfg.Turned {
				at = (k.h.taps-1-i)*row + (taps-1-j)*tap
			}
			list = append(list, gemm.Piece{At: at, Len: n})
		}
	}
	k.pieces = gemm.CutPieces(list)
}

// Run convolves x with w, or with the packed filters, and writes y. x and w begin with element 0 of the layouts' memory,
// y with the first pixel. A nil Finish or Epilogue does nothing; the Epilogue comes second. Run returns an error if a slice is too
// short, before anything is written. A panic in the epilogue is passed on as a *pool.Panic; the plan can be run again afterwards.
func (k *Plan[T]) Run(x, w, y []T, finish *Finish[T], epilogue Epilogue) error {
	rows, out := k.Rows(), k.cfg.W.Shape.At(3)
	if rows == 0 || out == 0 {
		return nil
	}
	if needY := k.at(k.images-1, k.h.out-1, k.w.out-1) + out; len(y) < needY {
		return fmt.Errorf("conv: slices too short: y has %d elements of %d", len(y), needY)
	}
	r := run[T]{x: x, w: w, y: y, finish: finish, epilogue: epilogue}
	if err := k.checkRun(&r); err != nil {
		return err
	}
	defer k.release()
	k.begin(r)
	k.pool.Run(k.Bands()*k.split, (*bandTask[T])(k))
	return nil
}

// checkRun reports operands of a run that are too short.
func (k *Plan[T]) checkRun(r *run[T]) error {
	rows, out, needW := k.Rows(), k.cfg.W.Shape.At(3), Extent(k.cfg.W)
	if k.cfg.Filters != nil {
		needW = 0
	}
	if len(r.x) < k.need || len(r.w) < needW {
		return fmt.Errorf("conv: slices too short: x has %d elements of %d, w %d of %d", len(r.x), k.need, len(r.w), needW)
	}
	if err := r.finish.Check(rows, out); err != nil {
		return fmt.Errorf("conv: %w", err)
	}
	return nil
}

// begin starts a run: filters are packed.
func (k *Plan[T]) begin(r run[T]) {
	mem := gemm.Acquire[T](k.ws)
	k.run = r
	k.run.packed, k.run.scratch = mem[:k.packedRoom], mem[k.packedRoom:]
	for i := range k.workers {
		k.workers[i].band = -1
	}
	if f := k.cfg.Filters; f != nil {
		k.run.packed = f.data
	} else if k.shape.steps() > 0 {
		k.pool.Run(k.shape.groups*k.shape.panels, (*packTask[T])(k))
	}
}

// release drops the references to the caller's data and releases the workspace.
func (k *Plan[T]) release() {
	k.run = run[T]{}
	for i := range k.workers {
		k.workers[i].finish = gemm.Finish[T]{}
	}
	k.ws.Release()
}

// packTask packs a panel of filters.
type packTask[T gemm.Float] Plan[T]

func (t *packTask[T]) Do(_, item int) {
	t.shape.pack(t.run.packed, t.run.w, &t.cfg.W, item/t.shape.panels, item%t.shape.panels)
}
