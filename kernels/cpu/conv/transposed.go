package conv

import (
	"errors"
	"fmt"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/cpu/tiling"
)

// A Transposed computes the transpose of a convolution as a linear map: from dy [N, OH, OW, O] and filters w
// [KH, KW, C/G, O] it makes the image [N, H, W, C] in which each element is the sum, over the taps that read it, of dy
// times the filter's element. It is the gradient for the image, and the transposed convolution of networks. Make it with
// [NewTransposed].
//
// With stride 1 it is a convolution of dy with turned filters, whose channels and numbers are exchanged. With stride s,
// the rows and columns of each residue modulo s read taps of their own, so that it is s² convolutions of stride 1 (one
// for each pair of residues), whose results are interleaved (V. Dumoulin and F. Visin, "A guide to convolution arithmetic
// for deep learning", arXiv 1603.07285). Each writes its pixels where they belong. Where the filters are as wide as the stride,
// the pixels that one of dy makes in a row of the image stand side by side, and are computed together.
type Transposed[T gemm.Float] struct {
	op            graph.Conv2D
	pool          *pool.Pool
	w             graph.Layout
	images        int
	height, width int
	ch, out       int // channels and filters of a group
	rowStride     int
	residues      []residue[T]
	filters       []*Filters[T] // of the plans, if they are frozen
	gaps          bool          // some pixels are read by no tap
	band          int           // rows of the image that the epilogue gets at once, if the residues are interleaved
	side          int           // pixels of a row that are computed together
	shift         []T           // room for their shift
	part          Finish[T]     // and for what follows the sums of a group

	run transposedRun[T]
}

// A residue is the rows and columns from row and col on, as many apart as the strides say.
type residue[T gemm.Float] struct {
	row, col int
	plans    []*Plan[T] // of the groups
}

type transposedRun[T gemm.Float] struct {
	y        []T
	finish   *Finish[T]
	epilogue Epilogue
	group    int
}

// NewTransposed makes a plan of the transpose of the convolution op of images of h×w. dy and w are the layouts of the
// operands, rowStride is the distance of the result's pixels. If frozen is set, the filters are those of
// [Transposed.Update]. The plan runs on the workers of p, with its scratch in ws, which grows if necessary. If ws is nil,
// it has a separate workspace.
func NewTransposed[T gemm.Float](op graph.Conv2D, dy, w graph.Layout, h, wide, rowStride int, frozen bool, p *pool.Pool,
	ws *gemm.Workspace) (*Transposed[T], error) {
	return newTransposed(op, dy, w, h, wide, rowStride, frozen, p, ws, gemm.MicroOf[T]())
}

func newTransposed[T gemm.Float](op graph.Conv2D, dy, w graph.Layout, h, wide, rowStride int, frozen bool, p *pool.Pool,
	ws *gemm.Workspace, micro gemm.Micro[T]) (*Transposed[T], error) {
	if p == nil {
		return nil, errors.New("conv: no pool")
	}
	if err := checkFilters(op.Groups, w); err != nil {
		return nil, err
	}
	if dy.Shape.Rank() != 4 || dy.Shape.At(3) != w.Shape.At(3) {
		return nil, fmt.Errorf("conv: gradients %v and filters %v", dy.Shape, w.Shape)
	}
	if ws == nil {
		ws = gemm.NewWorkspace()
	}
	k := &Transposed[T]{op: op, pool: p, w: w, images: dy.Shape.At(0), height: h, width: wide,
		ch: w.Shape.At(2), out: w.Shape.At(3) / op.Groups, rowStride: rowStride}
	if rowStride < k.channels() && k.images*h*wide > 1 {
		return nil, fmt.Errorf("conv: rows of %d elements at distances of %d", k.channels(), rowStride)
	}
	k.band = evenly(h, bandPixels/max(wide, 1))
	across := residuesOf(op, 1, wide, dy.Shape.At(2), w.Shape.At(1))
	k.side = 1
	if s := op.Stride.At(1); op.Groups == 1 && s > 1 && w.Shape.At(1) == s && w.IsContiguous() &&
		op.Dilation.At(1) == 1 && op.Pad.At(1) == 0 && wide == dy.Shape.At(2)*s && rowStride == k.ch {
		k.side, across = s, across[:1]
	}
	k.shift = make([]T, k.side*k.channels())
	for _, v := range residuesOf(op, 0, h, dy.Shape.At(1), w.Shape.At(0)) {
		for _, u := range across {
			if v.taps == 0 || u.taps == 0 || k.out == 0 {
				k.gaps = true
				continue
			}
			r := residue[T]{row: v.first, col: u.first}
			for g := range op.Groups {
				cfg := k.config(v, u, g, dy)
				var err error
				if frozen {
					if cfg.Filters, err = newFilters(1, cfg.W, p, micro); err != nil {
						return nil, err
					}
					k.filters = append(k.filters, cfg.Filters)
				}
				plan, err := newPlan(cfg, p, ws, micro)
				if err != nil {
					return nil, err
				}
				r.plans = append(r.plans, plan)
			}
			k.residues = append(k.residues, r)
		}
	}
	return k, nil
}

