package depthwise

import (
	"unsafe"

	"fusec/graph"
)

// A Planes computes convolutions of images in NCHW with a filter of three columns, and one to three lines, for each channel.
// Windows move by one, and their taps stand side by side. A vector is neighbouring pixels of a line; lanes outside of the image
// are not read.
type Planes[T Float] struct {
	kern   *kernel[T]
	cfg    PlanesConfig
	lines  axis
	chunks []chunk
	items  int // channels of an item

	strips  []strip[T] // of the workers
	x, w, y []T
	shift   []T
	low     T
	high    T
}

// A PlanesConfig describes such a convolution.
type PlanesConfig struct {
	Op graph.Conv2D
	// X is the images [N, C, H, W], W the filters [C, 1, KH, 3], and Y the result [N, C, OH, OW]. Pixels of a line of X and Y, and
	// the elements of a filter, stand side by side.
	X, W, Y graph.Layout
}

// A strip is the argument of a kernel. The assembly knows the order of the fields. Distances are in bytes.
type strip[T Float] struct {
	count int // of lines, or of blocks of four lines
	taps  int // lines of a window
	x     *T  // the start of the image's memory,
	from  int // and how far the first tap of lane 0 is from there: it may be outside of the image
	row   int // from line to line of the image
	w     *T  // of the first tap
	y     *T  // of lane 0 of the first line
	yRow  int
	masks [4]int // of the lanes that are in the image, for each column of the window, and in the result

	shift, low, high T
}

// A chunk is a vector of pixels of a line.
type chunk struct {
	column int
	masks  [4]int
}

// planeLines is the lines of a block, and planeVector the bytes of a vector.
const (
	planeLines  = 4
	planeVector = 64
)

// TakesPlanes reports whether there is a kernel for images in NCHW that are convolved with so many filters of such a size, and this
// processor has it.
func TakesPlanes[T Float](op graph.Conv2D, filters, kh, kw int) bool {
	return kernels[T]()[0].plane4 != nil && kw == 3 && kh <= 3 && op.Groups == filters && op.Stride == graph.IntsOf(1, 1) &&
		op.Dilation == graph.IntsOf(1, 1)
}

// NewPlanes plans a convolution on so many workers. It is nil if there is no kernel for it, or if this processor has none.
func NewPlanes[T Float](cfg PlanesConfig, workers int) *Planes[T] {
	x, w, y, op := &cfg.X, &cfg.W, &cfg.Y, cfg.Op
	kh, kw := w.Shape.At(2), w.Shape.At(3)
	contiguous := func(l *graph.Layout) bool { return l.Stride[3] == 1 || l.Shape.At(3) == 1 }
	if !TakesPlanes[T](op, w.Shape.At(0), kh, kw) || w.Shape.At(1) != 1 || op.Groups != x.Shape.At(1) || x.Shape.Elems() == 0 ||
		!contiguous(x) || !contiguous(y) || w.Stride[3] != 1 || kh > 1 && w.Stride[2] != kw || y.Shape.Elems() == 0 {
		return nil
	}
	k := &Planes[T]{kern: kernels[T]()[0], cfg: cfg, strips: make([]strip[T], workers)}
	g := Geometry{Size: [2]int{x.Shape.At(2), x.Shape.At(3)}, Windows: [2]int{y.Shape.At(2), y.Shape.At(3)}, Kernel: [2]int{kh, kw},
		Stride: [2]int{1, 1}, Dilation: [2]int{1, 1}, Before: [2]int{op.Pad.At(0), op.Pad.At(1)}}
	k.lines = g.forward(0)
	lanes := planeVector / size[T]()
	for column := 0; column < g.Windows[1]; column += lanes {
		c := chunk{column: column}
		for tap := range kw {
			c.masks[tap] = lanesOf(g.Before[1]-tap-column, g.Before[1]-tap-column+g.Size[1], lanes)
		}
		c.masks[kw] = lanesOf(0, g.Windows[1]-column, lanes)
		k.chunks = append(k.chunks, c)
	}
	k.items = min(max(itemElements/y.Shape.At(2)/y.Shape.At(3), 1), x.Shape.At(1))
	return k
}

