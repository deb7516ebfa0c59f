package conv

import (
	"errors"
	"fmt"
	"unsafe"

	"fusec/graph"
	"fusec/kernels/cpu/depthwise"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/cpu/tiling"
	"fusec/kernels/cpu/vec"
)

// A SeparableConfig describes a [graph.SeparableConv2D].
type SeparableConfig[T gemm.Float] struct {
	Op graph.SeparableConv2D
	// X is the images [N, H, W, C]. Strides may be any that are not negative.
	X graph.Layout
	// Kernel is the height and the width of the depthwise filters.
	Kernel [2]int
	// Expand and Pointwise are the filters of 1×1. Expand may be nil.
	Expand, Pointwise *Filters[T]
	// RowStride is the distance of the result's rows, which have contiguous elements.
	RowStride int
}

// A Separable computes a [graph.SeparableConv2D] in strips: some lines of the image are expanded to a buffer with a border of
// zeros, the depthwise convolution of it goes to another buffer, and the last convolution of that to the result. The buffers of a
// worker stay in its second-level cache, and the lines that the next strip reads, too, stay in the first buffer. Make it with
// NewSeparable.
type Separable[T gemm.Float] struct {
	cfg   SeparableConfig[T]
	micro gemm.Micro[T]
	pool  *pool.Pool
	ws    *gemm.Workspace

	images, channels, filters int // channels are those of the depthwise convolution
	h, w                      axis
	part, parts               int // lines of the result in a work item, and items of an image
	strip                     int // lines of the result in a strip
	pixel, line               int // distances of pixels and of lines in the first buffer
	before, inside            int // pixels of a line that are border, and image
	slots                     int // lines of the first buffer
	copies                    bool
	direct                    *depthwise.Correlation[T] // reads images as they lie, where they are not expanded; or nil
	copied, sums, room        int                       // elements before copied lines, before the second buffer, and in all
	need                      int                       // elements of x

	expand, pointwise gemm.Pieces
	pixels, outs      []int // where pixels of a line of the image begin, and those of the second buffer
	workers           []separableWorker[T]
	run               separableRun[T]
}

type separableWorker[T gemm.Float] struct {
	windows depthwise.Windows[T] // where there is a first buffer
	finish  gemm.Finish[T]
	_       [64]byte
}

type separableRun[T gemm.Float] struct {
	x, y, scratch []T
	weights       *SeparableWeights[T]
	finish        *Finish[T]
	epilogue      Epilogue
	bounds        depthwise.Finish[T] // what follows the depthwise convolution
}

// SeparableWeights are the operands of a run that are not filters of 1×1: the depthwise filters [KH, KW, E], and biases [E].
type SeparableWeights[T gemm.Float] struct{ Depthwise, Bias, ExpandBias []T }

// Sizes of a strip: its buffers have at most stripBytes, if they have more than a line, and its result has no more than
// stripPixels, if it has more than a line. separableItems is the number of work items, if each has so many lines as partLines
// says, or half of an image.
const (
	stripBytes  = 512 << 10
	stripPixels = 256
	partLines   = 14

	separableItems = 8
)

// NewSeparable makes a plan that runs on the workers of p, with its scratch in ws, which grows if necessary.
func NewSeparable[T gemm.Float](cfg SeparableConfig[T], p *pool.Pool, ws *gemm.Workspace) (*Separable[T], error) {
	return newSeparable(cfg, p, ws, gemm.MicroOf[T]())
}

func newSeparable[T gemm.Float](cfg SeparableConfig[T], p *pool.Pool, ws *gemm.Workspace,
	micro gemm.Micro[T]) (*Separable[T], error) {
	if p == nil {
		return nil, errors.New("conv: no pool")
	}
	if ws == nil {
		ws = gemm.NewWorkspace()
	}
	k := &Separable[T]{cfg: cfg, micro: micro, pool: p, ws: ws}
	if err := k.check(); err != nil {
		return nil, err
	}
	if k.Rows() == 0 || k.filters == 0 {
		return k, nil
	}
	k.cut()
	gemm.Reserve[T](ws, k.room*p.Workers())
	k.workers = make([]separableWorker[T], p.Workers())
	tap := depthwise.Image{Row: k.h.dilation * k.line, Pixel: k.w.dilation * k.pixel}
	for i := range k.workers {
		k.workers[i].windows = depthwise.NewWindows(k.channels, cfg.Kernel, tap, k.w.stride*k.pixel, k.pixel, T(cfg.Op.Low),
			T(cfg.Op.High))
	}
	return k, nil
}

