package graph

import (
	"fmt"
	"math"
	"slices"
)

// Window is how the window of a convolution or of a pool moves over images [N,C,...] of one, two or three axes. Each list
// has a number for each of these axes.
type Window struct {
	Kernel   []int // its size; convolutions take that of their filters
	Stride   []int // nil: 1
	Dilation []int // the distance between neighbours within the window; nil: 1
	Lo, Hi   []int // padding before and after the elements; nil: 0
	// Ceil lets pools have one more window along an axis, if it begins on an element or in the padding before the elements,
	// and not all of it fits.
	Ceil bool
}

// The operations on images have two axes. One over a single axis is one over rows of height 1. A convolution of three axes
// whose filters have one element along the last two is one over [depth, height·width]. Any other is
//
//	x [N,C,D,H,W] ─► slices of the depth, side by side ─► [N·OD,H,W,KD·C] ─► conv2d with filters [O,KD·C,KH,KW]
//
// which takes KD times the memory of x, and multiplies once, as a kernel for three axes would. Channels are last in between: in
// NHWC no slice is turned, and images stay so from one convolution to the next. With groups of channels it is the sum of a conv2d
// for each slice of the filters. Its transpose multiplies once, too, and sums slices by col2im. Pools over three axes are two pools
// one after the other, since neither a maximum nor a mean depends on how a block is divided. So all targets compute these, and
// their gradients.

// maxAxes is how many axes a window moves over at most.
const maxAxes = 3

// A slide is a Window along one axis.
type slide struct{ kernel, stride, dilation, lo, hi int }

// still is the slide along an axis that an image does not have.
var still = slide{1, 1, 1, 0, 0}

// slides are the window's along depth, height and width, for images of so many axes.
func (w Window) slides(axes int, kernel []int) (s [maxAxes]slide, err error) {
	for i := range s {
		s[i] = still
	}
	for _, f := range []struct {
		name string
		list []int
		min  int
		at   func(*slide) *int
	}{
		{"kernel", kernel, 1, func(s *slide) *int { return &s.kernel }},
		{"stride", w.Stride, 1, func(s *slide) *int { return &s.stride }},
		{"dilation", w.Dilation, 1, func(s *slide) *int { return &s.dilation }},
		{"padding before", w.Lo, 0, func(s *slide) *int { return &s.lo }},
		{"padding after", w.Hi, 0, func(s *slide) *int { return &s.hi }},
	} {
		if f.list == nil && f.name != "kernel" {
			continue
		}
		if len(f.list) != axes {
			return s, fmt.Errorf("the %s is %v for images of %d axes", f.name, f.list, axes)
		}
		for i, v := range f.list {
			if v < f.min || v > maxWindow {
				return s, fmt.Errorf("the %s is %v: want %d to %d", f.name, f.list, f.min, maxWindow)
			}
			*f.at(&s[maxAxes-axes+i]) = v
		}
	}
	for i := range s {
		if s[i].kernel == 1 {
			s[i].dilation = 1
		}
	}
	return s, nil
}

// imageAxes is the number of axes of images [N,C,...].
func imageAxes(n *Node) (int, error) {
	axes := n.Type.Shape.Rank() - 2
	if axes < 1 || axes > maxAxes {
		return 0, fmt.Errorf("%s of type %v: want [n, c, ...] with one to %d axes behind", n.Where(), n.Type, maxAxes)
	}
	return axes, nil
}

// deep is a shape of rank 3 to 5 with axes of size 1 for those that it lacks: [n,c,d,h,w].
func deep(s Shape) [5]int {
	r := [5]int{1, 1, 1, 1, 1}
	dims := s.Slice()
	copy(r[:], dims[:2])
	copy(r[5-len(dims)+2:], dims[2:])
	return r
}

// flat reshapes a value to [n,c,d,h,w] without the axes that images of fewer axes lack.
func (b *Builder) flat(x *Node, axes int, dims ...int) *Node {
	if b.err != nil {
		return b.bad
	}
	return b.Reshape(x, slices.Concat(dims[:2], dims[5-axes:])...)
}