// lanesOf is a mask of the lanes from one to before another, of those that there are.
func lanesOf(from, end, lanes int) int {
	from, end = min(max(from, 0), lanes), min(max(end, 0), lanes)
	if from >= end {
		return 0
	}
	return 1<<end - 1<<from
}

// parts is the number of items of an image.
func (k *Planes[T]) parts() int { return (k.cfg.X.Shape.At(1) + k.items - 1) / k.items }

// Items is the number of work items.
func (k *Planes[T]) Items() int { return k.cfg.X.Shape.At(0) * k.parts() }

// Channels is the image of an item, and its channels lo to hi.
func (k *Planes[T]) Channels(item int) (image, lo, hi int) {
	lo = item % k.parts() * k.items
	return item / k.parts(), lo, min(lo+k.items, k.cfg.X.Shape.At(1))
}

// Bytes is the memory of the plan itself.
func (k *Planes[T]) Bytes() int64 { return int64(8 * (3*len(k.lines.at) + 5*len(k.chunks))) }

// Bind sets the operands, which begin with element 0 of the layouts' memories, for the items until the next Bind. What follows
// the sums adds shift, one number for each channel, unless it is nil, and keeps them between low and high. Bind of nil lets go
// of them.
func (k *Planes[T]) Bind(x, w, y, shift []T, low, high T) {
	k.x, k.w, k.y, k.shift, k.low, k.high = x, w, y, shift, low, high
	for i := range k.strips {
		k.strips[i] = strip[T]{}
	}
}

// Do computes an item. The worker is below the number that the plan was made for.
func (k *Planes[T]) Do(worker, item int) {
	image, lo, hi := k.Channels(item)
	for channel := lo; channel < hi; channel++ {
		k.plane(&k.strips[worker], image, channel)
	}
}

// plane computes a channel of an image.
func (k *Planes[T]) plane(s *strip[T], image, channel int) {
	bytes, taps := size[T](), k.cfg.W.Shape.At(2)
	x, y := &k.cfg.X, &k.cfg.Y
	s.x, s.row, s.yRow = &k.x[0], x.Stride[2]*bytes, y.Stride[2]*bytes
	s.shift, s.low, s.high = 0, k.low, k.high
	if k.shift != nil {
		s.shift = k.shift[channel]
	}
	plane := x.Offset + image*x.Stride[0] + channel*x.Stride[1] - k.cfg.Op.Pad.At(1)
	filters := k.w[k.cfg.W.Offset+channel*k.cfg.W.Stride[0]:]
	result := y.Offset + image*y.Stride[0] + channel*y.Stride[1]
	for i := range k.chunks {
		c := &k.chunks[i]
		s.masks = c.masks
		for line := 0; line < len(k.lines.at); {
			at := k.lines.at[line]
			n := 1 // lines with the same taps
			for line+n < len(k.lines.at) && k.lines.at[line+n].n == at.n && k.lines.at[line+n].first == at.first {
				n++
			}
			s.from = (plane + at.in*x.Stride[2] + c.column) * bytes
			s.y = &k.y[result+line*y.Stride[2]+c.column]
			line += n
			if at.n == 0 {
				k.fill(s, n)
				continue
			}
			s.taps, s.w = at.n, &filters[at.first*3]
			if taps == 3 && at.n == 3 && n >= planeLines {
				s.count = n / planeLines
				k.kern.plane4(&s.count)
				done := s.count * planeLines
				if n -= done; n > 0 {
					s.from += done * s.row
					s.y = (*T)(unsafe.Add(unsafe.Pointer(s.y), done*s.yRow))
				}
			}
			if n > 0 {
				s.count = n
				k.kern.plane1(&s.count)
			}
		}
	}
	s.x, s.w, s.y = nil, nil, nil
}

// fill writes lines of the result whose windows lie outside of the image.
func (k *Planes[T]) fill(s *strip[T], lines int) {
	v := s.shift
	if v < s.low {
		v = s.low
	}
	if v > s.high {
		v = s.high
	}
	for i := range lines {
		for lane := range planeVector / size[T]() {
			if s.masks[3]>>lane&1 != 0 {
				*(*T)(unsafe.Add(unsafe.Pointer(s.y), i*s.yRow+lane*size[T]())) = v
			}
		}
	}
}
