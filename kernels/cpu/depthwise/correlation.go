package depthwise

import (
	"math"

	"fusec/kernels/cpu/vec"
)

// itemElements is the number of elements of a result that is worth a work item, and bandRows the fewest rows of it that
// an item has where there are enough: neighbouring items read some rows both.
const (
	itemElements = 1 << 14
	bandRows     = 4
)

// A Finish is what follows the sums of a convolution: y = min(max(Gate(sum·Scale + Shift + Residual), Low), High).
// Scale and Shift have one number for each channel. What is nil is left out. A NaN stays a NaN.
type Finish[T Float] struct {
	Scale, Shift, Residual []T
	Image                  Image // of Residual
	Low, High              T
	Gate                   vec.Gate[T]
}

// Unfinished leaves sums as they are.
func Unfinished[T Float]() Finish[T] { return Finish[T]{Low: T(math.Inf(-1)), High: T(math.Inf(1))} }

// A Correlation computes, for each channel, sums of the elements of windows times filters.
type Correlation[T Float] struct {
	kern       *kernel[T]
	rows, cols axis
	runs       []run
	images     int
	size       [2]int // of the input
	source     Image  // the input
	in         Image  // the input, or what is made of it in scratch
	out        Image
	channels   int // of a pass
	each       int // filters for each channel of the image
	backward   bool
	group      int // rows per item
	parts      int // items per image
	band       int // the most rows of the input that an item prepares, or 0

	divide  divisor
	window  int      // taps of a window
	inside  [2][]int // taps inside the image, by row and by column of the windows
	columns int      // taps of a row of the window

	passes  []pass[T] // of the workers
	x, w, y []T
}

// A divisor is what the sum over a window is divided by.
type divisor uint8

const (
	byNothing divisor = iota
	byTaps            // all taps of the window
	byInside          // those inside the image
)

// NewConv plans the convolution of images x [N,H,W,C] with filters w [KH,KW,1,C·each] to y [N,OH,OW,C·each], for so
// many workers. Filter c·each+j is that of channel c.
func NewConv[T Float](g Geometry, each int, x, y Image, workers int) *Correlation[T] {
	return newCorrelation(kernels[T]()[0], g, each, false, byNothing, x, y, workers)
}

// NewConvTransposed plans the transpose of [NewConv] as a linear map: of dy [N,OH,OW,C·each] to dx [N,H,W,C].
func NewConvTransposed[T Float](g Geometry, each int, dy, dx Image, workers int) *Correlation[T] {
	return newCorrelation(kernels[T]()[0], g, each, true, byNothing, dy, dx, workers)
}

// NewMean plans the means of the windows of x [N,H,W,C]: y [N,OH,OW,C]. Padding counts in the divisor, as zeros, if
// countPad is set; if it is not, a window that lies in the padding gives NaN. There are no filters: Run takes nil.
func NewMean[T Float](g Geometry, countPad bool, x, y Image, workers int) *Correlation[T] {
	return newCorrelation(kernels[T]()[0], g, 1, false, meanDivisor(countPad), x, y, workers)
}

// NewMeanGrad plans the gradient of [NewMean]: of dy [N,OH,OW,C] to dx [N,H,W,C].
func NewMeanGrad[T Float](g Geometry, countPad bool, dy, dx Image, workers int) *Correlation[T] {
	return newCorrelation(kernels[T]()[0], g, 1, true, meanDivisor(countPad), dy, dx, workers)
}

func meanDivisor(countPad bool) divisor {
	if countPad {
		return byTaps
	}
	return byInside
}

