package cpu

import (
	"fmt"
	"unsafe"

	"fusec/graph"
	"fusec/kernels/cpu/vec"
)

// A window is how a kernel slides over images [images, channels, height, width]. It has [outHeight, outWidth]
// positions.
type window struct {
	kernel, stride, dilation [2]int
	top, left                int // padding
	height, width            int
	outHeight, outWidth      int
	taps                     []tap // the columns of the kernel
}

// A tap is one column of the kernel: the positions lo to hi have it inside the image, that of lo at column from.
type tap struct{ lo, hi, from int }

func newWindow(kernel, stride, dilation, pad graph.Ints, image graph.Shape, outHeight, outWidth int) window {
	pair := func(l graph.Ints) [2]int { return [2]int{l.At(0), l.At(1)} }
	w := window{pair(kernel), pair(stride), pair(dilation), pad.At(0), pad.At(1),
		image.At(2), image.At(3), outHeight, outWidth, make([]tap, kernel.At(1))}
	for kx := range w.taps {
		start := kx*w.dilation[1] - w.left
		lo, hi := overlap(start, outWidth, w.stride[1], w.width)
		w.taps[kx] = tap{lo, hi, start + lo*w.stride[1]}
	}
	return w
}

// overlap gives the offsets lo to hi of a window's taps, dilation apart, that hit one of size elements, if the first
// tap is at start.
func overlap(start, kernel, dilation, size int) (lo, hi int) {
	if start < 0 {
		lo = (-start + dilation - 1) / dilation
	}
	hi = kernel
	if start+(kernel-1)*dilation >= size {
		hi = (size - start + dilation - 1) / dilation
	}
	return min(lo, kernel), max(hi, min(lo, kernel), 0)
}

// patchRows is the number of elements of a patch that are handled at once for a row of positions: as many as fill half
// of a first-level cache.
func (w *window) patchRows(patch, size int) int {
	return min(max((1<<14)/max(w.outWidth*size, 1), 8), max(patch, 1))
}

// scratchUnits is n elements of a worker's scratch.
func scratchUnits[E any](e *Env, worker, n int) []E {
	p := unsafe.Pointer(unsafe.SliceData(scratchOf[float64](e, worker, 0, 1)))
	return unsafe.Slice((*E)(p), n)
}

// An unfolder turns images into patches. For some elements of the patches of a row of positions it gathers what all
// positions have there, and transposes that into the patches; one item is a group of rows of positions.
type unfolder[E unit] struct {
	window
	env      *Env
	x, y     Operand
	channels int
	rows     int // rows of positions of all images
	group    int // per item
	patch    int // elements of a patch
	step     int // of them at once

	src, dst []E
}

var _ = answers.Add(moves(newIm2Col)).Add(own(newCol2Im))

func newIm2Col(op graph.Im2Col, args, results []Operand, env *Env) Kernel {
	return bySize(args[0].DType, makeIm2Col[uint8], makeIm2Col[uint16], makeIm2Col[uint32], makeIm2Col[uint64])(op, args, results, env)
}

func makeIm2Col[E unit](op graph.Im2Col, args, results []Operand, env *Env) Kernel {
	s, t := args[0].Layout.Shape, results[0].Layout.Shape
	k := &unfolder[E]{window: newWindow(op.Kernel, op.Stride, op.Dilation, op.Pad, s, t.At(1), t.At(2)),
		env: env, x: args[0], y: results[0], channels: s.At(1), rows: t.At(0) * t.At(1), patch: t.At(3)}
	k.group = max(grain/max(t.At(2)*k.patch, 1), 1)
	size := args[0].DType.Size()
	k.step = k.patchRows(k.patch, size)
	env.reserve(k.step * k.outWidth * size)
	return k
}

// Run implements [Kernel].
func (k *unfolder[E]) Run(args, results []Memory) error {
	if k.y.Layout.Shape.Elems() == 0 {
		return nil
	}
	k.src = elems[E](args[0])[k.x.Layout.Offset:]
	k.dst = elems[E](results[0])[k.y.Layout.Offset:]
	k.env.Pool.Run(chunks(k.rows, k.group), k)
	k.src, k.dst = nil, nil
	return nil
}

// Do runs one item; see pool.Task.
func (k *unfolder[E]) Do(worker, item int) {
	scratch := scratchUnits[E](k.env, worker, k.step*k.outWidth)
	for row := item * k.group; row < min((item+1)*k.group, k.rows); row++ {
		dst := k.dst[row*k.outWidth*k.patch:]
		if k.runs() {
			k.copyRow(dst, row)
			continue
		}
		for lo := 0; lo < k.patch; lo += k.step {
			n := min(k.step, k.patch-lo)
			for i := range n {
				k.collect(scratch[i*k.outWidth:][:k.outWidth], row, lo+i)
			}
			transpose(dst[lo:], k.patch, scratch, k.outWidth, n, k.outWidth)
		}
	}
}

// runs reports whether patches are copied one by one, in runs of a row of the kernel: those are longer than the rows of
// positions.
func (w *window) runs() bool { return w.dilation[1] == 1 && w.outWidth < w.kernel[1] }

