package cpu

import (
	"math"

	"fusec/graph"
	"fusec/kernels/cpu/vec"
)

// A pool2dGrad passes the gradient of each window to the elements that made it: all, or the first that is largest.
// One item is a group of planes.
type pool2dGrad[T float] struct {
	window
	env       *Env
	x, dy, dx Operand
	code      poolCode
	add       func(acc, x []T)
	div       func(dst, a, b []T)
	divBy     func(dst, a []T, s T)
	fill      func(dst []T, s T)
	greater   func(dst, a, b []T)
	choose    func(dst, m, b []T, s T)
	max       func(acc, x []T)
	counts    []T   // as in pool2d
	places    []int // of the taps, from the first
	planes    int
	group     int

	src, grad, dst []T
}

var _ = answers.Add(floats(newPoolGrad[float32], newPoolGrad[float64]))

func newPoolGrad[T float](op graph.PoolGrad, args, results []Operand, env *Env) (Kernel, error) {
	if op.Layout == graph.NHWC {
		return newPoolGradNHWC[T](op, args, results, env)
	}
	s, t := args[0].Layout.Shape, args[1].Layout.Shape
	k := &pool2dGrad[T]{window: newWindow(op.Kernel, op.Stride, graph.IntsOf(1, 1), op.Pad, s, t.At(2), t.At(3)),
		env: env, x: args[0], dy: args[1], dx: results[0], code: pools[op.Fn], planes: s.At(0) * s.At(1)}
	code := vec.Of[T]()
	k.add, k.div, k.divBy = code.AddTo, code.BinaryVV(graph.Div), code.BinaryVS(graph.Div)
	k.fill, k.greater, k.choose, k.max = code.Fill(), code.BinaryVV(graph.Gt), code.SelectVSV(), code.MaxTo
	if k.code == allElements && !op.CountPad {
		k.counts = counts[T](k.taps, k.outWidth)
	}
	for ky := range k.kernel[0] {
		for kx := range k.kernel[1] {
			k.places = append(k.places, ky*k.width+kx)
		}
	}
	k.group = max(grain/max(k.height*k.width, 1), 1)
	env.reserve(k.scratch() * dtypeOf[T]().Size())
	return k, nil
}

// scratch is the number of elements of four rows of windows, or of one and a row of the image.
func (k *pool2dGrad[T]) scratch() int {
	return roundLine[T](k.outWidth) + max(3*roundLine[T](k.outWidth), k.width)
}

// Run implements [Kernel].
func (k *pool2dGrad[T]) Run(args, results []Memory) error {
	if k.dx.Layout.Shape.Elems() == 0 {
		return nil
	}
	k.src, k.grad = numbers[T](args[0], k.x), numbers[T](args[1], k.dy)
	k.dst = numbers[T](results[0], k.dx)
	k.env.Pool.Run(chunks(k.planes, k.group), k)
	k.src, k.grad, k.dst = nil, nil, nil
	return nil
}

// Do runs one item; see pool.Task.
func (k *pool2dGrad[T]) Do(worker, item int) {
	scratch := scratchOf[T](k.env, worker, 0, k.scratch())
	size, out, line := k.height*k.width, k.outHeight*k.outWidth, roundLine[T](k.outWidth)
	part := func(i, n int) []T { return scratch[i*line:][:n] }
	for p := item * k.group; p < min((item+1)*k.group, k.planes); p++ {
		dst, grad := k.dst[p*size:][:size], k.grad[p*out:][:out]
		clear(dst)
		for oy := range k.outHeight {
			row := grad[oy*k.outWidth:][:k.outWidth]
			if k.code == allElements {
				k.share(dst, row, oy, part(0, k.outWidth), part(1, k.width))
			} else {
				n := k.outWidth
				k.award(dst, k.src[p*size:][:size], row, oy, part(0, n), part(1, n), part(2, n), part(3, n))
			}
		}
	}
}

// share divides the gradients of one row of windows among their elements: first along the row, then down the columns.
func (k *pool2dGrad[T]) share(dst, grad []T, oy int, each, row []T) {
	y := oy*k.stride[0] - k.top
	lo, hi := overlap(y, k.kernel[0], 1, k.height)
	if lo >= hi {
		return
	}
	if k.counts != nil {
		k.div(each, grad, k.counts)
		k.divBy(each, each, T(hi-lo))
	} else {
		k.divBy(each, grad, T(k.kernel[0]*k.kernel[1]))
	}
	clear(row)
	for _, t := range k.taps {
		if t.lo >= t.hi {
			continue
		}
		to := t.from
		for _, g := range each[t.lo:t.hi] {
			row[to] += g
			to += k.stride[1]
		}
	}
	for ky := lo; ky < hi; ky++ {
		k.add(dst[(y+ky)*k.width:][:k.width], row)
	}
}

// award gives the gradients of one row of windows to the first of the largest elements of each. The taps of all
// windows are compared at once, in row-major order. most and best are what each window has found; under and mask hold
// one tap's elements and where they are larger.
func (k *pool2dGrad[T]) award(dst, src, grad []T, oy int, most, best, under, mask []T) {
	y := oy*k.stride[0] - k.top
	lo, hi := overlap(y, k.kernel[0], 1, k.height)
	k.fill(most, T(math.Inf(-1)))
	k.fill(best, -1)
	for ky := lo; ky < hi; ky++ {
		row := src[(y+ky)*k.width:][:k.width]
		for kx, t := range k.taps {
			n := t.hi - t.lo
			if n <= 0 {
				continue
			}
			if n < 4 { // fewer than a vector holds
				for i := range n {
					u, j := row[t.from+i*k.stride[1]], t.lo+i
					if u > most[j] {
						best[j] = T(ky*k.kernel[1] + kx)
					}
					if u > most[j] || u != u {
						most[j] = u
					}
				}
				continue
			}
			vec.Gather(under[:n], row[t.from:], k.stride[1])
			k.greater(mask[:n], under[:n], most[t.lo:t.hi])
			k.choose(best[t.lo:t.hi], mask[:n], best[t.lo:t.hi], T(ky*k.kernel[1]+kx))
			k.max(most[t.lo:t.hi], under[:n])
		}
	}
	for ox, g := range grad {
		x, tap := ox*k.stride[1]-k.left, int(best[ox])
		if m := most[ox]; tap < 0 || m != m {
			if tap = k.search(src, y, x); tap < 0 {
				continue
			}
		}
		dst[y*k.width+x+k.places[tap]] += g
	}
}

// search is the first tap of a window that is −Inf or NaN, of those that have nothing larger; −1 in the padding.
func (k *pool2dGrad[T]) search(src []T, y, x int) int {
	ylo, yhi := overlap(y, k.kernel[0], 1, k.height)
	xlo, xhi := overlap(x, k.kernel[1], 1, k.width)
	first := -1
	for ky := ylo; ky < yhi; ky++ {
		for kx := xlo; kx < xhi; kx++ {
			if v := src[(y+ky)*k.width+x+kx]; v != v {
				return ky*k.kernel[1] + kx
			}
			if first < 0 {
				first = ky*k.kernel[1] + kx
			}
		}
	}
	return first
}

// bytes is the memory of the divisors and places.
func (k *pool2dGrad[T]) bytes() int64 {
	return int64(len(k.counts)*dtypeOf[T]().Size() + 8*len(k.places))
}