func newCorrelation[T Float](kern *kernel[T], g Geometry, each int, backward bool, divide divisor, in, out Image,
	workers int) *Correlation[T] {
	k := &Correlation[T]{kern: kern, images: g.Images, size: g.Size, source: in, in: in, out: out, channels: g.Channels * each,
		each: each, backward: backward, divide: divide, window: g.Kernel[0] * g.Kernel[1], columns: g.Kernel[1],
		passes: make([]pass[T], workers)}
	if backward {
		k.size, k.rows, k.cols = g.Windows, g.backward(0), g.backward(1)
	} else {
		k.rows, k.cols = g.forward(0), g.forward(1)
	}
	k.runs = k.cols.runs()
	if divide == byInside && backward {
		for i := range k.inside {
			for _, p := range g.forward(i).at {
				k.inside[i] = append(k.inside[i], p.n)
			}
		}
	}
	height := len(k.rows.at)
	k.group = min(max(itemElements/max(len(k.cols.at)*k.channels, 1), bandRows), max(height, 1))
	k.parts = (height + k.group - 1) / k.group
	if k.prepares() {
		for lo := 0; lo < height; lo += k.group {
			first, end := k.rows.span(lo, min(lo+k.group, height))
			k.band = max(k.band, end-first)
		}
		k.in = Packed(k.size, k.channels)
	}
	s := size[T]()
	wTap, outPixel := k.channels, k.out.Pixel
	if divide != byNothing {
		wTap = 0 // a filter of ones, the same for all taps
	}
	if k.contracts() {
		outPixel = k.channels
	}
	for i := range k.passes {
		k.passes[i] = pass[T]{channels: k.channels * s, xPixel: k.cols.advance * k.in.Pixel * s,
			xRow: k.rows.in * k.in.Row * s, xCol: k.cols.in * k.in.Pixel * s,
			wRow: k.rows.tap * k.columns * wTap * s, wCol: k.cols.tap * wTap * s, yPixel: k.cols.out * outPixel * s}
		if divide == byTaps {
			k.passes[i].divisor = T(k.window)
		}
	}
	return k
}

// prepares reports whether passes read rows that are made in scratch: channels repeated, or elements divided.
func (k *Correlation[T]) prepares() bool {
	return k.backward && k.divide == byInside || !k.backward && k.each > 1
}

// contracts reports whether passes write rows in scratch, whose channels are summed.
func (k *Correlation[T]) contracts() bool { return k.backward && k.each > 1 }

// Items is the number of work items, 0 if there is nothing to compute.
func (k *Correlation[T]) Items() int {
	if k.channels == 0 || len(k.cols.at) == 0 {
		return 0
	}
	return k.images * k.parts
}

// Rows is the image and its rows lo to hi that an item computes.
func (k *Correlation[T]) Rows(item int) (image, lo, hi int) {
	lo = item % k.parts * k.group
	return item / k.parts, lo, min(lo+k.group, len(k.rows.at))
}

// Scratch is the number of elements that an item needs.
func (k *Correlation[T]) Scratch() int {
	n := k.band * k.in.Row
	if k.contracts() {
		n += len(k.cols.at) * k.channels
	}
	if k.divide != byNothing {
		n += k.channels
	}
	return n
}

// Bytes is the memory of the plan itself.
func (k *Correlation[T]) Bytes() int64 {
	n := 3*(len(k.rows.at)+len(k.cols.at)) + 5*len(k.runs) + len(k.inside[0]) + len(k.inside[1])
	return int64(8 * n)
}

// Bind sets the operands, for the items until the next Bind. Bind of nil lets go of them.
func (k *Correlation[T]) Bind(x, w, y []T, f Finish[T]) {
	k.x, k.w, k.y = x, w, y
	for i := range k.passes {
		p := &k.passes[i]
		p.x, p.w, p.y, p.residual = nil, nil, nil, nil
		p.scale, p.shift = first(f.Scale, k.channels), first(f.Shift, k.channels)
		p.low, p.high, p.gate, p.residualPixel = f.Low, f.High, f.Gate, k.cols.out*f.Image.Pixel*size[T]()
	}
}

// first is the address of n elements, nil of nil or none.
func first[T Float](x []T, n int) *T {
	if x == nil || n == 0 {
		return nil
	}
	return &x[:n][0]
}

// Do computes an item. The worker is below the number that the plan was made for; f is what was bound.
func (k *Correlation[T]) Do(worker, item int, scratch []T, f *Finish[T]) {
	image, lo, hi := k.Rows(item)
	k.DoRows(worker, image, lo, hi, scratch, f)
}

// DoRows computes rows lo to hi of an image, which are part of an item: see [Correlation.Do].
func (k *Correlation[T]) DoRows(worker, image, lo, hi int, scratch []T, f *Finish[T]) {
	k.rowsTo(worker, image, lo, hi, k.x, image*k.in.Image, k.y, 0, scratch, f)
}

// Span is the rows of the input that rows lo to hi need: from first to end.
func (k *Correlation[T]) Span(lo, hi int) (first, end int) { return k.rows.span(lo, hi) }

