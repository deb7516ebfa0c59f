package cpu

import (
	"fusec/graph"
	"fusec/kernels/cpu/vec"
)

// A pool2d takes the maximum or mean of windows. A row of the result is made in two steps: the rows of the image under
// it are combined into one, element by element; then, tap by tap, that row's elements under the same tap of all
// windows are combined into the result. Both run on vectors.
type pool2d[T float] struct {
	window
	env     *Env
	x, y    Operand
	combine func(acc, x []T)
	fill    func(dst []T, s T)
	div     func(dst, a, b []T)
	divBy   func(dst, a []T, s T)
	first   T // of no elements
	average bool
	counts  []T // of each window: its columns inside the image, or nil if padding counts
	rows    int // rows of the result, of all images and channels
	group   int // per item

	src, dst []T
}

// counts is the number of taps inside the image, of each window of a row.
func counts[T float](taps []tap, width int) []T {
	n := make([]T, width)
	for _, t := range taps {
		for i := t.lo; i < t.hi; i++ {
			n[i]++
		}
	}
	return n
}

var _ = answers.Add(floats(newPool[float32], newPool[float64]))

func newPool[T float](op graph.Pool, args, results []Operand, env *Env) (Kernel, error) {
	if op.Layout == graph.NHWC {
		return newPoolNHWC[T](op, args, results, env)
	}
	s, t := args[0].Layout.Shape, results[0].Layout.Shape
	k := &pool2d[T]{window: newWindow(op.Kernel, op.Stride, graph.IntsOf(1, 1), op.Pad, s, t.At(2), t.At(3)),
		env: env, x: args[0], y: results[0], rows: t.At(0) * t.At(1) * t.At(2)}
	code := vec.Of[T]()
	row := op.Fn.Info().Reduce.Info()
	k.combine, k.fill, k.div, k.divBy = accumulate(code.BinaryVV(row.Join)), code.Fill(), code.BinaryVV(graph.Div),
		code.BinaryVS(graph.Div)
	k.first, k.average = T(row.Identity), row.Averages
	if k.average && !op.CountPad {
		k.counts = counts[T](k.taps, k.outWidth)
	}
	k.group = max(grain/max(k.width*k.kernel[0], 1), 1)
	env.reserve(k.scratch() * dtypeOf[T]().Size())
	return k, nil
}

// accumulate turns a function of two vectors into one that adds to the first.
func accumulate[T float](f func(dst, a, b []T)) func(acc, x []T) {
	return func(acc, x []T) { f(acc, acc, x) }
}

// scratch is the number of elements of a combined row, and of the elements under one tap.
func (k *pool2d[T]) scratch() int { return roundLine[T](k.width) + k.outWidth }

// Run implements [Kernel].
func (k *pool2d[T]) Run(args, results []Memory) error {
	if k.y.Layout.Shape.Elems() == 0 {
		return nil
	}
	k.src, k.dst = numbers[T](args[0], k.x), numbers[T](results[0], k.y)
	k.env.Pool.Run(chunks(k.rows, k.group), k)
	k.src, k.dst = nil, nil
	return nil
}

// Do runs one item; see pool.Task.
func (k *pool2d[T]) Do(worker, item int) {
	scratch := scratchOf[T](k.env, worker, 0, k.scratch())
	for row := item * k.group; row < min((item+1)*k.group, k.rows); row++ {
		k.row(row, scratch[:k.width], scratch[roundLine[T](k.width):])
	}
}

// row makes one row of the result.
func (k *pool2d[T]) row(row int, sum, under []T) {
	plane, y := row/k.outHeight, row%k.outHeight*k.stride[0]-k.top
	lo, hi := overlap(y, k.kernel[0], 1, k.height)
	dst := k.dst[row*k.outWidth:][:k.outWidth]
	k.fill(dst, k.first)
	if lo < hi {
		image := k.src[plane*k.height*k.width:]
		first := image[(y+lo)*k.width:][:k.width]
		if hi-lo > 1 {
			copy(sum, first)
			for ky := lo + 1; ky < hi; ky++ {
				k.combine(sum, image[(y+ky)*k.width:][:k.width])
			}
			first = sum
		}
		for _, t := range k.taps {
			n := t.hi - t.lo
			switch {
			case n <= 0:
			case k.stride[1] == 1:
				k.combine(dst[t.lo:t.hi], first[t.from:][:n])
			default:
				vec.Gather(under[:n], first[t.from:], k.stride[1])
				k.combine(dst[t.lo:t.hi], under[:n])
			}
		}
	}
	switch {
	case !k.average:
	case k.counts != nil:
		k.div(dst, dst, k.counts)
		k.divBy(dst, dst, T(hi-lo))
	default:
		k.divBy(dst, dst, T(k.kernel[0]*k.kernel[1]))
	}
}

// bytes is the memory of the divisors.
func (k *pool2d[T]) bytes() int64 { return int64(len(k.counts) * dtypeOf[T]().Size()) }
