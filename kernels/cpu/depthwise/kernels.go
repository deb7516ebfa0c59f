package depthwise

import (
	"math"
	"unsafe"

	"fusec/kernels/cpu/vec"
)

// Float is the element type of images.
type Float interface{ float32 | float64 }

// A pass is the argument of a kernel: a run of pixels, all of whose windows have rows·cols taps. Strides and channels
// are in bytes. The assembly knows the order of the fields.
type pass[T Float] struct {
	pixels, channels int
	rows, cols       int // of the window; both are 0 if one is
	x                *T  // under the first tap of the first pixel
	xPixel           int // from pixel to pixel,
	xRow, xCol       int // and from tap to tap
	w                *T  // of the first tap
	wRow, wCol       int
	y                *T // of the first pixel
	yPixel           int

	// What follows a sum: it is multiplied by scale, shift is added, each one number for each channel, it is divided by
	// divisor, residual is added, it is gated, and it is kept between low and high. What is nil or 0 is left out. A NaN stays a NaN.
	scale, shift, residual *T
	residualPixel          int
	low, high, divisor     T
	gate                   vec.Gate[T]
}

// A kernel is the set of routines that one instruction set offers for one element type. Their argument is the address
// of a pass's first field.
type kernel[T Float] struct {
	name string
	// correlate sets, of each pixel, y to the sum of x·w over the window, and applies what follows.
	correlate func(*int)
	// slide is correlate for windows of 3×3 that move by one column, followed by shift, gate and bounds alone. It is nil if there is
	// none.
	slide func(*int)
	// greatest sets, of each pixel, y to the greatest x of the window, NaN if there is one, −Inf of nothing.
	greatest func(*int)
	// award adds, of each pixel in turn, y to that w of the window whose x is the first NaN or, if there is none, the
	// first of the greatest. w has the strides of x.
	award func(*int)
	// filters adds to w of each column of the window the sum over pixels of x·y. There is one row, and a pixel at least.
	filters func(*int)
	// plane4 and plane1 compute blocks of four lines of a strip, and of one line: see strip. They are nil if there are none.
	plane4, plane1 func(*int)
}

// sum runs correlate, or a faster routine for the pass.
func (k *kernel[T]) sum(p *pass[T]) {
	if k.slide != nil && p.rows == 3 && p.cols == 3 && p.xCol == p.xPixel && p.shift != nil && p.scale == nil && p.residual == nil &&
		p.divisor == 0 {
		k.slide(&p.pixels)
		return
	}
	k.correlate(&p.pixels)
}

// The kernels that this processor can run, the preferred one first.
var (
	kernels32 = append(native32(), portable[float32]())
	kernels64 = append(native64(), portable[float64]())
)

// kernels returns the list for one element type.
func kernels[T Float]() []*kernel[T] {
	if list, ok := any(kernels32).([]*kernel[T]); ok {
		return list
	}
	list, _ := any(kernels64).([]*kernel[T])
	return list
}

func portable[T Float]() *kernel[T] {
	return &kernel[T]{name: "portable", correlate: onPass(correlatePortable[T]), greatest: onPass(greatestPortable[T]),
		award: onPass(awardPortable[T]), filters: onPass(filtersPortable[T])}
}

// onPass is a routine of a kernel in Go.
func onPass[T Float](f func(*pass[T])) func(*int) {
	return func(args *int) { f((*pass[T])(unsafe.Pointer(args))) }
}

func size[T Float]() int { return int(unsafe.Sizeof(*new(T))) }

// channelsAt is the channels of the pixel that stands some bytes after p.
func (a *pass[T]) channelsAt(p *T, bytes int) []T {
	return unsafe.Slice((*T)(unsafe.Add(unsafe.Pointer(p), bytes)), a.channels/size[T]())
}

// taps calls f with the bytes from x and from w of each tap of a pixel.
func (a *pass[T]) taps(pixel int, f func(x, w int)) {
	for r := range a.rows {
		for c := range a.cols {
			f(pixel*a.xPixel+r*a.xRow+c*a.xCol, r*a.wRow+c*a.wCol)
		}
	}
}

func correlatePortable[T Float](a *pass[T]) {
	for i := range a.pixels {
		y := a.channelsAt(a.y, i*a.yPixel)
		var residual []T // which may be y
		if a.residual != nil {
			residual = a.channelsAt(a.residual, i*a.residualPixel)
		}
		for c := range y {
			var sum T
			a.taps(i, func(x, w int) { sum += a.channelsAt(a.x, x)[c] * a.channelsAt(a.w, w)[c] })
			if a.scale != nil {
				sum *= a.channelsAt(a.scale, 0)[c]
			}
			if a.shift != nil {
				sum += a.channelsAt(a.shift, 0)[c]
			}
			if a.divisor != 0 {
				sum /= a.divisor
			}
			if residual != nil {
				sum += residual[c]
			}
			sum = a.gate.Of(sum)
			if sum < a.low {
				sum = a.low
			}
			if sum > a.high {
				sum = a.high
			}
			y[c] = sum
		}
	}
}

func greatestPortable[T Float](a *pass[T]) {
	for i := range a.pixels {
		y := a.channelsAt(a.y, i*a.yPixel)
		for c := range y {
			y[c] = T(math.Inf(-1))
		}
		a.taps(i, func(at, _ int) {
			for c, v := range a.channelsAt(a.x, at) {
				if v > y[c] || v != v {
					y[c] = v
				}
			}
		})
	}
}

func awardPortable[T Float](a *pass[T]) {
	for i := range a.pixels {
		for c, dy := range a.channelsAt(a.y, i*a.yPixel) {
			best, most := -1, T(0)
			a.taps(i, func(at, _ int) {
				if v := a.channelsAt(a.x, at)[c]; best < 0 || v > most || v != v && most == most {
					best, most = at, v
				}
			})
			if a.rows > 0 {
				a.channelsAt(a.w, best)[c] += dy
			}
		}
	}
}

func filtersPortable[T Float](a *pass[T]) {
	for k := range a.cols {
		w := a.channelsAt(a.w, k*a.wCol)
		for i := range a.pixels {
			y := a.channelsAt(a.y, i*a.yPixel)
			for c, x := range a.channelsAt(a.x, i*a.xPixel+k*a.xCol) {
				w[c] += x * y[c]
			}
		}
	}
}
