package depthwise

// A Maximum computes the greatest elements of the windows of x [N,H,W,C]: y [N,OH,OW,C]. A window with a NaN gives NaN,
// one that lies in the padding −Inf.
type Maximum[T Float] struct {
	kern       *kernel[T]
	images     int
	channels   int
	rows, cols axis
	runs       []run
	in, out    Image
	group      int // rows per item
	parts      int // items per image
	passes     []pass[T]

	x, y []T
}

// NewMaximum plans maxima for so many workers.
func NewMaximum[T Float](g Geometry, x, y Image, workers int) *Maximum[T] {
	return newMaximum(kernels[T]()[0], g, x, y, workers)
}

func newMaximum[T Float](kern *kernel[T], g Geometry, x, y Image, workers int) *Maximum[T] {
	k := &Maximum[T]{kern: kern, images: g.Images, channels: g.Channels, rows: g.forward(0), cols: g.forward(1), in: x, out: y,
		passes: make([]pass[T], workers)}
	k.runs = k.cols.runs()
	k.group = max(itemElements/max(len(k.cols.at)*k.channels, 1), 1)
	k.parts = (len(k.rows.at) + k.group - 1) / k.group
	for i := range k.passes {
		k.passes[i] = imagePass[T](&k.rows, &k.cols, x, y, k.channels)
	}
	return k
}

// imagePass has the strides of a pass over windows of an image.
func imagePass[T Float](rows, cols *axis, x, y Image, channels int) pass[T] {
	s := size[T]()
	return pass[T]{channels: channels * s, xPixel: cols.advance * x.Pixel * s, xRow: rows.in * x.Row * s, xCol: cols.in * x.Pixel * s,
		yPixel: cols.out * y.Pixel * s}
}

// Span is the rows of the image that rows lo to hi need: from first to end.
func (k *Maximum[T]) Span(lo, hi int) (first, end int) { return k.rows.span(lo, hi) }

// Items is the number of work items, 0 if there is nothing to compute.
func (k *Maximum[T]) Items() int {
	if k.channels == 0 || len(k.cols.at) == 0 {
		return 0
	}
	return k.images * k.parts
}

// Bytes is the memory of the plan itself.
func (k *Maximum[T]) Bytes() int64 {
	return int64(8 * (3*(len(k.rows.at)+len(k.cols.at)) + 5*len(k.runs)))
}

// Bind sets the operands, for the items until the next Bind.
func (k *Maximum[T]) Bind(x, y []T) { k.x, k.y = x, y }

// Do computes an item. The worker is below the number that the plan was made for.
func (k *Maximum[T]) Do(worker, item int) {
	image, lo := item/k.parts, item%k.parts*k.group
	k.DoRows(worker, image, lo, min(lo+k.group, len(k.rows.at)), k.x, image*k.in.Image)
}

// DoRows computes rows lo to hi of an image. Element base of x would be the first of the image, of which x has the rows that these
// windows need.
func (k *Maximum[T]) DoRows(worker, image, lo, hi int, x []T, base int) {
	p := &k.passes[worker]
	for row := lo; row < hi; row++ {
		at := k.rows.at[row]
		for i := range k.runs {
			r := &k.runs[i]
			p.pixels, p.rows, p.cols = r.pixels, at.n, r.n
			p.y = &k.y[k.out.at(image, row, r.out)]
			if p.x = p.y; at.n == 0 || r.n == 0 {
				p.rows = 0
			} else {
				p.x = &x[base+at.in*k.in.Row+r.in*k.in.Pixel]
			}
			k.kern.greatest(&p.pixels)
		}
	}
	p.x, p.y = nil, nil
}

// A MaximumGrad computes the gradient of [Maximum]: dx [N,H,W,C] has each dy [N,OH,OW,C] added where the window's first
// NaN is or, if there is none, the first of its greatest elements.
type MaximumGrad[T Float] struct {
	kern       *kernel[T]
	images     int
	channels   int
	size       [2]int
	rows, cols axis
	runs       []run
	in, out    Image // of x and dx, and of dy
	block      int   // channels per item
	parts      int   // items per image
	passes     []pass[T]

	x, dy, dx []T
}

// NewMaximumGrad plans the gradient of maxima for so many workers. x and dx have the same strides.
func NewMaximumGrad[T Float](g Geometry, x, dy Image, workers int) *MaximumGrad[T] {
	return newMaximumGrad(kernels[T]()[0], g, x, dy, workers)
}

// fewItems is the number of items that keeps the workers of a large processor busy.
const fewItems = 32

func newMaximumGrad[T Float](kern *kernel[T], g Geometry, x, dy Image, workers int) *MaximumGrad[T] {
	k := &MaximumGrad[T]{kern: kern, images: g.Images, channels: g.Channels, size: g.Size, rows: g.forward(0), cols: g.forward(1),
		in: x, out: dy, passes: make([]pass[T], workers)}
	k.runs = k.cols.runs()
	k.block = blockOf[T](k.channels, k.images)
	k.parts = (k.channels + k.block - 1) / k.block
	for i := range k.passes {
		k.passes[i] = imagePass[T](&k.rows, &k.cols, x, dy, k.channels)
	}
	return k
}

// blockOf is the number of channels that an item has, if there are so many items for each block: some whole cache
// lines, and as many as leave enough items.
func blockOf[T Float](channels, items int) int {
	step := 4 * 64 / size[T]()
	steps := (channels + step - 1) / step
	blocks := min(max(fewItems/max(items, 1), 1), max(steps, 1))
	return max((steps+blocks-1)/blocks, 1) * step
}

// Items is the number of work items, 0 if there is nothing to compute.
func (k *MaximumGrad[T]) Items() int {
	if k.size[0] == 0 || k.size[1] == 0 {
		return 0
	}
	return k.images * k.parts
}

// Bytes is the memory of the plan itself.
func (k *MaximumGrad[T]) Bytes() int64 {
	return int64(8 * (3*(len(k.rows.at)+len(k.cols.at)) + 5*len(k.runs)))
}

// Bind sets the operands, for the items until the next Bind.
func (k *MaximumGrad[T]) Bind(x, dy, dx []T) { k.x, k.dy, k.dx = x, dy, dx }

// Do computes an item: some channels of an image. The worker is below the number that the plan was made for.
func (k *MaximumGrad[T]) Do(worker, item int) {
	image, channel := item/k.parts, item%k.parts*k.block
	n := min(k.block, k.channels-channel)
	for row := range k.size[0] {
		for col := range k.size[1] {
			clear(k.dx[k.in.at(image, row, col)+channel:][:n])
		}
	}
	p := &k.passes[worker]
	p.channels = n * size[T]()
	for row, at := range k.rows.at {
		for i := range k.runs {
			r := &k.runs[i]
			if at.n == 0 || r.n == 0 {
				continue
			}
			p.pixels, p.rows, p.cols = r.pixels, at.n, r.n
			from := k.in.at(image, at.in, r.in) + channel
			p.x, p.w, p.y = &k.x[from], &k.dx[from], &k.dy[k.out.at(image, row, r.out)+channel]
			k.kern.award(&p.pixels)
		}
	}
	p.x, p.w, p.y = nil, nil, nil
}