// filters checks the operands of a convolution; its filters' axis over is that of x's channels.
func (w Window) filters(x, f *Node, groups, over int) (axes int, s [maxAxes]slide, err error) {
	if axes, err = imageAxes(x); err != nil {
		return
	}
	if f.Type.Shape.Rank() != axes+2 {
		return axes, s, fmt.Errorf("%s of type %v: want filters of rank %d for %s of type %v",
			f.Where(), f.Type, axes+2, x.Where(), x.Type)
	}
	kernel := f.Type.Shape.Slice()[2:]
	if w.Kernel != nil && !slices.Equal(w.Kernel, kernel) {
		return axes, s, fmt.Errorf("the window is %v, but %s is of type %v", w.Kernel, f.Where(), f.Type)
	}
	if s, err = w.slides(axes, kernel); err != nil {
		return axes, s, fmt.Errorf("%s of type %v: %w", x.Where(), x.Type, err)
	}
	o, c, channels := f.Type.Shape.At(0), f.Type.Shape.At(1), x.Type.Shape.At(1)
	if groups < 1 || c > MaxElems/groups || o%groups != 0 || channels != []int{o, c * groups}[over] {
		err = fmt.Errorf("channels do not fit: %s of type %v, %s of type %v, %d groups", x.Where(), x.Type, f.Where(), f.Type, groups)
	}
	return
}

// two are attributes of an operation that slides along two axes.
func two(a, b slide) (stride, dilation, pad Ints) {
	return IntsOf(a.stride, b.stride), IntsOf(a.dilation, b.dilation), IntsOf(a.lo, b.lo, a.hi, b.hi)
}

// Convolve is the convolution (cross-correlation) of images x [N,C,...] of one, two or three axes with filters w
// [O,C/groups,...] that have as many: [N,O,...].
func (b *Builder) Convolve(x, w *Node, win Window, groups int) *Node {
	if b.err != nil {
		return b.bad
	}
	axes, s, err := win.filters(x, w, groups, 1)
	if err != nil {
		return b.Fail(err)
	}
	xs, ws := deep(x.Type.Shape), deep(w.Type.Shape)
	conv := func(x, w *Node, a, c slide) (y *Node, height, width int) {
		stride, dilation, pad := two(a, c)
		if y = b.Add(Conv2D{Stride: stride, Dilation: dilation, Pad: pad, Groups: groups}, x, w); b.err == nil {
			height, width = y.Type.Shape.At(2), y.Type.Shape.At(3)
		}
		return
	}
	if axes == maxAxes && s[1] == still && s[2] == still {
		y, od, _ := conv(b.Reshape(x, xs[0], xs[1], xs[2], xs[3]*xs[4]), b.Reshape(w, ws[0], ws[1], ws[2], 1), s[0], still)
		return b.flat(y, axes, xs[0], ws[0], od, xs[3], xs[4])
	}
	if axes < maxAxes {
		y, oh, ow := conv(b.Reshape(x, xs[0], xs[1], xs[3], xs[4]), b.Reshape(w, ws[0], ws[1], ws[3], ws[4]), s[1], s[2])
		return b.flat(y, axes, xs[0], ws[0], 1, oh, ow)
	}
	d := s[0]
	od, err := window(xs[2], d.lo, d.hi, d.kernel, d.stride, d.dilation)
	if err != nil {
		return b.Fail(fmt.Errorf("%s of type %v: %w", x.Where(), x.Type, err))
	}
	if x = b.Transpose(x, 0, 2, 3, 4, 1); d.lo+d.hi > 0 {
		x = b.Add(Pad{Lo: IntsOf(0, d.lo, 0, 0, 0), Hi: IntsOf(0, d.hi, 0, 0, 0)}, x)
	}
	slice := func(k int) *Node { return b.Slice(x, 1, k*d.dilation, od, d.stride) }
	images := func(x *Node, channels int) *Node {
		return b.Transpose(b.Reshape(x, xs[0]*od, xs[3], xs[4], channels), 0, 3, 1, 2)
	}
	var y *Node
	var oh, ow int
	if groups == 1 {
		parts := make([]*Node, d.kernel)
		for k := range parts {
			parts[k] = slice(k)
		}
		joined := parts[0]
		if len(parts) > 1 {
			joined = b.Add(Concat{Axis: 4}, parts...)
		}
		filters := b.Reshape(b.Transpose(w, 0, 2, 1, 3, 4), ws[0], ws[2]*ws[1], ws[3], ws[4])
		y, oh, ow = conv(images(joined, ws[2]*xs[1]), filters, s[1], s[2])
	} else {
		for k := range d.kernel {
			var part *Node
			part, oh, ow = conv(images(slice(k), xs[1]), b.Reshape(b.Slice(w, 2, k, 1, 1), ws[0], ws[1], ws[3], ws[4]), s[1], s[2])
			if k > 0 {
				part = b.Binary(Add, y, part)
			}
			y = part
		}
	}
	y = b.Reshape(b.Transpose(y, 0, 2, 3, 1), xs[0], od, oh, ow, ws[0])
	return b.Transpose(y, 0, 4, 1, 2, 3)
}

