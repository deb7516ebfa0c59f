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

// A PlanesConfig describes a convolution of images in NCHW, of one group.
type PlanesConfig struct {
	Op graph.Conv2D
	// X is the images [N, C, H, W], W the filters [O, C, KH, KW]. Pixels of a line of X stand side by side.
	X, W graph.Layout
	// Image and Plane are the distances of the result's images and of their planes, which are contiguous.
	Image, Plane int
}

// A Planes computes convolutions of images in NCHW, whose channels are planes. Filters are packed in panels, [C·KH·KW][rows].
// They are multiplied by vectors of neighbouring pixels, which are read where they lie: in the image, if each pixel of the
// result reads one pixel of its own place; or else in a worker's copy of some lines, with their border, in which the pixels
// that are read together stand side by side, those of every column of a stride in a plane of their own. Make it with NewPlanes.
type Planes[T gemm.Float] struct {
	cfg   PlanesConfig
	micro gemm.Micro[T]
	pool  *pool.Pool
	ws    *gemm.Workspace

	images, channels, filters int
	h, w                      axis
	inPlace                   bool
	at                        []int // where the rows of the patches begin
	bands, band               int   // items of an image, and lines of the result in an item, or pixels where images are read in place
	wide, line, slots         int   // of the copy: pixels of a phase of a line, elements of a line, and lines of a channel
	room                      int   // elements of a worker's copy
	need                      int   // elements of x
	packed                    []T   // filters
	shift                     []T   // of filters, filled up
	workers                   []planesWorker[T]
	run                       planesRun[T]
}

type planesWorker[T gemm.Float] struct {
	finish gemm.Finish[T]
	_      [64]byte
}

type planesRun[T gemm.Float] struct {
	x, y, scratch, src []T
	finish             *PlanesFinish[T]
	epilogue           Epilogue
}

// A PlanesFinish is what follows the sums while they are in registers: y = min(max(Gate(sum + Shift + Residual), Low), High).
// Shift has a number for each filter. Residual is images whose planes are contiguous; it may be the result. What is nil is left
// out. A NaN stays a NaN.
type PlanesFinish[T gemm.Float] struct {
	Shift, Residual []T
	Image, Plane    int // of Residual
	Low, High       T
	Gate            vec.Gate[T]
}

// planesItems is the number of work items, if each has planesVolume multiplications. planesBytes bounds a worker's copy, where that
// is of more than a line.
const (
	planesItems  = 16
	planesVolume = 1 << 18
	planesBytes  = 256 << 10
)

// NewPlanes makes a plan that runs on the workers of p, with its scratch in ws, which grows if necessary. It is nil if this
// processor has no kernels for it.
func NewPlanes[T gemm.Float](cfg PlanesConfig, p *pool.Pool, ws *gemm.Workspace) (*Planes[T], error) {
	return newPlanes(cfg, p, ws, gemm.MicroOf[T]())
}

func newPlanes[T gemm.Float](cfg PlanesConfig, p *pool.Pool, ws *gemm.Workspace, micro gemm.Micro[T]) (*Planes[T], error) {
	if p == nil {
		return nil, errors.New("conv: no pool")
	}
	if micro.SpreadRows() == 0 {
		return nil, nil
	}
	if ws == nil {
		ws = gemm.NewWorkspace()
	}
	k := &Planes[T]{cfg: cfg, micro: micro, pool: p, ws: ws}
	if err := k.check(); err != nil || k.empty() {
		return k, err
	}
	k.cut()
	k.describe()
	k.packed = gemm.Aligned[T](gemm.PackedLen(micro.SpreadRows(), len(k.at), k.filters))
	k.shift = make([]T, tiling.RoundUp(k.filters, micro.SpreadRows()))
	k.workers = make([]planesWorker[T], p.Workers())
	gemm.Reserve[T](ws, k.room*p.Workers())
	return k, nil
}

// check validates the configuration and computes the sizes.
func (k *Planes[T]) check() error {
	op, x, w := k.cfg.Op, k.cfg.X.Shape, k.cfg.W.Shape
	if x.Rank() != 4 || w.Rank() != 4 || x.At(1) != w.At(1) || op.Groups != 1 {
		return fmt.Errorf("conv: images %v and filters %v in %d groups", x, w, op.Groups)
	}
	for i := range 4 {
		if k.cfg.X.Stride[i] < 0 || k.cfg.W.Stride[i] < 0 {
			return errors.New("conv: negative strides")
		}
	}
	if k.cfg.X.Stride[3] != 1 && x.At(3) > 1 {
		return fmt.Errorf("conv: pixels at distances of %d", k.cfg.X.Stride[3])
	}
	k.images, k.channels, k.filters = x.At(0), x.At(1), w.At(0)
	for i, a := range []*axis{&k.h, &k.w} {
		*a = axis{in: x.At(2 + i), taps: w.At(2 + i), stride: op.Stride.At(i), dilation: op.Dilation.At(i), pad: op.Pad.At(i)}
		if err := a.fit(op.Pad.At(2 + i)); err != nil {
			return err
		}
	}
	k.need = Extent(k.cfg.X)
	return nil
}