// check validates the configuration and computes the sizes.
func (k *Separable[T]) check() error {
	x, op, last := k.cfg.X.Shape, k.cfg.Op, k.cfg.Pointwise
	if x.Rank() != 4 || last == nil {
		return fmt.Errorf("conv: images %v, or no filters of 1×1", x)
	}
	k.images, k.channels, k.filters = x.At(0), x.At(3), last.shape.out
	lists := []*Filters[T]{last}
	if e := k.cfg.Expand; e != nil {
		lists, k.channels = append(lists, e), e.shape.out
		if e.shape.ch != x.At(3) {
			return fmt.Errorf("conv: filters %v for images %v", e.layout.Shape, x)
		}
	}
	if last.shape.ch != k.channels || k.channels == 0 {
		return fmt.Errorf("conv: filters %v for %d channels", last.layout.Shape, k.channels)
	}
	for _, f := range lists {
		if f.shape.taps != 1 || f.shape.groups != 1 || f.shape.micro.NR != k.micro.NR {
			return fmt.Errorf("conv: filters %v in %d groups are not of 1×1", f.layout.Shape, f.shape.groups)
		}
	}
	for i := range 4 {
		if k.cfg.X.Stride[i] < 0 {
			return errors.New("conv: negative strides")
		}
	}
	for i, a := range []*axis{&k.h, &k.w} {
		*a = axis{in: x.At(1 + i), taps: k.cfg.Kernel[i], stride: op.Stride.At(i), dilation: op.Dilation.At(i), pad: op.Pad.At(i)}
		if err := a.fit(op.Pad.At(2 + i)); err != nil {
			return err
		}
	}
	if k.cfg.RowStride < k.filters && k.Rows() > 1 {
		return fmt.Errorf("conv: rows of %d elements at distances of %d", k.filters, k.cfg.RowStride)
	}
	k.need = Extent(k.cfg.X)
	return nil
}

// Rows is the number of pixels of the result.
func (k *Separable[T]) Rows() int { return k.images * k.h.out * k.w.out }

// cut chooses work items and strips, and lays out the scratch.
func (k *Separable[T]) cut() {
	size := int(unsafe.Sizeof(*new(T)))
	k.pixel = apart(k.channels, size)
	wide := (k.w.out-1)*k.w.stride + (k.w.taps-1)*k.w.dilation + 1
	k.before = min(k.w.pad, wide)
	k.inside = min(k.w.in, wide-k.before)
	k.line = wide * k.pixel
	c := k.cfg.X.Shape.At(3)
	k.copies = k.cfg.Expand != nil && k.cfg.X.Stride[3] != 1 && c > 1

	k.parts = min(tiling.CeilDiv(separableItems, k.images), max(k.h.out/partLines, min(2, k.h.out)))
	direct := k.cfg.Expand == nil && k.cfg.X.Stride[3] == 1
	k.part = tiling.CeilDiv(k.h.out, k.parts)
	k.parts = tiling.CeilDiv(k.h.out, k.part)
	for k.strip = evenly(k.part, stripPixels/k.w.out); ; k.strip = evenly(k.part, k.strip-1) {
		k.slots = (k.strip-1)*k.h.stride + (k.h.taps-1)*k.h.dilation + 1
		if direct {
			k.slots = 0
		}
		k.copied = tiling.RoundUp(k.slots*k.line, 64/size)
		k.sums = k.copied
		if k.copies {
			k.sums += tiling.RoundUp(k.slots*k.inside*c, 64/size)
		}
		k.room = k.sums + tiling.RoundUp(k.strip*k.w.out*k.pixel, 64/size)
		if k.strip == 1 || k.room*size <= stripBytes {
			break
		}
	}

	if direct {
		g := depthwise.NewGeometry(k.cfg.X.Shape, graph.ShapeOf(k.images, k.h.out, k.w.out, c), graph.IntsOf(k.cfg.Kernel[:]...),
			k.cfg.Op.Stride, k.cfg.Op.Dilation, k.cfg.Op.Pad)
		x := depthwise.Image{Image: k.cfg.X.Stride[0], Row: k.cfg.X.Stride[1], Pixel: k.cfg.X.Stride[2]}
		k.direct = depthwise.NewConv[T](g, 1, x, depthwise.Packed([2]int{k.h.out, k.w.out}, k.pixel), k.pool.Workers())
	}
	step := k.micro.GatherStep()
	k.pixels = make([]int, tiling.RoundUp(k.inside, step))
	for i := range k.inside {
		k.pixels[i] = i * k.cfg.X.Stride[2]
		if k.copies {
			k.pixels[i] = i * c
		}
	}
	k.outs = make([]int, tiling.RoundUp(k.strip*k.w.out, step))
	for i := range k.strip * k.w.out {
		k.outs[i] = i * k.pixel
	}
	k.expand = gemm.CutPieces([]gemm.Piece{{Len: c}})
	k.pointwise = gemm.CutPieces([]gemm.Piece{{Len: k.channels}})
}

