package conv

import (
	"errors"
	"fmt"
	"unsafe"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/cpu/tiling"
	"fusec/kernels/cpu/vec"
)

// A FilterGrad computes the gradient of a convolution for its filters: dw [KH, KW, C/G, O], whose element (i, j, c, o) is
// the sum over the pixels of dy, times what tap (i, j) of channel c of the image has under them. Make it with
// [NewFilterGrad].
//
// It is a product for each group, of dy transposed, [O/G, N·OH·OW], and the patches of x, [N·OH·OW, KH·KW·C/G], whose
// reduction runs over pixels. Pixels of a block, of some rows, are packed: dy once for some panels of patches, and the
// patches panel by panel, each row of the image by one copy. The reduction is cut into parts by the shape alone, each of
// which has a sum of its own; in the end they are added in their order, and the sum is transposed.
type FilterGrad[T gemm.Float] struct {
	op     graph.Conv2D
	x, dy  graph.Layout
	micro  gemm.Micro[T]
	pool   *pool.Pool
	ws     *gemm.Workspace
	size   int // bytes of an element
	images int
	h, w   axis
	ch     int // channels of a group
	out    int // filters of a group

	merged  bool // the taps of a row of a filter are one piece, of KW·C elements
	panels  []panel
	rows    int // rows of dy in a block
	columns int // columns of dy in a block
	down    int // blocks of an image, down
	across  int // and across
	parts   int // of the reduction
	share   int // blocks of a part
	each    int // panels of a work item
	ranges  int // work items of a part and group
	height  int // rows of a partial sum: O/G, rounded up to the kernel's
	roomA   int // elements of scratch of a worker: for a block of dy,
	roomB   int // for a panel of patches,
	private int // and with the sums of its panels

	run filterGradRun[T]
}

// A panel of patches is cols elements of a piece, from the from-th on: of the taps from (row, col) on.
type panel struct{ row, col, from, cols int }

type filterGradRun[T gemm.Float] struct {
	x, dy, dw []T
	partial   []T // [part][group][panel][height][NR], if there are several parts
	workers   []T
}

// Sizes of a [FilterGrad].
const (
	// gradPixels bounds a block of pixels, of whole rows if they are not longer.
	gradPixels = 256
	// gradPanels bounds the panels of a work item.
	gradPanels = 12
	// gradItems is the number of work items, if there are enough pixels.
	gradItems = 16
)

// NewFilterGrad makes a plan for images x [N, H, W, C] and gradients dy [N, OH, OW, O] of the convolution op with filters
// of kh×kw. It runs on the workers of p, with its scratch in ws, which grows if necessary. If ws is nil, the plan has a
// separate workspace.
func NewFilterGrad[T gemm.Float](op graph.Conv2D, x, dy graph.Layout, kh, kw int, p *pool.Pool,
	ws *gemm.Workspace) (*FilterGrad[T], error) {
	return newFilterGrad(op, x, dy, kh, kw, p, ws, gemm.MicroOf[T]())
}

