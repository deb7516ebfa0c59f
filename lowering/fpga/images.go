package fpga

import (
	"errors"
	"fmt"
	"slices"

	"fusec/fpga/isa"
	"fusec/graph"
	"fusec/graph/body"
	"fusec/lowering"
)

// channelsLast is images in the order in which the overlay's memory has them: a row is a pixel, whose channels lie side by
// side.
func channelsLast(l graph.Layout, images graph.ImageLayout) graph.Layout {
	return l.Transpose(graph.ImagePerm(images, graph.NHWC))
}

// window is how the window of a convolution or of a pool moves over images, whose filters read channels in groups.
type window struct {
	images, h, w, c                    int // of the operand
	oh, ow, o                          int // of the result
	kh, kw                             int
	strideH, strideW, dilateH, dilateW int
	top, left                          int // padding
	groups                             int
}

// newWindow is the window of an operation on images of shape x with a result of shape y.
func newWindow(l graph.ImageLayout, x, y graph.Shape, kh, kw int, stride, dilation, pad graph.Ints, groups int) *window {
	w := &window{kh: kh, kw: kw, strideH: stride.At(0), strideW: stride.At(1), dilateH: dilation.At(0), dilateW: dilation.At(1),
		top: pad.At(0), left: pad.At(1), groups: groups}
	w.images, w.c, w.h, w.w = l.ImageDims(x)
	_, w.o, w.oh, w.ow = l.ImageDims(y)
	return w
}

// pixels is how many pixels the result has.
func (w *window) pixels() int { return w.images * w.oh * w.ow }

// taps is the number of a window's pixels.
func (w *window) taps() int { return w.kh * w.kw }

// whole reports whether the window is the image, so that a patch is all of its pixels, side by side.
func (w *window) whole() bool {
	return w.kh == w.h && w.kw == w.w && w.oh == 1 && w.ow == 1 && w.top == 0 && w.left == 0 && w.dilateH == 1 && w.dilateW == 1
}

// point reports whether patches are the pixels themselves.
func (w *window) point() bool {
	return w.taps() == 1 && w.strideH == 1 && w.strideW == 1 && w.oh == w.h && w.ow == w.w && w.top == 0 && w.left == 0
}

// outside reports whether a window has no pixel of the image.
func (w *window) outside() bool {
	for y := range w.oh {
		if from, to := valid(y*w.strideH-w.top, w.dilateH, w.h, w.kh); from == to {
			return true
		}
	}
	for x := range w.ow {
		if from, to := valid(x*w.strideW-w.left, w.dilateW, w.w, w.kw); from == to {
			return true
		}
	}
	return false
}

// unit is some of a convolution's results that are one product, and the words of a pixel that they are computed of.
type unit struct{ first, n, word, words int }

// units lists the products of a convolution on an overlay whose array has so many columns, in order of their results. A
// product takes whole groups, as many as fill columns.
func (w *window) units(cols, wordBytes int) (list []unit) {
	c, o := w.c/w.groups, w.o/w.groups
	groups := 1 // of a unit
	for groups < w.groups && groups*o%cols != 0 {
		groups++
	}
	for g := 0; g < w.groups; g += groups {
		n := min(groups, w.groups-g)
		first := g * c / wordBytes
		list = append(list, unit{g * o, n * o, first, ceil((g+n)*c, wordBytes) - first})
	}
	return list
}

// apart reports whether patches are stored word by word of a pixel, so that each unit finds its words of all pixels of a
// window side by side, and one Load serves several units. It is so with groups, if the scratchpads hold a unit.
func (w *window) apart(c isa.Config) bool {
	if w.groups == 1 || !c.Patches || w.taps() > 255 {
		return false
	}
	for _, u := range w.units(c.Cols, c.WordBytes) {
		words, tiles := w.taps()*u.words, ceil(u.n, c.Cols)
		if u.words > 255 || 2*words > c.XWords || 2*tiles*words > c.WWords || tiles > 255 || 8*tiles*c.Cols/c.WordBytes > c.YWords ||
			2*tiles*c.Cols > c.Params {
			return false
		}
	}
	return true
}

// place is the pixel of the window and the channel of the image that byte k of a unit's patches holds.
func (w *window) place(wordBytes int, apart bool, u unit, k int) (tap, channel int) {
	word, at := k/wordBytes, k%wordBytes
	if apart {
		return word % w.taps(), (u.word+word/w.taps())*wordBytes + at
	}
	return word / u.words, (u.word+word%u.words)*wordBytes + at
}

// fill is how many words are read for pixels outside an image: a row of the window, or one word of all its pixels.
func (w *window) fill(wordBytes int) int { return max(w.kw*ceil(w.c, wordBytes), w.taps()) }

// filters are the weights of a convolution: element (o, c, y, x), c counted within the group.
type filters func(o, c, y, x int) float64