// Blocks is the number of blocks for which a run calls its epilogue.
func (k *Separable[T]) Blocks() int { return k.images * k.parts * k.stripsOf() }

// stripsOf is the number of strips of a work item.
func (k *Separable[T]) stripsOf() int { return tiling.CeilDiv(k.part, max(k.strip, 1)) }

// Bytes is the memory that the plan keeps.
func (k *Separable[T]) Bytes() int64 { return int64(len(k.pixels)+len(k.outs)) * 8 }

// Run computes y from x. x begins with element 0 of the layout's memory, y with the first pixel. A nil Finish or Epilogue does
// nothing; see [Plan.Run].
func (k *Separable[T]) Run(x []T, weights *SeparableWeights[T], y []T, finish *Finish[T], epilogue Epilogue) error {
	rows := k.Rows()
	if rows == 0 || k.filters == 0 {
		return nil
	}
	taps := k.h.taps * k.w.taps * k.channels
	if len(x) < k.need || len(y) < (rows-1)*k.cfg.RowStride+k.filters || len(weights.Depthwise) < taps ||
		len(weights.Bias) < k.channels || k.cfg.Expand != nil && len(weights.ExpandBias) < k.channels {
		return fmt.Errorf("conv: slices too short: x has %d elements, y %d, the depthwise filters %d, biases %d and %d", len(x), len(y),
			len(weights.Depthwise), len(weights.Bias), len(weights.ExpandBias))
	}
	if err := finish.Check(rows, k.filters); err != nil {
		return fmt.Errorf("conv: %w", err)
	}
	mem := gemm.Acquire[T](k.ws)
	defer k.release()
	k.run = separableRun[T]{x: x, y: y, scratch: mem, weights: weights, finish: finish, epilogue: epilogue}
	k.run.bounds = depthwise.Finish[T]{Shift: weights.Bias, Low: T(k.cfg.Op.Low), High: T(k.cfg.Op.High)}
	if k.direct != nil {
		k.direct.Bind(x[k.cfg.X.Offset:], weights.Depthwise, nil, k.run.bounds)
	}
	k.pool.Run(k.images*k.parts, (*separableTask[T])(k))
	return nil
}

// release drops the references to the caller's data and releases the workspace.
func (k *Separable[T]) release() {
	k.run = separableRun[T]{}
	if k.direct != nil {
		k.direct.Bind(nil, nil, nil, depthwise.Unfinished[T]())
	}
	for i := range k.workers {
		k.workers[i].finish = gemm.Finish[T]{}
	}
	k.ws.Release()
}

// separableTask computes lines of an image, strip by strip.
type separableTask[T gemm.Float] Separable[T]