// An axisResidue is the positions of an axis of the image from first on, n of them, a stride apart. They read taps from
// tap on, step apart: a convolution of dy with those, turned.
type axisResidue struct {
	first, n         int
	tap, step, taps  int
	dilation         int // of that convolution
	before, afterEnd int // its padding, which may be negative
}

// residuesOf lists the residues of an axis of size elements, with out positions of filters of so many taps.
func residuesOf(op graph.Conv2D, i, size, out, taps int) []axisResidue {
	s, d := op.Stride.At(i), op.Dilation.At(i)
	common := s
	for b := d; b > 0; {
		common, b = b, common%b
	}
	var list []axisResidue
	for first := range min(s, size) {
		r := axisResidue{first: first, n: tiling.CeilDiv(size-first, s), step: s / common, dilation: d / common}
		at := first + op.Pad.At(i) // tap k of position (at − k·dilation)/stride reads it
		for r.tap < min(r.step, taps) && (at-r.tap*d)%s != 0 {
			r.tap++
		}
		if r.tap < min(r.step, taps) {
			r.taps = tiling.CeilDiv(taps-r.tap, r.step)
			reach := (r.taps - 1) * r.dilation
			r.before = reach - (at-r.tap*d)/s
			r.afterEnd = r.n + reach - out - r.before
		}
		list = append(list, r)
	}
	return list
}

// config is the convolution of a group for a pair of residues.
func (k *Transposed[T]) config(v, u axisResidue, group int, dy graph.Layout) Config[T] {
	x := dy
	x.Shape = x.Shape.With(3, k.out)
	x.Offset += group * k.out * dy.Stride[3]
	filters := graph.Layout{Shape: graph.ShapeOf(v.taps, u.taps, k.out, k.ch),
		Offset: k.w.Offset + v.tap*k.w.Stride[0] + u.tap*k.w.Stride[1] + group*k.out*k.w.Stride[3]}
	filters.Stride[0], filters.Stride[1] = v.step*k.w.Stride[0], u.step*k.w.Stride[1]
	filters.Stride[2], filters.Stride[3] = k.w.Stride[3], k.w.Stride[2]
	if k.side > 1 { // the filters of its taps, side by side
		filters.Shape = graph.ShapeOf(v.taps, 1, k.out, k.side*k.ch)
		filters.Stride[3] = k.out // that of an axis of one channel may be any
	}
	cfg := Config[T]{X: x, W: filters, RowStride: k.op.Stride.At(1) * k.rowStride, Turned: true,
		Op: graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(v.dilation, u.dilation),
			Pad: graph.IntsOf(v.before, u.before, v.afterEnd, u.afterEnd), Groups: 1}}
	if !k.dense() {
		cfg.Line, cfg.Image = k.op.Stride.At(0)*k.width*k.rowStride, k.height*k.width*k.rowStride
	}
	return cfg
}

// dense reports whether a residue is the whole image.
func (k *Transposed[T]) dense() bool { return k.op.Stride.At(0)*k.op.Stride.At(1) == 1 }

func (k *Transposed[T]) channels() int { return k.ch * k.op.Groups }

// Bands is the number of bands that the epilogue is given.
func (k *Transposed[T]) Bands() int {
	if k.plain() {
		return k.residues[0].plans[0].Bands()
	}
	return tiling.CeilDiv(k.images*k.height, max(k.band, 1))
}

// plain reports whether the plans of one residue write the whole image, and call the epilogue.
func (k *Transposed[T]) plain() bool { return k.dense() && !k.gaps && len(k.residues) == 1 }