// filtersOf reads the weights of a task: of the source if it has one, otherwise all are 1.
func (t *task) filters(bound []*graph.Tensor) (filters, error) {
	w := t.weight
	if w == nil {
		return func(int, int, int, int) float64 { return 1 }, nil
	}
	s := w.from
	v := s.tensor
	if s.buffer >= 0 {
		v = bound[s.buffer]
	}
	if v == nil {
		return nil, errors.New("no value")
	}
	l := s.layout
	return func(o, c, y, x int) float64 {
		return v.Float(l.Offset + o*l.Stride[0] + c*l.Stride[1] + y*l.Stride[2] + x*l.Stride[3])
	}, nil
}

// findImages lists the buffers of images with their layouts: operands and results of convolutions and pools, and of
// operations on numbers of the same shape.
func (m *partition) findImages() {
	m.images = map[int]graph.ImageLayout{}
	mark := func(l *lowering.Launch, of graph.ImageLayout) (more bool) {
		for _, v := range slices.Concat(l.Args, l.Results) {
			b := m.p.Buffers[v.Buffer]
			_, known := m.images[v.Buffer]
			if v.Layout.Shape.Rank() == 4 && v.Layout.IsContiguous() && b.Role != lowering.Param && b.Role != lowering.Const && !known {
				m.images[v.Buffer], more = of, true
			}
		}
		return more
	}
	for i := range m.p.Launches {
		if l := &m.p.Launches[i]; m.launches[i].refusal == nil {
			if of, ok := imagesOf(l.Op); ok {
				mark(l, of)
			}
		}
	}
	for more := true; more; {
		more = false
		for i := range m.p.Launches {
			l := &m.p.Launches[i]
			if f, ok := l.Op.(graph.Fusion); ok && f.Anchor == graph.AnchorNone {
				if of, ok := m.layoutOf(l, f); ok {
					more = mark(l, of) || more
				}
			}
		}
	}
}

// imagesOf is the layout of the images that an operation is for.
func imagesOf(op graph.Op) (l graph.ImageLayout, ok bool) {
	switch op := op.(type) {
	case graph.Pool:
		return op.Layout, true
	case graph.Fusion:
		for _, n := range op.Body.Nodes {
			if op.Anchor == graph.AnchorConv {
				if c, ok := n.Op.(graph.Conv2D); ok {
					return c.Layout, true
				}
			}
			if l, ok := averages(n); ok && op.Anchor == graph.AnchorRow {
				return l, true
			}
		}
	}
	return l, false
}

// layoutOf is the layout of the images that a fusion is for: a convolution, sums of channels, or work on numbers that are
// images to other launches.
func (m *partition) layoutOf(l *lowering.Launch, f graph.Fusion) (graph.ImageLayout, bool) {
	if of, ok := imagesOf(f); ok || f.Anchor != graph.AnchorNone {
		return of, ok
	}
	for _, v := range slices.Concat(l.Args, l.Results) {
		if of, ok := m.images[v.Buffer]; ok && v.Layout.Shape.Rank() == 4 && v.Layout.IsContiguous() {
			return of, true
		}
	}
	return 0, false
}

// averages reports whether a node is the sum or the mean of each channel of images, and their layout.
func averages(n *graph.Node) (l graph.ImageLayout, ok bool) {
	op, ok := n.Op.(graph.Reduce)
	if !ok || n.Args[0].Type.Shape.Rank() != 4 || op.Fn != graph.Mean && op.Fn != graph.Sum {
		return l, false
	}
	switch op.Axes {
	case graph.IntsOf(2, 3):
		return graph.NCHW, true
	case graph.IntsOf(1, 2):
		return graph.NHWC, true
	}
	return l, false
}

// turnToChannelsLast has a part's program see images pixel by pixel.
func turnToChannelsLast(p *body.Part, of graph.ImageLayout) {
	turn := func(l graph.Layout) graph.Layout {
		if l.Shape.Rank() == 4 {
			l = channelsLast(l, of)
		}
		return l
	}
	p.Space = turn(graph.Layout{Shape: p.Space}).Shape
	p.Kept = turn(graph.Layout{Shape: p.Kept}).Shape
	for i := range p.Values {
		p.Values[i].Layout = turn(p.Values[i].Layout)
	}
	for i := range p.Stores {
		p.Stores[i].Layout = turn(p.Stores[i].Layout)
	}
}