// DoRowsOf is DoRows with input from x: element base would be the first of the image, of which x has the rows that these windows
// need. It is for plans that read their input as it is.
func (k *Correlation[T]) DoRowsOf(worker, image, lo, hi int, x []T, base int, scratch []T, f *Finish[T]) {
	k.rowsTo(worker, image, lo, hi, x, base, k.y, 0, scratch, f)
}

// RowsTo is DoRows whose result goes to y, from row lo on. There is no residual.
func (k *Correlation[T]) RowsTo(worker, image, lo, hi int, y, scratch []T, f *Finish[T]) {
	k.rowsTo(worker, image, lo, hi, k.x, image*k.in.Image, y, image*k.out.Image+lo*k.out.Row, scratch, f)
}

// rowsTo reads x, of which element base would be the first of the image, and writes to result, whose element 0 is element first of
// all results.
func (k *Correlation[T]) rowsTo(worker, image, lo, hi int, x []T, base int, result []T, first int, scratch []T, f *Finish[T]) {
	p := &k.passes[worker]
	if k.prepares() {
		start, end := k.rows.span(lo, hi)
		n := (end - start) * k.in.Row
		x, scratch = scratch[:n], scratch[n:]
		for row := start; row < end; row++ {
			k.prepare(x[(row-start)*k.in.Row:], image, row)
		}
		base = -start * k.in.Row
	}
	w := k.w
	if k.divide != byNothing {
		w, scratch = scratch[:k.channels], scratch[k.channels:]
		for i := range w {
			w[i] = 1
		}
	}
	for row := lo; row < hi; row++ {
		at := k.rows.at[row]
		y, to := result, k.out.at(image, row, 0)-first
		pixel := k.out.Pixel
		if k.contracts() {
			y, to, pixel = scratch, 0, k.channels
		}
		for i := range k.runs {
			r := &k.runs[i]
			p.pixels, p.rows, p.cols = r.pixels, at.n, r.n
			p.y = &y[to+r.out*pixel]
			if f.Residual != nil {
				p.residual = &f.Residual[f.Image.at(image, row, r.out)]
			}
			if at.n == 0 || r.n == 0 {
				p.rows, p.cols = 0, 0
				p.x, p.w = p.y, p.y // not read
			} else {
				p.x = &x[base+at.in*k.in.Row+r.in*k.in.Pixel]
				p.w = &w[0]
				if k.divide == byNothing {
					p.w = &w[(at.first*k.columns+r.first)*k.channels]
				}
			}
			if k.divide == byInside && !k.backward {
				if p.divisor = T(at.n * r.n); p.rows == 0 {
					k.undefined(y[to+r.out*pixel:], r.pixels, k.cols.out*pixel)
					continue
				}
			}
			k.kern.sum(p)
		}
		if k.contracts() {
			k.contract(result[k.out.at(image, row, 0)-first:], scratch)
		}
	}
}

// undefined fills pixels with NaN.
func (k *Correlation[T]) undefined(y []T, pixels, step int) {
	for i := range pixels {
		p := y[i*step:][:k.channels]
		for c := range p {
			p[c] = T(math.NaN())
		}
	}
}

// prepare makes a row of the input that passes read.
func (k *Correlation[T]) prepare(dst []T, image, row int) {
	for col := range k.size[1] {
		to := dst[col*k.channels:][:k.channels]
		from := k.x[k.source.at(image, row, col):][:k.channels/k.each]
		if k.divide == byInside {
			n := T(k.inside[0][row] * k.inside[1][col])
			for c, v := range from {
				to[c] = v / n
			}
			continue
		}
		repeat(to, from, k.each)
	}
}

// repeat sets dst to each element of x so many times.
func repeat[T Float](dst, x []T, times int) {
	if times == 2 {
		for c, v := range x {
			to := dst[2*c:][:2]
			to[0], to[1] = v, v
		}
		return
	}
	for c, v := range x {
		to := dst[c*times:][:times]
		for j := range to {
			to[j] = v
		}
	}
}

// contract writes a row of the result: sums of each channel's neighbours.
func (k *Correlation[T]) contract(y, x []T) {
	for col := range k.cols.at {
		from := x[col*k.channels:][:k.channels]
		to := y[col*k.out.Pixel:][:k.channels/k.each]
		for c := range to {
			var sum T
			for _, v := range from[c*k.each:][:k.each] {
				sum += v
			}
			to[c] = sum
		}
	}
}