func newFilterGrad[T gemm.Float](op graph.Conv2D, x, dy graph.Layout, kh, kw int, p *pool.Pool, ws *gemm.Workspace,
	micro gemm.Micro[T]) (*FilterGrad[T], error) {
	if p == nil {
		return nil, errors.New("conv: no pool")
	}
	if ws == nil {
		ws = gemm.NewWorkspace()
	}
	if x.Shape.Rank() != 4 || dy.Shape.Rank() != 4 || x.Shape.At(0) != dy.Shape.At(0) || op.Groups < 1 ||
		x.Shape.At(3)%op.Groups != 0 || dy.Shape.At(3)%op.Groups != 0 {
		return nil, fmt.Errorf("conv: images %v and gradients %v in %d groups", x.Shape, dy.Shape, op.Groups)
	}
	for i := range 4 {
		if x.Stride[i] < 0 || dy.Stride[i] < 0 {
			return nil, errors.New("conv: negative strides")
		}
	}
	if x.Stride[3] != 1 && x.Shape.At(3) > 1 || dy.Stride[3] != 1 && dy.Shape.At(3) > 1 {
		return nil, errors.New("conv: channels that are not side by side")
	}
	k := &FilterGrad[T]{op: op, x: x, dy: dy, pool: p, ws: ws, size: int(unsafe.Sizeof(*new(T))),
		images: x.Shape.At(0), ch: x.Shape.At(3) / op.Groups, out: dy.Shape.At(3) / op.Groups}
	k.h = axis{in: x.Shape.At(1), out: dy.Shape.At(1), taps: kh, stride: op.Stride.At(0), dilation: op.Dilation.At(0),
		pad: op.Pad.At(0)}
	k.w = axis{in: x.Shape.At(2), out: dy.Shape.At(2), taps: kw, stride: op.Stride.At(1), dilation: op.Dilation.At(1),
		pad: op.Pad.At(1)}
	k.micro = micro.Fit(k.out)
	if kh*kw*k.ch*k.out == 0 {
		return k, nil
	}
	k.cut()
	gemm.Reserve[T](ws, k.partials()+k.private*p.Workers())
	return k, nil
}

// cut lists the panels and decides how the work is cut.
func (k *FilterGrad[T]) cut() {
	nr := k.micro.NR
	n, taps := k.ch, k.w.taps
	if k.op.Groups == 1 && k.w.dilation == 1 && k.x.Stride[2] == k.ch && k.ch%nr != 0 {
		k.merged, n, taps = true, n*taps, 1
	}
	for row := range k.h.taps {
		for col := range taps {
			for from := 0; from < n; from += nr {
				k.panels = append(k.panels, panel{row, col, from, min(nr, n-from)})
			}
		}
	}
	k.columns = evenly(k.w.out, gradPixels)
	k.rows = evenly(k.h.out, gradPixels/max(k.columns, 1))
	k.down, k.across = tiling.CeilDiv(k.h.out, max(k.rows, 1)), tiling.CeilDiv(k.w.out, max(k.columns, 1))
	k.each = evenly(len(k.panels), gradPanels)
	k.ranges = tiling.CeilDiv(len(k.panels), k.each)
	k.height = tiling.RoundUp(k.out, k.micro.MR)
	blocks := k.images * k.down * k.across
	k.share = max(tiling.CeilDiv(blocks, max(gradItems/(k.ranges*k.op.Groups), 1)), 1)
	k.parts = tiling.CeilDiv(blocks, k.share)
	line := 64 / k.size
	k.roomA, k.roomB = tiling.RoundUp(k.rows*k.columns*k.height, line), tiling.RoundUp(k.rows*k.columns*nr, line)
	sums := 1
	if k.parts == 1 {
		sums = k.each
	}
	k.private = k.roomA + k.roomB + tiling.RoundUp(sums*k.height*nr, line)
}

// partials is the number of elements of all partial sums.
func (k *FilterGrad[T]) partials() int {
	return k.parts * k.op.Groups * k.height * len(k.panels) * k.micro.NR
}

// Bytes is the memory that the plan keeps.
func (k *FilterGrad[T]) Bytes() int64 { return int64(len(k.panels)) * int64(unsafe.Sizeof(panel{})) }