// imageOf is all of a value whose layout is that of images, pixel by pixel: [N, H, W, C].
func (v *value) imageOf(l graph.Layout) (matrix, error) {
	s := l.Shape
	pixels := s.At(1) * s.At(2)
	rows, cols := s.At(0)*pixels, s.At(3)
	fits := func(strides ...int) bool {
		for i, d := range strides {
			if s.At(i) > 1 && l.Stride[i] != d {
				return false
			}
		}
		return l.Offset == 0 && rows*cols == v.rows*v.cols
	}
	planar := false
	switch {
	case fits(pixels*cols, s.At(2)*cols, cols, 1):
	case fits(pixels*cols, s.At(2), 1, pixels):
		planar = true
	default:
		return matrix{}, fmt.Errorf("a part of %s is seen as images", v.name)
	}
	if v.shaped && (v.rows != rows || v.cols != cols || v.planar != planar || v.pixels != pixels) {
		return matrix{}, fmt.Errorf("%s is seen as images and otherwise", v.name)
	}
	v.rows, v.cols, v.planar, v.pixels, v.shaped = rows, cols, planar, pixels, true
	return whole(v), nil
}

// index is the position of an element in the value's buffer.
func (v *value) index(row, col int) int {
	if v.planar {
		return row/v.pixels*v.pixels*v.cols + col*v.pixels + row%v.pixels
	}
	return row*v.cols + col
}

// conv begins a convolution.
func (t *matcher) conv(i int) error {
	n := t.p.Anchor
	op := n.Op.(graph.Conv2D)
	if x := n.Args[0].Type; x.DType.IsInt() {
		return fmt.Errorf("%s of integers %v", op.OpName(), x)
	}
	l := t.p.Operands[1].Layout.Transpose(graph.FilterPerm(op.Layout, graph.NCHW))
	x := t.p.Operands[0].Layout
	b := t.source(t.p.Operands[1].Arg, l)
	if !t.m.constant(b.buffer) {
		return fmt.Errorf("%s by filters that are computed", op.OpName())
	}
	image, err := t.matrix(t.source(t.p.Operands[0].Arg, x).buffer, channelsLast(x, op.Layout))
	if err != nil {
		return err
	}
	w := newWindow(op.Layout, x.Shape, n.Type.Shape, l.Shape.At(2), l.Shape.At(3), op.Stride, op.Dilation, op.Pad, op.Groups)
	k := l.Shape.At(1) * w.taps()
	if err := t.m.fitsContraction(k); err != nil {
		return err
	}
	if err := t.m.fitsWindow(w); err != nil {
		return err
	}
	t.open[i] = &task{launch: t.launch, part: &t.p.Segment, kind: taskConv, node: n, x: image, op: op, share: 1, window: w,
		weight: &weight{b, k, w.o}}
	return nil
}

// fitsWindow refuses windows whose addresses the overlay cannot make.
func (m *partition) fitsWindow(w *window) error {
	if !m.cfg.Patches && !w.whole() && !w.point() {
		return fmt.Errorf("windows over images: the overlay %s makes no addresses of patches", m.cfg.Name)
	}
	return nil
}

// flattened begins a product of images that are seen as rows with a constant matrix: a convolution whose window is the
// image.
func (t *matcher) flattened(i int, v *value) error {
	n, l := t.p.Anchor, t.p.Operands[0].Layout
	op := n.Op.(graph.MatMul)
	rows, cols := rowsOf(l.Shape)
	b := t.source(t.p.Operands[1].Arg, t.p.Operands[1].Layout)
	images := v.rows / v.pixels
	if !l.IsContiguous() || l.Offset != 0 || op.TransA || rows != images || cols != v.pixels*v.cols ||
		b.layout.Shape.Rank() != 2 || !t.m.constant(b.buffer) {
		return fmt.Errorf("%s is seen as images and otherwise", v.name)
	}
	if err := t.m.fitsContraction(cols); err != nil {
		return err
	}
	kAxis, nAxis := 0, 1
	if op.TransB {
		kAxis, nAxis = 1, 0
	}
	dk, dn := b.layout.Stride[kAxis], b.layout.Stride[nAxis]
	w := &window{images: images, h: 1, w: v.pixels, c: v.cols, oh: 1, ow: 1, o: b.layout.Shape.At(nAxis), kh: 1, kw: v.pixels,
		strideH: 1, strideW: 1, dilateH: 1, dilateW: 1, groups: 1}
	f := graph.Layout{Shape: graph.ShapeOf(w.o, w.c, 1, w.kw), Offset: b.layout.Offset}
	f.Stride[0], f.Stride[1], f.Stride[3] = dn, dk, w.c*dk
	if v.planar {
		f.Stride[1], f.Stride[3] = v.pixels*dk, dk
	}
	b.layout = f
	t.open[i] = &task{launch: t.launch, part: &t.p.Segment, kind: taskConv, node: n, x: whole(v), op: op, share: 1, window: w,
		weight: &weight{b, cols, w.o}}
	return nil
}

// errReduce is why the overlay does not take other reductions than norms and sums over the pixels of images.
var errReduce = errors.New("reduce: the overlay reduces no axis but in norms, and the pixels of images")