// ConvolveTransposed is the transpose, as a linear map, of [Builder.Convolve] with filters w [O,C/groups,...]: from x
// [N,O,...] it makes images [N,C,...]. Along each axis these have the smallest size from which the convolution makes images
// like x, plus extra, which is nil for 0. What no window reaches is 0.
func (b *Builder) ConvolveTransposed(x, w *Node, win Window, groups int, extra []int) *Node {
	if b.err != nil {
		return b.bad
	}
	axes, s, err := win.filters(x, w, groups, 0)
	if err != nil {
		return b.Fail(err)
	}
	xs, ws := deep(x.Type.Shape), deep(w.Type.Shape)
	more := Window{Lo: extra} // checks extra, too
	behind, err := more.slides(axes, w.Type.Shape.Slice()[2:])
	if err != nil {
		return b.Fail(fmt.Errorf("%s of type %v: extra elements: %w", x.Where(), x.Type, err))
	}
	var size, zeros [maxAxes]int
	for i := range s {
		e := behind[i].lo
		cut := min(e, s[i].hi) // padding that is not cut off
		s[i].hi -= cut
		zeros[i] = max(e-cut-(s[i].stride-1), 0)
		size[i] = (xs[2+i]-1)*s[i].stride + s[i].dilation*(s[i].kernel-1) + 1 - s[i].lo - s[i].hi + e - cut - zeros[i]
	}
	elems := 1
	for i, v := range size {
		if v < 1 || v > MaxElems/elems {
			return b.Fail(fmt.Errorf("%s of type %v: images of %v elements", x.Where(), x.Type, size[maxAxes-axes:]))
		}
		elems *= size[i]
	}
	conv := func(x, w *Node, a, c slide, height, width int) *Node {
		stride, dilation, pad := two(a, c)
		return b.Add(Conv2DTranspose{Stride: stride, Dilation: dilation, Pad: pad, Groups: groups, H: height, W: width}, x, w)
	}
	channels := ws[1] * groups
	var y *Node
	switch {
	case axes < maxAxes:
		y = conv(b.Reshape(x, xs[0], xs[1], xs[3], xs[4]), b.Reshape(w, ws[0], ws[1], ws[3], ws[4]), s[1], s[2], size[1], size[2])
	case s[1] == still && s[2] == still && xs[3] == size[1] && xs[4] == size[2]:
		y = conv(b.Reshape(x, xs[0], xs[1], xs[2], xs[3]*xs[4]), b.Reshape(w, ws[0], ws[1], ws[2], 1), s[0], still, size[0], xs[3]*xs[4])
	default:
		rows := b.Reshape(b.Transpose(x, 0, 2, 1, 3, 4), xs[0]*xs[2], xs[1], xs[3], xs[4])
		y = conv(rows, b.Reshape(w, ws[0], ws[1]*ws[2], ws[3], ws[4]), s[1], s[2], size[1], size[2])
		if b.err != nil {
			return b.bad
		}
		y = b.Reshape(b.Transpose(y, 0, 2, 3, 1), xs[0], xs[2], size[1]*size[2], channels*ws[2])
		stride, dilation, pad := two(s[0], still)
		y = b.Add(Col2Im{IntsOf(s[0].kernel, 1), stride, dilation, pad, size[0], size[1] * size[2]}, y)
	}
	y = b.flat(y, axes, xs[0], channels, size[0], size[1], size[2])
	if b.err == nil && zeros != [maxAxes]int{} {
		hi := slices.Concat([]int{0, 0}, zeros[maxAxes-axes:])
		y = b.Add(Pad{Lo: IntsOf(make([]int, len(hi))...), Hi: IntsOf(hi...)}, y)
	}
	return y
}