// Run computes dw, whose elements are contiguous. x and dy begin with element 0 of the layouts' memory. Run returns an
// error if a slice is too short, before anything is written.
func (k *FilterGrad[T]) Run(x, dy, dw []T) error {
	need := k.h.taps * k.w.taps * k.ch * k.out * k.op.Groups
	if len(x) < Extent(k.x) || len(dy) < Extent(k.dy) || len(dw) < need {
		return fmt.Errorf("conv: slices too short: x has %d elements of %d, dy %d of %d, dw %d of %d",
			len(x), Extent(k.x), len(dy), Extent(k.dy), len(dw), need)
	}
	if need == 0 {
		return nil
	}
	if k.parts == 0 { // no pixels
		clear(dw[:need])
		return nil
	}
	mem := gemm.Acquire[T](k.ws)
	defer k.release()
	k.run = filterGradRun[T]{x: x, dy: dy, dw: dw, partial: mem[:k.partials()], workers: mem[k.partials():]}
	k.pool.Run(k.parts*k.op.Groups*k.ranges, (*partTask[T])(k))
	if k.parts > 1 {
		k.pool.Run(k.op.Groups*len(k.panels), (*joinTask[T])(k))
	}
	return nil
}

// release drops the references to the caller's data and releases the workspace.
func (k *FilterGrad[T]) release() {
	k.run = filterGradRun[T]{}
	k.ws.Release()
}

// partial is a panel of a partial sum: height rows of NR elements.
func (k *FilterGrad[T]) partial(part, group, panel int) []T {
	n := k.height * k.micro.NR
	return k.run.partial[((part*k.op.Groups+group)*len(k.panels)+panel)*n:][:n]
}

// scratch is a worker's room for a block of dy, for a panel of patches, and for sums.
func (k *FilterGrad[T]) scratch(worker int) (a, b, sums []T) {
	mem := k.run.workers[worker*k.private:][:k.private]
	return mem[:k.roomA], mem[k.roomA:][:k.roomB], mem[k.roomA+k.roomB:]
}

// partTask computes a partial sum of some panels, and writes it if there is no other.
type partTask[T gemm.Float] FilterGrad[T]

func (t *partTask[T]) Do(worker, item int) {
	k := (*FilterGrad[T])(t)
	from := item % k.ranges * k.each
	group := item / k.ranges % k.op.Groups
	part := item / k.ranges / k.op.Groups
	a, b, sums := k.scratch(worker)
	size := k.height * k.micro.NR
	first, end := part*k.share, min((part+1)*k.share, k.images*k.down*k.across)
	for block := first; block < end; block++ {
		at := k.block(block)
		pixels := at.rows * at.columns
		for r := range at.rows { // panels of at.rows·at.columns steps, a row of pixels at a time
			src := k.run.dy[k.dy.Offset+at.image*k.dy.Stride[0]+(at.row+r)*k.dy.Stride[1]+at.column*k.dy.Stride[2]+group*k.out:]
			k.packRow(a, k.micro.MR, pixels, r*at.columns, at.columns, k.out, src, k.dy.Stride[2])
		}
		for i := from; i < min(from+k.each, len(k.panels)); i++ {
			k.patches(b, k.panels[i], at, group)
			var c []T
			if k.parts > 1 {
				c = k.partial(part, group, i)
			} else {
				c = sums[(i-from)*size:]
			}
			k.micro.Tile(k.height/k.micro.MR, pixels, &a[0], &b[0], &c[0], k.micro.NR, block > first)
		}
	}
	if k.parts == 1 {
		for i := from; i < min(from+k.each, len(k.panels)); i++ {
			k.write(group, i, sums[(i-from)*size:])
		}
	}
}

// A pixelBlock is some pixels of dy.
type pixelBlock struct{ image, row, column, rows, columns int }

func (k *FilterGrad[T]) block(i int) pixelBlock {
	b := pixelBlock{image: i / k.across / k.down, row: i / k.across % k.down * k.rows, column: i % k.across * k.columns}
	b.rows, b.columns = min(k.rows, k.h.out-b.row), min(k.columns, k.w.out-b.column)
	return b
}

// packRow packs n elements of each of steps pixels, which are stride elements apart, as steps from step on of panels of
// all steps.
func (k *FilterGrad[T]) packRow(dst []T, width, all, step, steps, n int, src []T, stride int) {
	if steps == all {
		gemm.Pack(dst, width, steps, n, src, stride, 1)
		return
	}
	for from := 0; from < n; from += width {
		gemm.Pack(dst[from*all+step*width:], width, steps, min(width, n-from), src[from:], stride, 1)
	}
}

