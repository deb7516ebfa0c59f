package cuda

import (
	"cmp"
	"math"

	"fusec/graph"
)

// A slide is how a window moves along one axis of an image: position o has tap j at o·stride + first + j·step. Tap j is
// row tap0 + j·tapStep of the filters, position o row out0 + o·outStep of the result.
type slide struct {
	size, positions, taps  int
	stride, first, step    int
	tap0, tapStep          int
	out0, outStep, outSize int
}

// forwardSlide is that of a convolution.
func forwardSlide(size, positions, taps, stride, dilation, pad int) slide {
	return slide{size: size, positions: positions, taps: taps, stride: stride, first: -pad, step: dilation,
		tapStep: 1, outStep: 1, outSize: positions}
}

// transposedSlides are those of the transpose of a convolution that has the given positions on an image of size elements:
// all elements of the image which are equal modulo the stride meet the same taps, at neighbouring positions.
func transposedSlides(size, positions, taps, stride, dilation, pad int) (list []slide) {
	for r := range min(stride, size) {
		s := slide{size: positions, positions: ceilDiv(size-r, stride), stride: 1,
			out0: r, outStep: stride, outSize: size, tapStep: stride / gcd(dilation, stride)}
		for s.tap0 < taps && (r+pad-s.tap0*dilation)%stride != 0 {
			s.tap0++
		}
		if s.tap0 < taps {
			s.taps = ceilDiv(taps-s.tap0, s.tapStep)
			s.first = (r + pad - s.tap0*dilation) / stride
			s.step = -dilation * s.tapStep / stride
		}
		list = append(list, s)
	}
	return list
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// A patches is a factor whose matrix is not in memory: patches of images [N, H, W, channels]; see src/patches.cuh. Its rows
// are positions, its columns taps and channels.
type patches struct {
	slides   [2]slide // of rows and of columns of the image
	images   int
	channels int    // of a patch
	groups   int    // of channels
	stride   [4]int // of the images
	offset   int
	dtype    graph.DType
	kInner   bool // k counts the columns
	// joins, if not 0, is how many neighbouring pixels of an image one of the patches is, whose channels are those of all. The
	// first tap is the first of such a pixel, or, if shift is 1, the second, and the first is none.
	joins, shift int
	// filled, if not 0, is how many of the channels are in memory; the others are 0.
	filled int
}

// A taps is the layout of filters, of columns and then rows of them.
type taps struct {
	channels      int
	count, stride [2]int
}

// newPatches describes patches of that many of the channels of images x in NHWC.
func newPatches(x Operand, s [2]slide, channels int) *patches {
	p := &patches{slides: s, images: x.Layout.Shape.At(0), channels: channels, groups: x.Layout.Shape.At(3) / max(channels, 1),
		offset: x.Layout.Offset, dtype: x.DType}
	for i := range p.stride {
		if x.Layout.Shape.At(i) != 1 {
			p.stride[i] = x.Layout.Stride[i]
		}
	}
	return p
}

// pairs reports whether two neighbouring pixels, filled up to four channels each, can be one: windows move by two, and both fit
// into 16 bytes.
func (p *patches) pairs() bool {
	x := p.slides[1]
	return x.stride == 2 && x.step == 1 && x.size%2 == 0 && 2*roundUp(p.channels, 4)*p.dtype.Size() <= 16
}

// pairsWhole reports whether such pairs have no pixels beside a window.
func (p *patches) pairsWhole() bool { return (p.slides[1].taps|p.slides[1].first)%2 == 0 }

// pairUp takes two neighbouring pixels as one: pieces are then twice as long, and half as many.
func (p *patches) pairUp() {
	x := &p.slides[1]
	p.joins, p.shift = 2, x.first&1
	x.taps, x.first = ceilDiv(x.taps+p.shift, 2), (x.first-p.shift)/2
	x.size, x.stride = x.size/2, 1
	p.channels, p.stride[2] = 2*p.channels, 2*p.stride[2]
}

// joinRow takes the taps of a row, which are neighbours in images that have all of them, as one pixel. Pixels overlap in memory,
// and their channels are filled up to whole slices.
func (p *patches) joinRow() {
	x, each := &p.slides[1], p.channels
	p.filled = x.taps * each
	p.channels = roundUp(p.filled, sliceBytes/p.dtype.Size())
	p.joins = p.channels / each
	p.stride[2] *= x.stride
	x.size, x.stride, x.first, x.taps = x.positions, 1, 0, 1
}

// pixels is how many pixels of an image make up one of the patches.
func (p *patches) pixels() int { return max(p.joins, 1) }

// factor is operand A of a product whose axis 3 counts the groups of channels.
func (p *patches) factor(arg int) factor {
	return factor{arg: arg, dtype: p.dtype, offset: p.offset, batch: []int{0, 0, 0, p.channels * p.stride[3]}, patches: p}
}

// flatten describes patches that are a matrix in memory as one.
func (f *factor) flatten() {
	row, ok := f.patches.plain()
	if !ok {
		return
	}
	f.outer, f.k = row, f.patches.stride[3]
	if !f.patches.kInner {
		f.outer, f.k = f.k, f.outer
	}
	f.patches = nil
}

// rows and cols are the sizes of the matrix.
func (p *patches) rows() int { return p.images * p.slides[0].positions * p.slides[1].positions }
func (p *patches) cols() int { return p.slides[0].taps * p.slides[1].taps * p.channels }

// vec is how many channels, a power of two of at most 16 bytes, make up an aligned piece.
func (p *patches) vec() int {
	if p.stride[3] != 1 && p.channels != 1 {
		return 1
	}
	steps := p.channels | p.offset
	for _, s := range p.stride[:3] {
		steps |= s
	}
	vec := 1
	for 2*vec*p.dtype.Size() <= 16 && steps%(2*vec) == 0 {
		vec *= 2
	}
	return vec
}

// boxed reports whether the copy engine of Hopper can take the patches from the images: in boxes of sliceBytes of channels,
// each of one tap at neighbouring positions.
func (p *patches) boxed() bool {
	size := p.dtype.Size()
	t := p.tensorMap(Param{}, 1, true)
	far := func(s slide) bool { return (s.taps-1)*max(s.step, -s.step) > math.MaxUint8 }
	if p.stride[3] != 1 || p.channels*size%sliceBytes != 0 || p.offset*size%16 != 0 || p.rows()*p.cols() == 0 ||
		far(p.slides[0]) || far(p.slides[1]) || !t.Windows.Valid(t.Dims) {
		return false
	}
	least := uint64(p.width() * size)
	if p.filled > 0 {
		least = 0 // pixels overlap
	}
	for i, s := range t.Strides {
		if s%16 != 0 || s < least || s >= 1<<40 || p.stride[2-i] < 0 {
			return false
		}
		least = s * t.Dims[1+i]
	}
	return true
}

// gathered reports whether the factor is patches that threads copy to shared memory, as the copy engine cannot.
func (f *factor) gathered() bool { return f.patches != nil && !f.patches.boxed() }

// tensorMap describes the images to the copy engine, which takes `box` positions at once or, if k counts them, as many as a
// slice has.
func (p *patches) tensorMap(base Param, box int, kInner bool) *TensorMap {
	size := p.dtype.Size()
	y, x := p.slides[0], p.slides[1]
	slice := sliceBytes / size
	if !kInner {
		box = slice
	}
	t := &TensorMap{Base: base, DType: p.dtype, Swizzle: sliceBytes, Box: []uint32{uint32(slice), uint32(box)},
		Dims: []uint64{uint64(cmp.Or(p.filled, p.width())), uint64(x.size), uint64(y.size), uint64(p.images)}, Windows: &Windows{}}
	for i, s := range []slide{x, y} {
		t.Windows.First[i] = s.first + min(s.step, 0)*(s.taps-1)
		t.Windows.Count[i], t.Windows.Step[i] = s.positions, s.stride
	}
	whole := t.Dims[0] * uint64(size)
	for i := range 3 {
		step := uint64(p.stride[2-i] * size)
		if t.Dims[1+i] == 1 { // never taken, but must be right
			step = (whole + 15) / 16 * 16
		}
		t.Strides = append(t.Strides, step)
		whole = step * t.Dims[1+i]
	}
	return t
}

// width is how many channels the images have, of all groups.
func (p *patches) width() int { return p.channels * p.groups }

// plain gives the matrix that the patches are in memory, if they are one: those of windows of one element, in steps of one.
func (p *patches) plain() (rowStride int, ok bool) {
	for _, s := range p.slides {
		if s.taps != 1 || s.stride != 1 || s.first != 0 || s.positions != s.size {
			return 0, false
		}
	}
	l := graph.Layout{Shape: graph.ShapeOf(p.images, p.slides[0].size, p.slides[1].size)}
	copy(l.Stride[:], p.stride[:3])
	l, ok = l.Reshape(graph.ShapeOf(p.rows()))
	return l.Stride[0], ok
}

// write prints the patches as the Image of a Problem.
func (p *patches) write(u *unit) {
	y, x := p.slides[0], p.slides[1]
	typ, span := "int", p.rows()
	for i, n := range []int{p.images, y.size + y.taps, x.size + x.taps, p.channels} {
		span += n * max(p.stride[i], -p.stride[i])
	}
	if 2*span > math.MaxInt32 {
		typ = "i64"
	}
	u.printf("  struct Image {\n    typedef %s Offset;\n", typ)
	u.printf("    static constexpr int C = %d, KH = %d, KW = %d, OH = %d, OW = %d, H = %d, WIDTH = %d;\n", max(p.channels, 1),
		max(y.taps, 1), max(x.taps, 1), max(y.positions, 1), max(x.positions, 1), y.size, x.size)
	u.printf("    static constexpr int SY = %d, SX = %d, Y0 = %d, X0 = %d, DY = %d, DX = %d, ROWS = %d, COLS = %d;\n",
		y.stride, x.stride, y.first, x.first, y.step, x.step, p.rows(), p.cols())
	u.printf("    static constexpr int FILLED = %d;\n", cmp.Or(p.filled, max(p.channels, 1)))
	u.printf("    static constexpr i64 S_N = %d, S_Y = %d, S_X = %d, S_C = %d;\n  };\n", p.stride[0], p.stride[1], p.stride[2],
		p.stride[3])
}