// Bytes is the memory that the plan keeps.
func (k *Transposed[T]) Bytes() int64 {
	n := int64(0)
	for i := range k.residues {
		for _, p := range k.residues[i].plans {
			n += p.Bytes()
		}
	}
	for _, f := range k.filters {
		n += int64(f.Bytes())
	}
	return n
}

// Update packs the filters of a plan that was made for frozen ones, for the first time or after they have changed.
func (k *Transposed[T]) Update(w []T) error {
	for _, f := range k.filters {
		if err := f.Update(w); err != nil {
			return err
		}
	}
	return nil
}

// Run computes the image y, whose pixels are rowStride elements apart. dy and w begin with element 0 of the layouts'
// memory, y with the first pixel. A nil Finish or Epilogue does nothing; the Epilogue comes second, and its rows are the image's
// pixels. A Finish has no Residual. Run returns an error if a slice is too short.
func (k *Transposed[T]) Run(dy, w, y []T, finish *Finish[T], epilogue Epilogue) error {
	pixels := k.images * k.height * k.width
	if pixels == 0 || k.ch == 0 {
		return nil
	}
	if need := (pixels-1)*k.rowStride + k.channels(); len(y) < need {
		return fmt.Errorf("conv: slices too short: y has %d elements of %d", len(y), need)
	}
	if err := finish.Check(pixels, k.channels()); err != nil {
		return fmt.Errorf("conv: %w", err)
	}
	defer func() { k.run, k.part = transposedRun[T]{}, Finish[T]{} }()
	k.run = transposedRun[T]{y: y, finish: finish, epilogue: epilogue}
	if k.gaps {
		k.pool.Run(tiling.CeilDiv(k.images*k.height, max(k.band, 1)), (*clearTask[T])(k))
	}
	for i := range k.residues {
		r := &k.residues[i]
		for g, plan := range r.plans {
			k.run.group = g
			var then Epilogue
			if epilogue != nil && k.plain() {
				then = (*besideGroups[T])(k)
			}
			if err := plan.Run(dy, w, y[(r.row*k.width+r.col)*k.rowStride+g*k.ch:], k.finishOf(g), then); err != nil {
				return err
			}
		}
	}
	if epilogue != nil && !k.plain() {
		k.pool.Run(k.Bands(), (*finishTask[T])(k))
	}
	return nil
}

// finishOf is what follows the sums of a group.
func (k *Transposed[T]) finishOf(group int) *Finish[T] {
	f := k.run.finish
	if f == nil {
		return nil
	}
	of := &k.part
	*of = *f
	switch {
	case f.Shift == nil:
	case k.side > 1:
		for i := range k.side {
			copy(k.shift[i*k.ch:], f.Shift[:k.ch])
		}
		of.Shift = k.shift
	default:
		of.Shift = f.Shift[group*k.ch:][:k.ch]
	}
	return of
}

// rows is the rows lo to hi, of all images, of a band of the interleaved image.
func (k *Transposed[T]) rows(band int) (lo, hi int) {
	return band * k.band, min((band+1)*k.band, k.images*k.height)
}

// clearTask writes the sums of nothing to a band of the image.
type clearTask[T gemm.Float] Transposed[T]

func (t *clearTask[T]) Do(_, band int) {
	k := (*Transposed[T])(t)
	lo, hi := k.rows(band)
	for pixel := lo * k.width; pixel < hi*k.width; pixel++ {
		y := k.run.y[pixel*k.rowStride:][:k.channels()]
		clear(y)
		if f := k.run.finish; f != nil {
			f.At(&gemm.Finish[T]{}, 0, 0).Apply(&y[0], len(y), 1, len(y))
		}
	}
}

// finishTask calls the epilogue for a band of the image.
type finishTask[T gemm.Float] Transposed[T]

func (t *finishTask[T]) Do(worker, band int) {
	k := (*Transposed[T])(t)
	lo, hi := k.rows(band)
	k.run.epilogue.Tile(worker, band, lo*k.width, 0, (hi-lo)*k.width, k.channels())
}

// besideGroups tells the epilogue of the image's columns that a group has.
type besideGroups[T gemm.Float] Transposed[T]

// Tile implements [Epilogue].
func (t *besideGroups[T]) Tile(worker, band, row, col, rows, cols int) {
	t.run.epilogue.Tile(worker, band, row, col+t.run.group*t.ch, rows, cols)
}
