package cpu

import (
	"math"

	"fusec/graph"
)

// A poolNHWC takes the maximum or mean of windows of images in NHWC: the channels of a window's elements are combined as
// vectors. One item is a group of rows of the result.
type poolNHWC[T float] struct {
	window
	env      *Env
	x, y     Operand
	fn       graph.PoolFn
	countPad bool
	empty    T // the maximum or sum of nothing
	combine  func(acc, x []T)
	fill     func(dst []T, s T)
	divBy    func(dst, a []T, s T)
	channels int
	rows     int // of the result, of all images
	group    int // per item

	src, dst []T
}

func newPoolNHWC[T float](op graph.Pool, args, results []Operand, env *Env) *poolNHWC[T] {
	n, c, height, width := graph.NHWC.ImageDims(args[0].Layout.Shape)
	_, _, oh, ow := graph.NHWC.ImageDims(results[0].Layout.Shape)
	code := opcodes[T]()
	k := &poolNHWC[T]{window: newWindow(op.Kernel, op.Stride, graph.IntsOf(1, 1), op.Pad, graph.NCHW.Image(n, c, height, width), oh, ow),
		env: env, x: args[0], y: results[0], fn: op.Fn, countPad: op.CountPad, empty: T(math.Inf(-1)), combine: code.MaxTo, fill: code.Fill(),
		divBy: code.BinaryVS(graph.Div), channels: c, rows: n * oh}
	if op.Fn == graph.AvgPool {
		k.empty, k.combine = 0, code.AddTo
	}
	k.group = max(grain/max(ow*c*k.kernel[0]*k.kernel[1], 1), 1)
	return k
}

// Run implements [Kernel].
func (k *poolNHWC[T]) Run(args, results []Memory) error {
	if k.y.Layout.Shape.Elems() == 0 {
		return nil
	}
	k.src, k.dst = numbers[T](args[0], k.x), numbers[T](results[0], k.y)
	k.env.Pool.Run(chunks(k.rows, k.group), k)
	k.src, k.dst = nil, nil
	return nil
}

// Do runs one item; see pool.Task.
func (k *poolNHWC[T]) Do(_, item int) {
	for row := item * k.group; row < min((item+1)*k.group, k.rows); row++ {
		image := k.src[row/k.outHeight*k.height*k.width*k.channels:]
		for ox := range k.outWidth {
			k.position(k.dst[(row*k.outWidth+ox)*k.channels:][:k.channels], image, row%k.outHeight, ox)
		}
	}
}

// inside gives the first row and column of the image that a window reads, and the number of rows and columns.
func (w *window) inside(oy, ox int) (y, x, rows, cols int) {
	y, x = oy*w.stride[0]-w.top, ox*w.stride[1]-w.left
	ylo, yhi := overlap(y, w.kernel[0], 1, w.height)
	xlo, xhi := overlap(x, w.kernel[1], 1, w.width)
	return y + ylo, x + xlo, yhi - ylo, xhi - xlo
}

// position combines one window.
func (k *poolNHWC[T]) position(dst, image []T, oy, ox int) {
	y, x, rows, cols := k.inside(oy, ox)
	if rows*cols == 0 {
		k.fill(dst, k.empty)
	}
	for i := range rows * cols {
		from := image[((y+i/cols)*k.width+x+i%cols)*k.channels:][:k.channels]
		if i == 0 {
			copy(dst, from)
		} else {
			k.combine(dst, from)
		}
	}
	if k.fn == graph.AvgPool {
		k.divBy(dst, dst, T(k.divisor(k.countPad, rows*cols)))
	}
}

// divisor is that of the mean of a window with so many elements inside the image.
func (w *window) divisor(countPad bool, inside int) int {
	if countPad {
		return w.kernel[0] * w.kernel[1]
	}
	return inside
}

// poolGradChannels is the number of channels that one item of a [poolGradNHWC] handles.
const poolGradChannels = 32

// A poolGradNHWC passes the gradient of each window of images in NHWC to the elements that made it: all, or the first
// that is largest. One item is some channels of an image.
type poolGradNHWC[T float] struct {
	window
	env       *Env
	x, dy, dx Operand
	op        graph.PoolGrad
	channels  int
	images    int
	parts     int // items per image

	src, grad, dst []T
}

func newPoolGradNHWC[T float](op graph.PoolGrad, args, results []Operand, env *Env) *poolGradNHWC[T] {
	n, c, height, width := graph.NHWC.ImageDims(args[0].Layout.Shape)
	_, _, oh, ow := graph.NHWC.ImageDims(args[1].Layout.Shape)
	return &poolGradNHWC[T]{window: newWindow(op.Kernel, op.Stride, graph.IntsOf(1, 1), op.Pad, graph.NCHW.Image(n, c, height, width), oh, ow),
		env: env, x: args[0], dy: args[1], dx: results[0], op: op, channels: c, images: n, parts: chunks(c, poolGradChannels)}
}

// Run implements [Kernel].
func (k *poolGradNHWC[T]) Run(args, results []Memory) error {
	if k.dx.Layout.Shape.Elems() == 0 {
		return nil
	}
	k.src, k.grad, k.dst = numbers[T](args[0], k.x), numbers[T](args[1], k.dy), numbers[T](results[0], k.dx)
	k.env.Pool.Run(k.images*k.parts, k)
	k.src, k.grad, k.dst = nil, nil, nil
	return nil
}

// Do runs one item; see pool.Task.
func (k *poolGradNHWC[T]) Do(_, item int) {
	image, lo := item/k.parts, item%k.parts*poolGradChannels
	n := min(poolGradChannels, k.channels-lo)
	pixels := k.height * k.width
	src, dst := k.src[image*pixels*k.channels:], k.dst[image*pixels*k.channels:]
	for i := range pixels {
		clear(dst[i*k.channels+lo:][:n])
	}
	for i := range k.outHeight * k.outWidth {
		grad := k.grad[((image*k.outHeight*k.outWidth)+i)*k.channels+lo:][:n]
		y, x, rows, cols := k.inside(i/k.outWidth, i%k.outWidth)
		at := (y*k.width+x)*k.channels + lo // of the first element inside
		if k.op.Fn == graph.MaxPool {
			for c, g := range grad {
				if first := k.first(src, at+c, rows, cols); first >= 0 {
					dst[first] += g
				}
			}
			continue
		}
		divisor := T(k.divisor(k.op.CountPad, rows*cols))
		for j := range rows * cols {
			to := dst[at+(j/cols*k.width+j%cols)*k.channels:][:n]
			for c, g := range grad {
				to[c] += g / divisor
			}
		}
	}
}

// first is the first of the largest elements of a channel of a window, or its first NaN; −1 if all is padding.
func (k *poolGradNHWC[T]) first(src []T, at, rows, cols int) int {
	best := -1
	for j := range rows * cols {
		e := at + (j/cols*k.width+j%cols)*k.channels
		if best < 0 || src[e] > src[best] || src[e] != src[e] && src[best] == src[best] {
			best = e
		}
	}
	return best
}