func (t *separableTask[T]) Do(worker, item int) {
	k := (*Separable[T])(t)
	image, lo := item/k.parts, item%k.parts*k.part
	hi := min(lo+k.part, k.h.out)
	mem := k.run.scratch[worker*k.room:][:k.room]
	lines, sums, w := mem[:k.copied], mem[k.sums:], &k.workers[worker]
	had := 0 // slots that are filled
	for number, from := 0, lo; from < hi; number, from = number+1, from+k.strip {
		count := min(k.strip, hi-from)
		if k.direct != nil {
			k.direct.RowsTo(worker, image, from, from+count, sums, nil, &k.run.bounds)
			k.finishStrip(worker, item*k.stripsOf()+number, (image*k.h.out+from)*k.w.out, count*k.w.out, sums)
			continue
		}
		slots := (count-1)*k.h.stride + (k.h.taps-1)*k.h.dilation + 1
		kept := max(had-k.strip*k.h.stride, 0)
		copy(lines, lines[(had-kept)*k.line:had*k.line])
		k.fill(w, image, from*k.h.stride-k.h.pad, kept, slots, mem)
		had = slots
		for i := range count {
			w.windows.Line(k.w.out, lines[i*k.h.stride*k.line:], k.run.weights.Depthwise, k.run.weights.Bias, sums[i*k.w.out*k.pixel:])
		}
		k.finishStrip(worker, item*k.stripsOf()+number, (image*k.h.out+from)*k.w.out, count*k.w.out, sums)
	}
}

// fill makes slots from to end of the first buffer. Slot 0 is line first of the image, which may be outside.
func (k *Separable[T]) fill(w *separableWorker[T], image, first, from, end int, mem []T) {
	x, c := &k.cfg.X, k.cfg.X.Shape.At(3)
	source := func(slot int) []T {
		y := first + slot
		switch {
		case y < 0 || y >= k.h.in || k.inside == 0:
			return nil
		case c == 0:
			return []T{} // of a line without channels
		}
		return k.run.x[x.Offset+image*x.Stride[0]+y*x.Stride[1]:]
	}
	for slot := from; slot < end; slot++ {
		line, src := mem[slot*k.line:][:k.line], source(slot)
		if src == nil {
			clear(line)
			continue
		}
		clear(line[:k.before*k.pixel])
		clear(line[(k.before+k.inside)*k.pixel:])
		switch {
		case k.copies:
			for i := range k.inside {
				vec.Gather(mem[k.copied+(slot*k.inside+i)*c:][:c], src[i*x.Stride[2]:], x.Stride[3])
			}
		case k.cfg.Expand == nil:
			k.copyPixels(line[k.before*k.pixel:], src)
		}
	}
	if k.cfg.Expand == nil {
		return
	}
	shape := &k.cfg.Expand.shape
	for panel := range shape.panels {
		at, col, cols, _ := shape.panel(0, panel)
		for slot := from; slot < end; slot++ {
			src := source(slot)
			if src == nil {
				continue
			}
			if k.copies {
				src = mem[k.copied+slot*k.inside*c:]
			}
			to := mem[slot*k.line+k.before*k.pixel+col:]
			w.finish = gemm.Finish[T]{Shift: &k.run.weights.ExpandBias[col], Low: T(k.cfg.Op.Low), High: T(k.cfg.Op.High)}
			if c == 0 { // sums of nothing
				for i := range k.inside {
					clear(to[i*k.pixel:][:cols])
				}
				w.finish.Apply(&to[0], k.pixel, k.inside, cols)
				continue
			}
			k.micro.Gather(&k.expand, k.inside, k.pixels, &src[0], &k.cfg.Expand.data[at], nil, &to[0], k.pixel, cols, &w.finish)
		}
	}
}

// copyPixels copies the channels of a line of the image.
func (k *Separable[T]) copyPixels(to, src []T) {
	x := &k.cfg.X
	if x.Stride[3] == 1 && x.Stride[2] == k.pixel {
		copy(to[:k.inside*k.pixel], src)
		return
	}
	for i := range k.inside {
		vec.Gather(to[i*k.pixel:][:k.channels], src[i*x.Stride[2]:], x.Stride[3])
	}
}

// finishStrip computes pixels of the result, from row on, of the second buffer.
func (k *Separable[T]) finishStrip(worker, number, row, pixels int, sums []T) {
	shape := &k.cfg.Pointwise.shape
	for panel := range shape.panels {
		at, col, cols, _ := shape.panel(0, panel)
		finish := k.run.finish.At(&k.workers[worker].finish, row, col)
		k.micro.Gather(&k.pointwise, pixels, k.outs, &sums[0], &k.cfg.Pointwise.data[at], nil,
			&k.run.y[row*k.cfg.RowStride+col], k.cfg.RowStride, cols, finish)
	}
	if k.run.epilogue != nil {
		k.run.epilogue.Tile(worker, number, row, 0, pixels, k.filters)
	}
}