// copyRow makes the patches of a row of positions.
func (k *unfolder[E]) copyRow(dst []E, row int) {
	kh, kw := k.kernel[0], k.kernel[1]
	image, top := row/k.outHeight, row%k.outHeight*k.stride[0]-k.top
	for ox := range k.outWidth {
		left := ox*k.stride[1] - k.left
		lo, hi := overlap(left, kw, 1, k.width)
		for c := range k.channels {
			plane := (image*k.channels + c) * k.height * k.width
			for ky := range kh {
				part, y := dst[:kw], top+ky*k.dilation[0]
				dst = dst[kw:]
				if y < 0 || y >= k.height || lo >= hi {
					clear(part)
					continue
				}
				clear(part[:lo])
				copy(part[lo:hi], k.src[plane+y*k.width+left+lo:])
				clear(part[hi:])
			}
		}
	}
}

// collect gathers one element of the patches of a row of positions.
func (k *unfolder[E]) collect(dst []E, row, element int) {
	at, t := k.line(row, element, k.channels)
	if at < 0 || t.lo >= t.hi {
		clear(dst)
		return
	}
	clear(dst[:t.lo])
	vec.Gather(dst[t.lo:t.hi], k.src[at:], k.stride[1])
	clear(dst[t.hi:])
}

// line tells where in the images the given element of the patches of a row of positions begins: that of the first
// position which has it inside, or −1 if the row is outside.
func (w *window) line(row, element, channels int) (at int, t tap) {
	kh, kw := w.kernel[0], w.kernel[1]
	image, oy := row/w.outHeight, row%w.outHeight
	y := oy*w.stride[0] - w.top + element/kw%kh*w.dilation[0]
	if y < 0 || y >= w.height {
		return -1, tap{}
	}
	t = w.taps[element%kw]
	return ((image*channels+element/(kh*kw))*w.height+y)*w.width + t.from, t
}

// foldChannels is the number of channels that one item of a [folder] sums: their part of a patch fills a few lines.
const foldChannels = 16

// A folder sums patches into images, one item some channels of an image, in the order of the rows of positions. It is
// an unfolder that runs backwards.
type folder[E unit, T number] struct {
	window
	env      *Env
	x, y     Operand
	channels int
	add      func(acc, x []T)
	parts    int // items per image
	items    int
	patch    int
	step     int

	src, dst []T
}

func newCol2Im(op graph.Col2Im, args, results []Operand, env *Env) (Kernel, error) {
	switch d := args[0].DType; {
	case d == graph.F32:
		return makeCol2Im[uint32, float32](op, args, results, env), nil
	case d == graph.F64:
		return makeCol2Im[uint64, float64](op, args, results, env), nil
	case d.IsInt(): // unsigned ones have the sums of signed ones
		return bySize(d, makeCol2Im[uint8, int8], makeCol2Im[uint16, int16], makeCol2Im[uint32, int32],
			makeCol2Im[uint64, int64])(op, args, results, env), nil
	default:
		return nil, fmt.Errorf("col2im: the CPU has no sum of %v", d)
	}
}

func makeCol2Im[E unit, T number](op graph.Col2Im, args, results []Operand, env *Env) Kernel {
	s, t := args[0].Layout.Shape, results[0].Layout.Shape
	k := &folder[E, T]{window: newWindow(op.Kernel, op.Stride, op.Dilation, op.Pad, t, s.At(1), s.At(2)),
		env: env, x: args[0], y: results[0], channels: t.At(1), add: adder[T](), patch: s.At(3)}
	k.parts = chunks(k.channels, foldChannels)
	k.items = t.At(0) * k.parts
	size := args[0].DType.Size()
	k.step = k.patchRows(k.patch, size)
	env.reserve(k.step * k.outWidth * size)
	return k
}

// Run implements [Kernel].
func (k *folder[E, T]) Run(args, results []Memory) error {
	if k.y.Layout.Shape.Elems() == 0 {
		return nil
	}
	k.src = elems[T](args[0])[k.x.Layout.Offset:]
	k.dst = elems[T](results[0])[k.y.Layout.Offset:]
	k.env.Pool.Run(k.items, k)
	k.src, k.dst = nil, nil
	return nil
}

// Do runs one item; see pool.Task.
func (k *folder[E, T]) Do(worker, item int) {
	image, lo := item/k.parts, item%k.parts*foldChannels
	hi := min(lo+foldChannels, k.channels)
	plane, taps := k.height*k.width, k.kernel[0]*k.kernel[1]
	clear(k.dst[(image*k.channels+lo)*plane : (image*k.channels+hi)*plane])
	scratch := scratchUnits[T](k.env, worker, k.step*k.outWidth)
	for oy := range k.outHeight {
		row := image*k.outHeight + oy
		src := recast[E](k.src[row*k.outWidth*k.patch:])
		for at := lo * taps; at < hi*taps; at += k.step {
			n := min(k.step, hi*taps-at)
			transpose(recast[E](scratch), k.outWidth, src[at:], k.patch, k.outWidth, n)
			for i := range n {
				k.spread(scratch[i*k.outWidth:][:k.outWidth], row, at+i)
			}
		}
	}
}

// spread adds one element of the patches of a row of positions.
func (k *folder[E, T]) spread(src []T, row, element int) {
	at, t := k.line(row, element, k.channels)
	if at < 0 || t.lo >= t.hi {
		return
	}
	src = src[t.lo:t.hi]
	if k.stride[1] == 1 {
		k.add(k.dst[at:][:len(src)], src)
		return
	}
	for _, v := range src {
		k.dst[at] += v
		at += k.stride[1]
	}
}