// empty reports whether there is nothing to compute, or a sum of nothing.
func (k *Planes[T]) empty() bool { return k.images*k.filters*k.channels == 0 }

// pixels is the number of pixels of a plane of the result.
func (k *Planes[T]) pixels() int { return k.h.out * k.w.out }

// cut chooses work items.
func (k *Planes[T]) cut() {
	lines := k.cfg.X.Stride[2] == k.w.in || k.h.in == 1
	k.inPlace = k.h.taps*k.w.taps == 1 && k.h.stride*k.w.stride == 1 && k.pixels() == k.h.in*k.w.in && k.h.pad+k.w.pad == 0 && lines
	volume := float64(k.images) * float64(k.pixels()) * float64(k.filters) * float64(k.cfg.W.Shape.Elems()/k.filters)
	wanted := tiling.CeilDiv(max(min(int(volume/planesVolume), planesItems), 1), k.images)
	if k.inPlace {
		k.band = tiling.RoundUp(tiling.CeilDiv(k.pixels(), wanted), k.micro.SpreadColumns())
		k.bands = tiling.CeilDiv(k.pixels(), k.band)
		return
	}
	size := int(unsafe.Sizeof(*new(T)))
	k.wide = k.w.out + (k.w.taps-1)*k.w.dilation/k.w.stride
	k.line = min(k.w.stride, (k.w.taps-1)*k.w.dilation+1) * k.wide
	for k.band = evenly(k.h.out, tiling.CeilDiv(k.h.out, wanted)); ; k.band = evenly(k.h.out, k.band-1) {
		k.slots = (k.band-1)*k.h.stride + (k.h.taps-1)*k.h.dilation + 1
		k.room = tiling.RoundUp(k.channels*k.slots*k.line, 64/size)
		if k.band == 1 || k.room*size <= planesBytes {
			break
		}
	}
	k.bands = tiling.CeilDiv(k.h.out, k.band)
}

// describe lists where the rows of the patches begin.
func (k *Planes[T]) describe() {
	for c := range k.channels {
		for y := range k.h.taps {
			for x := range k.w.taps {
				if k.inPlace {
					k.at = append(k.at, c*k.cfg.X.Stride[1])
					continue
				}
				column := x * k.w.dilation
				k.at = append(k.at, (c*k.slots+y*k.h.dilation)*k.line+column%k.w.stride*k.wide+column/k.w.stride)
			}
		}
	}
}

// Bands is the number of blocks of the result for which a run calls its epilogue.
func (k *Planes[T]) Bands() int { return k.images * k.bands }

// Bytes is the memory that the plan keeps.
func (k *Planes[T]) Bytes() int64 {
	return int64(len(k.at))*8 + int64(len(k.packed)+len(k.shift))*int64(unsafe.Sizeof(*new(T)))
}

// Pack packs filters w, which begin with element 0 of the layout's memory, before the first run and after they have changed.
func (k *Planes[T]) Pack(w []T) error {
	if k.empty() {
		return nil
	}
	if need := Extent(k.cfg.W); len(w) < need {
		return fmt.Errorf("conv: filters %v need %d elements, the slice has %d", k.cfg.W.Shape, need, len(w))
	}
	k.run.src = w
	defer func() { k.run.src = nil }()
	k.pool.Run(tiling.CeilDiv(k.filters, k.micro.SpreadRows()), (*packPlanes[T])(k))
	return nil
}

// packPlanes packs a panel of filters.
type packPlanes[T gemm.Float] Planes[T]

func (t *packPlanes[T]) Do(_, item int) {
	l, rows := &t.cfg.W, t.micro.SpreadRows()
	first, step := item*rows, 0
	n := min(rows, t.filters-first)
	dst := t.packed[first*len(t.at):]
	for c := range t.channels {
		for y := range t.h.taps {
			for x := range t.w.taps {
				at := l.Offset + first*l.Stride[0] + c*l.Stride[1] + y*l.Stride[2] + x*l.Stride[3]
				vec.Gather(dst[step*rows:][:n], t.run.src[at:], l.Stride[0])
				step++
			}
		}
	}
}