// patches packs a panel of the patches of a block's pixels.
func (k *FilterGrad[T]) patches(dst []T, p panel, at pixelBlock, group int) {
	nr := k.micro.NR
	for r := range at.rows {
		line := dst[r*at.columns*nr:][:at.columns*nr]
		y := (at.row+r)*k.h.stride + p.row*k.h.dilation - k.h.pad
		if y < 0 || y >= k.h.in {
			clear(line)
			continue
		}
		row := k.x.Offset + at.image*k.x.Stride[0] + y*k.x.Stride[1] + group*k.ch + p.from
		left := at.column*k.w.stride + p.col*k.w.dilation - k.w.pad // under the first pixel
		last := 0
		if k.merged {
			last = k.w.taps - 1
		}
		lo, hi := within(left, at.columns, k.w.stride, k.w.in) // the pixels whose first tap is inside, and their last one
		if k.merged {
			_, end := within(left+last, at.columns, k.w.stride, k.w.in)
			hi = max(min(hi, end), lo)
		}
		k.edge(line[:lo*nr], p, row, left)
		if lo < hi {
			src, n := k.run.x[row+(left+lo*k.w.stride)*k.x.Stride[2]:], p.cols
			if step := k.w.stride * k.x.Stride[2]; len(src) >= (hi-lo-1)*step+nr {
				n = nr // whole panels are faster to pack; nobody reads what comes of other elements
			}
			gemm.Pack(line[lo*nr:hi*nr], nr, hi-lo, n, src, k.w.stride*k.x.Stride[2], 1)
		}
		k.edge(line[hi*nr:], p, row, left+hi*k.w.stride)
	}
}

// edge packs pixels of which some taps, or all, are outside of the image: the first tap of the first one is at left.
func (k *FilterGrad[T]) edge(dst []T, p panel, row, left int) {
	clear(dst)
	if !k.merged {
		return
	}
	for ; len(dst) > 0; dst, left = dst[k.micro.NR:], left+k.w.stride {
		// Of the piece's elements, those of columns inside the image.
		lo := max(max(-left, 0)*k.ch, p.from)
		hi := min(min(k.w.in-left, k.w.taps)*k.ch, p.from+p.cols)
		if lo < hi {
			copy(dst[lo-p.from:hi-p.from], k.run.x[row-p.from+left*k.ch+lo:])
		}
	}
}

// within gives the numbers lo to hi, of n places that are step apart, of which the first is at start, that are inside
// of size elements.
func within(start, n, step, size int) (lo, hi int) {
	if start < 0 {
		lo = min((-start+step-1)/step, n)
	}
	hi = n
	if start+(n-1)*step >= size {
		hi = max((size-start+step-1)/step, 0)
	}
	return lo, max(hi, lo)
}

// joinTask adds the partial sums of a panel and writes the result.
type joinTask[T gemm.Float] FilterGrad[T]

func (t *joinTask[T]) Do(worker, item int) {
	k := (*FilterGrad[T])(t)
	group, i := item/len(k.panels), item%len(k.panels)
	_, _, sum := k.scratch(worker)
	sum = sum[:k.height*k.micro.NR]
	copy(sum, k.partial(0, group, i))
	for part := 1; part < k.parts; part++ {
		vec.Of[T]().AddTo(sum, k.partial(part, group, i))
	}
	k.write(group, i, sum)
}

// write puts the sum of a panel, which is transposed, where it belongs in dw.
func (k *FilterGrad[T]) write(group, i int, sum []T) {
	p, all := k.panels[i], k.out*k.op.Groups
	first := (p.row*k.w.taps+p.col)*k.ch + p.from // the row of dw
	vec.Of[T]().Transpose(k.run.dw[first*all+group*k.out:], all, sum, k.micro.NR, k.out, p.cols)
}
