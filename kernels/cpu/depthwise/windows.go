package depthwise

// Windows computes lines of sums of windows times filters, where all taps of a window are in memory, for example in a copy of an
// image with a border of zeros. It serves one worker.
type Windows[T Float] struct {
	kern *kernel[T]
	pass pass[T]
}

// NewWindows makes Windows of so many channels with taps, vertical and horizontal, that are tap.Row and tap.Pixel elements apart.
// The window moves by step elements from pixel to pixel, and the pixels of the result are pixel elements apart. What follows the
// sums keeps them between low and high.
func NewWindows[T Float](channels int, taps [2]int, tap Image, step, pixel int, low, high T) Windows[T] {
	s := size[T]()
	return Windows[T]{kern: kernels[T]()[0], pass: pass[T]{channels: channels * s, rows: taps[0], cols: taps[1], xPixel: step * s,
		xRow: tap.Row * s, xCol: tap.Pixel * s, wRow: taps[1] * channels * s, wCol: channels * s, yPixel: pixel * s,
		low: low, high: high}}
}

// Line sets some pixels of y, at least one: the windows of the first begin with x. Filters w are [KH,KW,C], shift [C]. There is a
// channel at least.
func (k *Windows[T]) Line(pixels int, x, w, shift, y []T) {
	p := &k.pass
	p.pixels, p.x, p.w, p.shift, p.y = pixels, &x[0], &w[0], &shift[0], &y[0]
	k.kern.sum(p)
	p.x, p.w, p.shift, p.y = nil, nil, nil, nil
}