// Run convolves x, which begins with element 0 of the layout's memory, and writes y, which begins with the first pixel. A nil
// finish or epilogue does nothing; the epilogue comes second, and has the matrix [N·O, OH·OW].
func (k *Planes[T]) Run(x, y []T, finish *PlanesFinish[T], epilogue Epilogue) error {
	if k.images*k.filters == 0 {
		return nil
	}
	reach := func(image, plane int) int { return (k.images-1)*image + (k.filters-1)*plane + k.pixels() }
	if f := finish; len(x) < k.need || len(y) < reach(k.cfg.Image, k.cfg.Plane) || f != nil &&
		(f.Shift != nil && len(f.Shift) < k.filters || f.Residual != nil && len(f.Residual) < reach(f.Image, f.Plane)) {
		return fmt.Errorf("conv: slices too short for images %v and filters %v: x has %d elements, y %d", k.cfg.X.Shape, k.cfg.W.Shape,
			len(x), len(y))
	}
	if k.empty() {
		return errors.New("conv: images without channels")
	}
	if finish != nil && finish.Shift != nil {
		copy(k.shift, finish.Shift[:k.filters])
	}
	mem := gemm.Acquire[T](k.ws)
	defer k.release()
	k.run.x, k.run.y, k.run.scratch, k.run.finish, k.run.epilogue = x, y, mem, finish, epilogue
	k.pool.Run(k.images*k.bands, (*planesTask[T])(k))
	return nil
}

// release drops the references to the caller's data and releases the workspace.
func (k *Planes[T]) release() {
	k.run = planesRun[T]{}
	for i := range k.workers {
		k.workers[i].finish = gemm.Finish[T]{}
	}
	k.ws.Release()
}

// planesTask computes some pixels of all planes of an image.
type planesTask[T gemm.Float] Planes[T]

func (t *planesTask[T]) Do(worker, item int) {
	k := (*Planes[T])(t)
	image, from := item/k.bands, item%k.bands*k.band
	if k.inPlace {
		n, step := min(k.band, k.pixels()-from), k.micro.SpreadColumns()
		x := k.run.x[k.cfg.X.Offset+image*k.cfg.X.Stride[0]:]
		for col := from; col < from+n; col += step {
			k.block(worker, image, col, min(step, from+n-col), x[col:])
		}
		k.finish(worker, image, item, from, n)
		return
	}
	n := min(k.band, k.h.out-from)
	mem := k.run.scratch[worker*k.room:][:k.room]
	k.copyLines(mem, image, from, n)
	for y := range n {
		k.block(worker, image, (from+y)*k.w.out, k.w.out, mem[y*k.h.stride*k.line:])
	}
	k.finish(worker, image, item, from*k.w.out, n*k.w.out)
}

// block computes pixels from one on of all planes of an image.
func (k *Planes[T]) block(worker, image, pixel, n int, patches []T) {
	var finish *gemm.Finish[T]
	if f := k.run.finish; f != nil {
		finish = &k.workers[worker].finish
		*finish = gemm.Finish[T]{Stride: f.Plane, Low: f.Low, High: f.High, Gate: f.Gate}
		if f.Shift != nil {
			finish.Shift = &k.shift[0]
		}
		if f.Residual != nil {
			finish.Residual = &f.Residual[image*f.Image+pixel]
		}
	}
	k.micro.Spread(k.at, k.filters, &k.packed[0], &patches[0], &k.run.y[image*k.cfg.Image+pixel], k.cfg.Plane, n, finish)
}

// finish calls the epilogue for pixels of all planes of an image.
func (k *Planes[T]) finish(worker, image, item, pixel, n int) {
	if k.run.epilogue != nil {
		k.run.epilogue.Tile(worker, item, image*k.filters, pixel, k.filters, n)
	}
}

// copyLines copies what lines of the result read, and zeros where that is outside of the image.
func (k *Planes[T]) copyLines(dst []T, image, from, n int) {
	x := &k.cfg.X
	phases := k.line / k.wide
	slots := (n-1)*k.h.stride + (k.h.taps-1)*k.h.dilation + 1
	for c := range k.channels {
		for slot := range slots {
			line := dst[(c*k.slots+slot)*k.line:][:k.line]
			y := from*k.h.stride - k.h.pad + slot
			if y < 0 || y >= k.h.in || k.w.in == 0 {
				clear(line)
				continue
			}
			src := k.run.x[x.Offset+image*x.Stride[0]+c*x.Stride[1]+y*x.Stride[2]:][:k.w.in]
			for phase := range phases {
				every(line[phase*k.wide:][:k.wide], src, phase-k.w.pad, k.w.stride)
			}
		}
	}
}

// every copies every so many elements of x from one on, which may be before the first, and zeros where there are none.
func every[T gemm.Float](dst, x []T, from, step int) {
	before := 0
	if from < 0 {
		before = min((-from+step-1)/step, len(dst))
	}
	clear(dst[:before])
	dst, from = dst[before:], from+before*step
	n := 0
	if from < len(x) {
		n = min((len(x)-from+step-1)/step, len(dst))
	}
	switch x = x[min(from, len(x)):]; {
	case step == 1:
		copy(dst[:n], x)
	case step == 2 && n > 0:
		x = x[:2*n-1]
		for i := range dst[:n] {
			dst[i] = x[2*i]
		}
	default:
		vec.Gather(dst[:n], x, step)
	}
	clear(dst[n:])
}