// reduce begins the sums or means of the channels of images.
func (t *matcher) reduce(i int) error {
	v := &t.p.Values[i]
	n := v.Node
	of, ok := averages(n)
	if !t.images || !ok {
		return errReduce
	}
	if t.uses[i] > 0 {
		return errors.New("a mean of channels is computed with in the same launch")
	}
	images, c, h, w := of.ImageDims(n.Args[0].Type.Shape)
	if err := t.m.fitsContraction(h * w); err != nil {
		return err
	}
	x, err := t.store(v.Args[0])
	if err != nil {
		return err
	}
	window := newWindow(of, n.Args[0].Type.Shape, of.Image(images, c, 1, 1), h, w, graph.IntsOf(1, 1), graph.IntsOf(1, 1),
		graph.IntsOf(0, 0, 0, 0), c)
	t.begin(i, taskConv, x).average(window, n.Op.(graph.Reduce).Fn == graph.Mean)
	return nil
}

// average has a task sum each channel over a window, or average it.
func (t *task) average(w *window, mean bool) {
	t.window = w
	if mean {
		t.terms = append(t.terms, term{graph.Div, false, number(float64(w.taps()))})
	}
}

// averaged is where the means of channels go, [N, C]; l sees them pixel by pixel.
func (t *matcher) averaged(buffer int, l graph.Layout) (matrix, error) {
	to := graph.Layout{Shape: graph.ShapeOf(l.Shape.At(0), l.Shape.At(3)), Offset: l.Offset}
	to.Stride[0], to.Stride[1] = l.Stride[0], l.Stride[3]
	return t.matrix(buffer, to)
}

// imageOf is an operand or a result of a launch, pixel by pixel.
func (m *partition) imageOf(v lowering.View, of graph.ImageLayout) (matrix, error) {
	if v.Layout.Shape.Elems() == 0 {
		return matrix{}, errNoElements
	}
	if d := m.p.Buffers[v.Buffer].Type.DType; d != graph.F32 && d != graph.F64 {
		return matrix{}, fmt.Errorf("type %v: the overlay's numbers stand for f32 and f64", d)
	}
	return m.value(v.Buffer).imageOf(channelsLast(v.Layout, of))
}

// pools are the kinds of tasks of pools.
var pools = map[graph.PoolFn]taskKind{graph.MaxPool: taskMax, graph.AvgPool: taskConv}

func init() {
	if err := graph.CheckPools("the overlay", pools); err != nil {
		panic(err)
	}
}

// matchPool lists the tasks of a pool: a maximum of its own kind, or a convolution by ones.
func (m *partition) matchPool(i int) ([]*task, error) {
	l := &m.p.Launches[i]
	op := l.Op.(graph.Pool)
	x, err := m.imageOf(l.Args[0], op.Layout)
	if err != nil {
		return nil, err
	}
	y, err := m.imageOf(l.Results[0], op.Layout)
	if err != nil {
		return nil, err
	}
	w := newWindow(op.Layout, l.Args[0].Layout.Shape, l.Results[0].Layout.Shape, op.Kernel.At(0), op.Kernel.At(1), op.Stride,
		graph.IntsOf(1, 1), op.Pad, x.v.cols)
	t := &task{launch: i, kind: taskMax, node: l.Node, op: op, x: x, out: y, share: 1, window: w}
	switch err := m.fitsWindow(w); {
	case err != nil:
		return nil, err
	case pools[op.Fn] == taskMax && w.outside():
		return nil, errors.New("the maximum of windows that lie outside the image")
	case pools[op.Fn] == taskMax:
		return []*task{t}, nil
	case op.Pad != graph.IntsOf(0, 0, 0, 0) && !op.CountPad:
		return nil, errors.New("a mean of windows that reach over the edge by different numbers of elements")
	}
	t.kind = taskConv
	t.average(w, true)
	return []*task{t}, m.fitsContraction(w.taps())
}

// matchCopy lists the task of a copy that takes images from one layout to another: the overlay's memory has both alike.
func (m *partition) matchCopy(i int) ([]*task, error) {
	l := &m.p.Launches[i]
	_, from := m.images[l.Args[0].Buffer]
	_, to := m.images[l.Results[0].Buffer]
	if shape := l.Args[0].Layout.Shape; (from || to) && shape.Rank() == 4 {
		for _, of := range []graph.ImageLayout{graph.NCHW, graph.NHWC} {
			x, err := m.imageOf(l.Args[0], of)
			if err != nil {
				continue
			}
			y, err := m.imageOf(l.Results[0], of)
			if err != nil {
				return nil, err
			}
			return []*task{{launch: i, kind: taskAffine, node: l.Node, op: l.Op, x: x, out: y, share: 1}}, nil
		}
	}
	return nil, errors.New("the overlay copies nothing that it does not compute, but images")
}
