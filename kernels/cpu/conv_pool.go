package cpu

import (
	"fmt"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/conv"
	"fusec/kernels/cpu/depthwise"
	"fusec/kernels/cpu/gemm"
)

// A convPool convolves images of NHWC and takes the maxima or means of windows of what it makes, which nothing stores: an item
// computes some rows of the convolution into a strip of memory that stays in the cache, and then the windows that lie in them.
// Rows that the next windows need, too, stay in the strip. A bias, a residual and bounds are applied to sums in registers.
type convPool[T float] struct {
	env  *Env
	plan *conv.Plan[T]
	x, w int // arguments

	finish  gemm.MatrixFinish[T]
	fused   *fusedFinish[T]
	filters *conv.Filters[T] // of frozen filters
	warm    bool             // filters are packed

	y       Operand
	maximum *depthwise.Maximum[T]     // or nil
	mean    *depthwise.Correlation[T] // or nil
	sums    depthwise.Finish[T]       // of mean

	images int
	height int // rows of windows of an image
	group  int // of an item
	parts  int // items of an image
	line   int // elements of a row of the convolution
	strip  int // rows
	after  int // element of the scratch behind the strip
}

// Sizes of a convPool.
const (
	// stripBytes bounds a strip, if windows need no more.
	stripBytes = 256 << 10
	// poolItems is the number of items, if images have rows for them.
	poolItems = 8
	// poolRows is how many times as many rows of the convolution an item has at least as it shares with the next one.
	poolRows = 8
)

// TakesPool reports, as an error, why a fusion of a convolution and a pool has no kernel.
func TakesPool(b *body.Program) error {
	s := &b.Stores[0]
	op, ok := b.Anchor.Op.(graph.Conv2D)
	if !ok || op.Layout != graph.NHWC || op.Winograd != 0 ||
		isChannelwise(op.Groups, b.Operands[0].Layout.Shape.At(3), b.Operands[0].Layout, b.Operands[1].Layout) {
		return fmt.Errorf("the CPU has no kernel for %s and a pool in one", b.Anchor.Where())
	}
	suits := byFloat(b.Lane, suitsPool[float32], suitsPool[float64])
	if s.Pool == nil || !suits(b) {
		return fmt.Errorf("the CPU has no kernel for what is between %s and its pool", b.Anchor.Where())
	}
	return nil
}

// suitsPool reports whether a body's work on sums is a finish of package conv.
func suitsPool[T float](b *body.Program) bool {
	f := fusedFinishOf[T](b, 3)
	if f == nil || f.scale != nil {
		return false
	}
	if f.residual != nil {
		_, ok := pixelRows(f.residual.Layout)
		return ok
	}
	return true
}

// pixelRows is images of NHWC as a matrix with a row for each pixel, if they can be seen so.
func pixelRows(l graph.Layout) (graph.Layout, bool) {
	s := l.Shape
	l, ok := l.Reshape(graph.ShapeOf(s.At(0)*s.At(1)*s.At(2), s.At(3)))
	return l, ok && unitColumns(l)
}

func newConvPool[T float](b *body.Program, args, results []Operand, env *Env) (Kernel, error) {
	if err := TakesPool(b); err != nil {
		return nil, err
	}
	x, w, out, store := b.Operands[0], b.Operands[1], b.Space, &b.Stores[0]
	op, pool := b.Anchor.Op.(graph.Conv2D), store.Pool.Op.(graph.Pool)
	k := &convPool[T]{env: env, x: x.Arg, w: w.Arg, fused: fusedFinishOf[T](b, 3), y: results[0], sums: depthwise.Unfinished[T](),
		images: out.At(0), line: out.At(2) * out.At(3)}
	k.y.Layout = store.Layout
	k.height = k.y.Layout.Shape.At(1)
	k.finish = gemm.MatrixFinish[T]{Low: k.fused.low, High: k.fused.high, Gate: k.fused.gate}
	if k.fused.residual != nil {
		l, _ := pixelRows(k.fused.residual.Layout)
		k.finish.RowStride = l.Stride[0]
	}
	cfg := conv.Config[T]{Op: op, X: x.Layout, W: w.Layout, RowStride: out.At(3), Band: max(out.At(1)*out.At(2), 1)}
	if band := env.Tuning.bandOf(op, x, w); band > 0 {
		cfg.Band = min(cfg.Band, band)
	}
	cfg.Band = min(cfg.Band, stripPixels)
	var err error
	if args[k.w].Frozen && out.Elems() > 0 {
		if k.filters, err = conv.NewFilters[T](op.Groups, w.Layout, env.Pool); err != nil {
			return nil, err
		}
		cfg.Filters = k.filters
	}
	if k.plan, err = conv.New(cfg, env.Pool, env.gemm); err != nil {
		return nil, err
	}
	k.cut(pool, out)
	g := windowsOf(pool, out, k.y.Layout.Shape)
	from, to, workers := depthwise.Packed(g.Size, g.Channels), imageOf(k.y.Layout), env.Pool.Workers()
	k.after = roundLine[T](k.strip * k.line)
	n := k.after
	if pools[pool.Fn] == oneElement {
		k.maximum = depthwise.NewMaximum[T](g, from, to, workers)
	} else {
		k.mean = depthwise.NewMean[T](g, pool.CountPad, from, to, workers)
		n += k.mean.Scratch()
	}
	env.reserve(n * dtypeOf[T]().Size())
	return k, nil
}

