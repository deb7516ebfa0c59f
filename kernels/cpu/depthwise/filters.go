package depthwise

import "fusec/kernels/cpu/vec"

// A FilterGrad computes the gradient of a convolution for its filters: dw [KH,KW,1,C·each], of x [N,H,W,C] and
// dy [N,OH,OW,C·each].
//
// The sum over pixels is cut into blocks of rows of windows, by shape alone. Each block has a sum of its own; in the end
// they are added in their order.
type FilterGrad[T Float] struct {
	kern       *kernel[T]
	rows, cols axis
	runs       []run
	in, out    Image // of x, or of what is made of it in scratch, and of dy
	source     Image
	size       [2]int
	kernel     [2]int
	channels   int // of dy
	each       int
	lines      int // rows of windows, of all images
	group      int // rows of windows per block
	blocks     int
	block      int // channels per item
	parts      int // items per block
	passes     []pass[T]

	x, dy, dw, partial []T
}

// longSum is how many products are added one after another, about.
const longSum = 512

// NewFilterGrad plans the gradient for so many workers.
func NewFilterGrad[T Float](g Geometry, each int, x, dy Image, workers int) *FilterGrad[T] {
	return newFilterGrad(kernels[T]()[0], g, each, x, dy, workers)
}

func newFilterGrad[T Float](kern *kernel[T], g Geometry, each int, x, dy Image, workers int) *FilterGrad[T] {
	k := &FilterGrad[T]{kern: kern, rows: g.forward(0), cols: g.forward(1), in: x, source: x, out: dy, size: g.Size, kernel: g.Kernel,
		channels: g.Channels * each, each: each, lines: g.Images * g.Windows[0], passes: make([]pass[T], workers)}
	k.runs = k.cols.runs()
	if each > 1 {
		k.in = Packed(g.Size, k.channels)
	}
	k.group = max(longSum/max(g.Windows[1], 1), (k.lines+fewItems-1)/fewItems, 1)
	k.blocks = (k.lines + k.group - 1) / k.group
	k.block = max(k.channels, 1)
	if each == 1 {
		k.block = blockOf[T](k.channels, k.blocks)
	}
	k.parts = (k.channels + k.block - 1) / k.block
	for i := range k.passes {
		p := imagePass[T](&k.rows, &k.cols, k.in, dy, k.channels)
		p.rows, p.wCol = 1, k.channels*size[T]()
		k.passes[i] = p
	}
	return k
}

// Items is the number of work items of the first phase, which computes partial sums.
func (k *FilterGrad[T]) Items() int { return k.blocks * k.parts }

// Sums is the number of work items of the second phase, which adds the partial sums.
func (k *FilterGrad[T]) Sums() int { return (k.filters() + itemElements - 1) / itemElements }

// filters is the number of elements of the filters.
func (k *FilterGrad[T]) filters() int { return k.kernel[0] * k.kernel[1] * k.channels }

// Shared is the number of elements of scratch that the items have together.
func (k *FilterGrad[T]) Shared() int { return k.blocks * k.filters() }

// Scratch is the number of elements that an item needs besides.
func (k *FilterGrad[T]) Scratch() int {
	if k.each == 1 {
		return 0
	}
	return k.in.Row
}

// Bytes is the memory of the plan itself.
func (k *FilterGrad[T]) Bytes() int64 {
	return int64(8 * (3*(len(k.rows.at)+len(k.cols.at)) + 5*len(k.runs)))
}

// Bind sets the operands and the shared scratch, for the items until the next Bind.
func (k *FilterGrad[T]) Bind(x, dy, dw, shared []T) { k.x, k.dy, k.dw, k.partial = x, dy, dw, shared }

// Do computes an item of the first phase. The worker is below the number that the plan was made for.
func (k *FilterGrad[T]) Do(worker, item int, scratch []T) {
	block, channel := item/k.parts, item%k.parts*k.block
	n := min(k.block, k.channels-channel)
	sums := k.partial[block*k.filters():][:k.filters()]
	for i := channel; i < len(sums); i += k.channels {
		clear(sums[i:][:n])
	}
	p := &k.passes[worker]
	p.channels = n * size[T]()
	height := len(k.rows.at)
	for line := block * k.group; line < min((block+1)*k.group, k.lines); line++ {
		image, row := line/height, line%height
		at := k.rows.at[row]
		for tap := range at.n {
			x, from := k.x, k.source.at(image, at.in+tap*k.rows.in, 0)+channel
			if k.each > 1 {
				for col := range k.size[1] {
					repeat(scratch[col*k.channels:][:k.channels], k.x[from+col*k.source.Pixel:][:k.channels/k.each], k.each)
				}
				x, from = scratch, 0
			}
			for i := range k.runs {
				r := &k.runs[i]
				if r.n == 0 {
					continue
				}
				p.pixels, p.cols = r.pixels, r.n
				p.x = &x[from+r.in*k.in.Pixel]
				p.w = &sums[((at.first+tap)*k.kernel[1]+r.first)*k.channels+channel]
				p.y = &k.dy[k.out.at(image, row, r.out)+channel]
				k.kern.filters(&p.pixels)
			}
		}
	}
	p.x, p.w, p.y = nil, nil, nil
}

// Sum computes an item of the second phase.
func (k *FilterGrad[T]) Sum(item int) {
	n := k.filters()
	lo, hi := item*itemElements, min((item+1)*itemElements, n)
	dst := k.dw[lo:hi]
	clear(dst)
	for b := range k.blocks {
		vec.Of[T]().AddTo(dst, k.partial[b*n+lo:][:len(dst)])
	}
}