// MaxPool is the maximum of each window of x [N,C,...] of one, two or three axes. Padding counts as −Inf.
func (b *Builder) MaxPool(x *Node, win Window) *Node { return b.pool(MaxPool, x, win, false) }

// AvgPool is the mean of each window of x [N,C,...] of one, two or three axes. With countPad, padding counts as zeros; else
// it is left out. What a window of [Window.Ceil] has beyond the padding is always left out.
func (b *Builder) AvgPool(x *Node, win Window, countPad bool) *Node {
	return b.pool(AvgPool, x, win, countPad)
}

// LpPool is (Σ|x|^p)^(1/p) over each window of x [N,C,...] of one, two or three axes, p > 0. Padding counts as zeros. Its
// gradient is not a number where all of a window is 0, unless p is 1.
func (b *Builder) LpPool(x *Node, win Window, p float64) *Node {
	if b.err != nil {
		return b.bad
	}
	if !(p > 0) || math.IsInf(p, 1) {
		return b.Fail(fmt.Errorf("%s of type %v: pooled by p = %v: want a positive number", x.Where(), x.Type, p))
	}
	power := func(x *Node, p float64) *Node {
		switch p {
		case 1:
			return x
		case 2:
			return b.Unary(Square, x)
		case 0.5:
			return b.Unary(Sqrt, x)
		}
		return b.BinaryScalar(Pow, x, p)
	}
	if p != 2 {
		x = b.Unary(Abs, x)
	}
	elems := 1.0
	for _, k := range win.Kernel {
		elems *= float64(k)
	}
	x = power(x, p)
	if win.Ceil { // zeros as far as the last window reaches
		s, err := win.over(x)
		if err != nil {
			return b.Fail(err)
		}
		win.Ceil, win.Hi = false, make([]int, len(win.Kernel))
		for i := range win.Hi {
			a := s[maxAxes-len(win.Hi)+i]
			win.Hi[i] = a.hi + a.beyond(x.Type.Shape.At(2+i), true)
		}
	}
	y := b.AvgPool(x, win, true)
	if b.err != nil {
		return b.bad
	}
	return power(b.BinaryScalar(Mul, y, elems), 1/p)
}

// over are the window's slides over images x.
func (w Window) over(x *Node) (s [maxAxes]slide, err error) {
	axes, err := imageAxes(x)
	if err != nil {
		return s, err
	}
	if s, err = w.slides(axes, w.Kernel); err != nil {
		err = fmt.Errorf("%s of type %v: %w", x.Where(), x.Type, err)
	}
	return s, err
}

// beyond is how far the last window of [Window.Ceil] reaches over the end of the padding, if ceil is set.
func (s slide) beyond(size int, ceil bool) int {
	room := s.lo + size + s.hi - s.dilation*(s.kernel-1) - 1 // where the last window may begin
	if !ceil || room < 0 || room%s.stride == 0 {
		return 0
	}
	begin := (room/s.stride + 1) * s.stride
	if begin >= s.lo+size {
		return 0
	}
	return begin - room
}