// stripPixels bounds the pixels that are convolved at once.
const stripPixels = 256

// cut decides the rows of an item and of its strip.
func (k *convPool[T]) cut(pool graph.Pool, out graph.Shape) {
	kernel, stride := pool.Kernel.At(0), pool.Stride.At(0)
	least := (poolRows*max(kernel-stride, 0) + stride - 1) / stride
	parts := max(poolItems/max(k.images, 1), 1)
	k.group = min(max(chunksOf(k.height, parts), least, 1), max(k.height, 1))
	k.parts = chunksOf(k.height, k.group)
	k.strip = min(max(stripBytes/max(k.line*dtypeOf[T]().Size(), 1), kernel), out.At(1))
}

// Run implements [Kernel].
func (k *convPool[T]) Run(args, results []Memory) error {
	if k.y.Layout.Shape.Elems() == 0 {
		return nil
	}
	w := elems[T](args[k.w])
	if k.filters != nil && !k.warm {
		if err := k.filters.Update(w); err != nil {
			return err
		}
		k.warm = true
	}
	k.finish.Shift, _, k.finish.Residual = k.fused.operands(args)
	defer func() { k.finish.Shift, k.finish.Residual = nil, nil }()
	if err := k.plan.Begin(elems[T](args[k.x]), w, &k.finish); err != nil {
		return err
	}
	defer k.plan.End()
	y := numbers[T](results[0], k.y)
	if k.maximum != nil {
		k.maximum.Bind(nil, y)
		defer k.maximum.Bind(nil, nil)
	} else {
		k.mean.Bind(nil, nil, y, k.sums)
		defer k.mean.Bind(nil, nil, nil, k.sums)
	}
	k.env.Pool.Run(k.images*k.parts, k)
	return nil
}

// Do computes one item; see pool.Task.
func (k *convPool[T]) Do(worker, item int) {
	image, lo := item/k.parts, item%k.parts*k.group
	hi := min(lo+k.group, k.height)
	scratch := scratchOf[T](k.env, worker, 0, k.after+k.room())
	strip := scratch[:k.strip*k.line]
	first, end := 0, 0 // of the rows in the strip
	for lo < hi {
		next := lo + 1 // as many rows of windows as lie in a strip
		from, to := k.span(lo, next)
		for next < hi {
			if _, more := k.span(lo, next+1); more-from > k.strip {
				break
			}
			next++
			_, to = k.span(lo, next)
		}
		if from < to {
			if from >= end || end == 0 {
				first, end = from, from
			}
			copy(strip, strip[(from-first)*k.line:(end-first)*k.line])
			first = from
			if end < to {
				k.plan.Lines(worker, image, end, to-end, strip[(end-first)*k.line:])
				end = to
			}
		}
		if base := -first * k.line; k.maximum != nil {
			k.maximum.DoRows(worker, image, lo, next, strip, base)
		} else {
			k.mean.DoRowsOf(worker, image, lo, next, strip, base, scratch[k.after:], &k.sums)
		}
		lo = next
	}
}

// room is the number of elements of scratch that a mean needs.
func (k *convPool[T]) room() int {
	if k.mean == nil {
		return 0
	}
	return k.mean.Scratch()
}

// span is the rows of the convolution that rows lo to hi of windows need.
func (k *convPool[T]) span(lo, hi int) (first, end int) {
	if k.maximum != nil {
		return k.maximum.Span(lo, hi)
	}
	return k.mean.Span(lo, hi)
}

func (k *convPool[T]) thaw() { k.warm = false }

func (k *convPool[T]) bytes() int64 {
	n := k.plan.Bytes()
	if k.filters != nil {
		n += int64(k.filters.Bytes())
	}
	if k.maximum != nil {
		return n + k.maximum.Bytes()
	}
	return n + k.mean.Bytes()
}