// pool pools over height and width, then over depth.
func (b *Builder) pool(fn PoolFn, x *Node, win Window, countPad bool) *Node {
	if b.err != nil {
		return b.bad
	}
	s, err := win.over(x)
	if err != nil {
		return b.Fail(err)
	}
	xs, axes := deep(x.Type.Shape), len(win.Kernel)
	y := x
	if s[1] != still || s[2] != still || axes < maxAxes {
		y = b.pool2D(fn, b.Reshape(y, xs[0], xs[1]*xs[2], xs[3], xs[4]), s[1], s[2], win.Ceil, countPad)
		if b.err != nil {
			return b.bad
		}
		xs[3], xs[4] = y.Type.Shape.At(2), y.Type.Shape.At(3)
	}
	if s[0] != still {
		y = b.pool2D(fn, b.Reshape(y, xs[0], xs[1], xs[2], xs[3]*xs[4]), s[0], still, win.Ceil, countPad)
		if b.err != nil {
			return b.bad
		}
		xs[2] = y.Type.Shape.At(2)
	}
	return b.flat(y, axes, xs[:]...)
}

// pool2D pools x [N,C,H,W]. A window with distances between its elements is made an image of its own.
func (b *Builder) pool2D(fn PoolFn, x *Node, v, h slide, ceil, countPad bool) *Node {
	s := x.Type.Shape
	over := [2]int{v.beyond(s.At(2), ceil), h.beyond(s.At(3), ceil)}
	surround := func(value float64) {
		if v.lo+v.hi+h.lo+h.hi > 0 {
			x = b.Add(Pad{IntsOf(0, 0, v.lo, h.lo), IntsOf(0, 0, v.hi, h.hi), value}, x)
		}
		v.lo, v.hi, h.lo, h.hi = 0, 0, 0, 0
	}
	if over != [2]int{} && fn == AvgPool && countPad {
		surround(0)
		countPad = false
	}
	v.hi, h.hi = v.hi+over[0], h.hi+over[1]
	op := Pool{Fn: fn, Kernel: IntsOf(v.kernel, h.kernel), CountPad: countPad}
	if v.dilation == 1 && h.dilation == 1 {
		op.Stride, _, op.Pad = two(v, h)
		return b.Add(op, x)
	}
	if fn == MaxPool {
		surround(math.Inf(-1))
	}
	if b.err != nil {
		return b.bad
	}
	s = x.Type.Shape
	stride, dilation, pad := two(v, h)
	cols := b.Add(Im2Col{op.Kernel, stride, dilation, pad}, x)
	if b.err != nil {
		return b.bad
	}
	n, oh, ow, c := s.At(0), cols.Type.Shape.At(1), cols.Type.Shape.At(2), s.At(1)
	op.Stride, op.Pad, op.CountPad = IntsOf(1, 1), IntsOf(0, 0, 0, 0), true
	y := b.Add(op, b.Reshape(cols, n*oh*ow, c, v.kernel, h.kernel))
	y = b.Transpose(b.Reshape(y, n, oh, ow, c), 0, 3, 1, 2)
	if fn == AvgPool && !countPad {
		y = b.uncount(b.uncount(y, v, 2, s.At(2)), h, 3, s.At(3))
	}
	return y
}

// uncount turns means over all elements of windows along an axis into means over those that are not padding; size is the
// pooled images' along the axis.
func (b *Builder) uncount(y *Node, s slide, axis, size int) *Node {
	if b.err != nil || s.lo+s.hi == 0 {
		return y
	}
	if max(s.lo, s.hi) > max(maxPool, size) {
		return b.Fail(fmt.Errorf("padding %d and %d is larger than the image, of %d, and than %d", s.lo, s.hi, size, maxPool))
	}
	t := NewTensor(TypeOf(y.Type.DType, y.Type.Shape.At(axis)))
	for i := range y.Type.Shape.At(axis) {
		first := i*s.stride - s.lo
		before := min(s.kernel, (max(-first, 0)+s.dilation-1)/s.dilation)            // elements before the image
		within := min(s.kernel, max(size-first+s.dilation-1, 0)/s.dilation) - before // elements in it
		t.SetFloat(i, float64(s.kernel)/float64(within))
	}
	return b.Binary(Mul, y, b.Broadcast(b.Reshape(b.Const(t), []int{t.Type.Shape.At(0), 1}[:4-axis]...), y.Type.Shape))
}
