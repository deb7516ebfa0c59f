package cuda

import (
	"fmt"
	"slices"
	"strings"

	"fusec/graph"
	"fusec/graph/body"
)

// compileConv makes the kernel of a fusion anchored on a convolution or its transpose. In NHWC these are products whose
// operand A is patches of images, or, where a filter has one element, a matrix in memory; without sums over channels they
// are windows that vectors of channels slide over. Other convolutions are computed one element at a time.
func compileConv(f graph.Fusion, args, results []Operand, cfg Config) (*Kernel, error) {
	p, err := body.Lower(f, args, results)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(p.Stores, func(s body.Store) bool { return s.Sums || s.Pool != nil }) {
		return nil, fmt.Errorf("CUDA has no kernel for %s with sums of channels or a pool", p.Anchor.Op.OpName())
	}
	if x := p.Anchor.Args[0].Type; x.DType.IsInt() {
		return nil, fmt.Errorf("CUDA has no kernel for %s of integers %v", p.Anchor.Op.OpName(), x)
	}
	u := newUnit(args, results)
	switch op := p.Anchor.Op.(type) {
	case graph.Conv2D:
		c := forwardConv(op, p)
		if op.Layout == graph.NHWC && (c.depthwise() || c.groups == 1 || min(c.channels, c.columns) >= leastGroup) {
			return c.kernel(u, p, cfg)
		}
		return directConv(u, op, p, cfg)
	case graph.Conv2DTranspose:
		if op.Layout != graph.NHWC {
			return nil, noLayout(op)
		}
		return transposedConv(op, p).kernel(u, p, cfg)
	}
	return nil, fmt.Errorf("CUDA has no kernel for %s in a fusion", p.Anchor.Op.OpName())
}

// leastGroup is how many channels and columns a group has at least for its product to be worth it.
const leastGroup = 8

// directConv makes elementwise work in which each thread sums the products of its elements.
func directConv(u *unit, op graph.Conv2D, p *body.Program, cfg Config) (*Kernel, error) {
	n := p.Anchor
	from, filters := p.Operands[0], p.Operands[1]
	x := from.Layout.Transpose(graph.ImagePerm(op.Layout, graph.NCHW))
	w := filters.Layout.Transpose(graph.FilterPerm(op.Layout, graph.NCHW))
	_, o, oh, ow := op.Layout.ImageDims(p.Space)
	u.window(graph.IntsOf(w.Shape.At(2), w.Shape.At(3)), op.Stride, op.Dilation, op.Pad, x.Shape, oh, ow)
	strides := func(l graph.Layout) string {
		return fmt.Sprintf("Strides<%d, %d, %d, %d>", l.Stride[0], l.Stride[1], l.Stride[2], l.Stride[3])
	}
	e, err := newElementwise(u, p, cfg, false, func(b *printer) {
		expr := fmt.Sprintf("conv<Problem, %s, %s, %d, %d, %s, %s, %v>", b.width(), lane(n.Type.DType), o, op.Groups,
			strides(x), strides(w), op.Layout == graph.NHWC)
		expr += fmt.Sprintf("(%s + %d, %s + %d, %s)", u.arg(from.Arg), x.Offset, u.arg(filters.Arg), w.Offset,
			b.offset(graph.Contiguous(p.Space)))
		b.define(p.IndexOf(0), b.bindByElement(lane(n.Type.DType), expr, n))
	})
	if err != nil {
		return nil, err
	}
	return e.kernel("windows")
}

// A convolution is a sum over windows and channels of NHWC images: of a convolution's own, or of its transpose.
type convolution struct {
	image, filters    body.Operand
	groups            int
	channels, columns int // of a group: summed over, and of the result
	axes              [2]int
	classes           [][2]slide // of rows and columns; each makes some of the positions of the result
}

// forwardConv describes a convolution in NHWC.
func forwardConv(op graph.Conv2D, p *body.Program) *convolution {
	x, w, y := p.Operands[0].Layout.Shape, p.Operands[1].Layout.Shape, p.Space
	c := &convolution{image: p.Operands[0], filters: p.Operands[1], groups: op.Groups, channels: w.At(2),
		columns: w.At(3) / op.Groups, axes: [2]int{2, 3}}
	slides := forwardSlides(x, y, w.At(0), w.At(1), op.Stride, op.Dilation, op.Pad)
	c.classes = [][2]slide{slides}
	return c
}

// forwardSlides are those of kh×kw filters over the rows and columns of images x with results y, both in NHWC.
func forwardSlides(x, y graph.Shape, kh, kw int, stride, dilation, pad graph.Ints) (s [2]slide) {
	for i, taps := range []int{kh, kw} {
		s[i] = forwardSlide(x.At(1+i), y.At(1+i), taps, stride.At(i), dilation.At(i), pad.At(i))
	}
	return s
}

// transposedConv describes the transpose of a convolution in NHWC.
func transposedConv(op graph.Conv2DTranspose, p *body.Program) *convolution {
	y, w := p.Operands[0].Layout.Shape, p.Operands[1].Layout.Shape
	c := &convolution{image: p.Operands[0], filters: p.Operands[1], groups: op.Groups, channels: w.At(3) / op.Groups,
		columns: w.At(2), axes: [2]int{3, 2}}
	axis := func(i, size int) []slide {
		return transposedSlides(size, y.At(1+i), w.At(i), op.Stride.At(i), op.Dilation.At(i), op.Pad.At(i))
	}
	for _, r := range axis(0, op.H) {
		for _, s := range axis(1, op.W) {
			c.classes = append(c.classes, [2]slide{r, s})
		}
	}
	return c
}

// kernel makes a kernel of one product for each class. Where that is possible, one launch computes all.
func (c *convolution) kernel(u *unit, p *body.Program, cfg Config) (*Kernel, error) {
	all, fast := &Kernel{}, true
	var templates []string
	blocks := c.blocks(u, p, cfg)
	joined := Step{Entry: "matmul", Grid: [3]int{0, 1, 1}, Block: hopperThreads}
	var calls strings.Builder
	for i, s := range c.classes {
		m := &matmul{unit: u, body: p, cfg: cfg, used: all.Scratch}
		if blocks != nil {
			m.joined = joinedBlocks{joined.Grid[0], blocks[i]}
		}
		if len(c.classes) > 1 {
			m.tag = fmt.Sprint(i)
			u.printf("namespace class%d {\n", i)
		}
		steps := m.steps
		if c.depthwise() && s[0].taps*s[1].taps > 0 {
			c.slideOver(m, s)
			steps = m.depthwiseSteps
		} else {
			c.multiply(m, s)
		}
		if err := m.write(); err != nil {
			return nil, err
		}
		k, t := steps()
		if len(c.classes) > 1 {
			u.printf("}\n")
		}
		if blocks != nil {
			joined.Grid[0] += blocks[i]
			joined.Shared = max(joined.Shared, t.shared)
			fmt.Fprintf(&calls, "  if (blockIdx.x < %d) return class%d::product(p);\n", joined.Grid[0], i)
			k.Steps = nil
		}
		all.Steps, all.Scratch, fast = append(all.Steps, k.Steps...), k.Scratch, fast && t.fast
		for _, name := range t.source {
			if !slices.Contains(templates, name) {
				templates = append(templates, name)
			}
		}
	}
	if blocks != nil {
		u.printf("LATE_KERNEL(%s, %d, 1) {\n%s}\n", joined.Entry, joined.Block, &calls)
		all.Steps = []Step{joined}
	}
	return u.finish(all, fast, templates...), nil
}

const (
	// mostClasses is how many products a launch computes at most.
	mostClasses = 9
	// classBytes is how many bytes of a class a block stores in a ns, beside what a tile of a product of matrices takes: rows of a
	// class are apart.
	classBytes = 50
)

// blocks divides the blocks of one launch among the classes, so that all should end at the same time. It is nil where classes have
// launches of their own: unless each is one step, a product on Hopper's own instructions.
func (c *convolution) blocks(u *unit, p *body.Program, cfg Config) (list []int) {
	n := len(c.classes)
	if n <= 1 || n > min(mostClasses, cfg.Chip.SMs) || c.depthwise() || !cfg.hopper() ||
		slices.ContainsFunc(u.results, func(o Operand) bool { return o.Update }) {
		return nil
	}
	tiles, each := make([]int, n), make([]int, n) // each: what one takes, in ns
	for i, s := range c.classes {
		m := &matmul{unit: newUnit(u.args, u.results), body: p, cfg: cfg}
		c.multiply(m, s)
		h, _ := m.hopperPlans()
		if h == nil || len(m.before) > 0 || h.a.pitch+h.b.pitch > 0 || h.tile.splits*h.tile.cluster() > 1 {
			return nil
		}
		tiles[i] = m.batch * ceilDiv(m.m, h.tile.bm) * ceilDiv(m.n, h.tile.bn)
		each[i] = h.time / ceilDiv(tiles[i], cfg.Chip.SMs)
		if m.a.patches == nil {
			each[i] += h.tile.bm * h.tile.bn * m.elementBytes() / classBytes
		}
		list = append(list, 1)
	}
	for range cfg.Chip.SMs - n {
		last, end := 0, 0 // the class that ends last
		for i, blocks := range list {
			if t := ceilDiv(tiles[i], blocks) * each[i]; t > end {
				last, end = i, t
			}
		}
		if list[last] == tiles[last] {
			break
		}
		list[last]++
	}
	return list
}

// inImage turns coordinates of a product whose space is images, positions, groups and columns of a group into those of
// the result.
func inImage(s [2]slide, groups, columns int) func([]string) []string {
	return func(coords []string) []string {
		for i, s := range s {
			c := &coords[1+i]
			if s.outStep != 1 && *c != "0" {
				*c = fmt.Sprintf("%s * %d", *c, s.outStep)
			}
			if s.out0 != 0 {
				*c = fmt.Sprintf("%s + %d", *c, s.out0)
			}
			if s.outStep != 1 || s.out0 != 0 {
				*c = "(" + *c + ")"
			}
		}
		return joined(coords, groups, columns)
	}
}

// joined turns the last two coordinates, a group and a column of it, into one.
func joined(coords []string, groups, columns int) []string {
	last := len(coords) - 1
	if groups > 1 {
		coords[last-1] = fmt.Sprintf("(%s * %d + %s)", coords[last-1], columns, coords[last])
	} else {
		coords[last-1] = coords[last]
	}
	return coords[:last]
}

// problem describes the product of a class with that many groups, except for factor B.
func (c *convolution) problem(m *matmul, s [2]slide, groups, channels, columns int) {
	x := m.args[c.image.Arg]
	x.Layout = c.image.Layout
	q := newPatches(x, s, channels)
	q.kInner = true
	p := &product{name: "Problem", convolves: true, acc: graph.F32, n: columns, m: q.rows(), k: q.cols(), rows: []int{0, 1, 2},
		column: 4, batch: groups, inBody: inImage(s, groups, columns)}
	if m.body.Anchor.Type.DType == graph.F64 {
		p.acc = graph.F64
	}
	p.space = graph.ShapeOf(q.images, s[0].positions, s[1].positions, groups, columns)
	if groups > 1 {
		p.batchAxes = []int{3}
	}
	p.a = q.factor(c.image.Arg)
	p.b = factor{arg: c.filters.Arg, dtype: c.filters.Node.Type.DType, batch: make([]int, 4)}
	m.product = p
}

// multiply describes a class as a product.
func (c *convolution) multiply(m *matmul, s [2]slide) {
	c.problem(m, s, c.groups, c.channels, c.columns)
	m.a.flatten()
	if m.a.patches != nil && m.math() != "" {
		m.widen(false)
		m.k = m.a.patches.cols()
	}
	c.layFilters(m, s)
}

// widen adds a step that copies the images to the scratch memory with more channels, of zeros, if patches could only be
// read in pieces of a few bytes, and takes several pixels as one where it can: those beside a window, too, if the product may have
// them, since filters of zeros do not make infinities zeros. It reports whether it did.
func (m *matmul) widen(beside bool) bool {
	q := m.a.patches
	size := q.dtype.Size()
	height, width := q.slides[0].size, q.slides[1].size
	if q.vec()*size >= 8 || m.batch > 1 || q.rows()*q.cols()*q.images*height*width == 0 {
		return false
	}
	w := 16 / size
	first, x := 0, &q.slides[1]
	pairs := q.pairs() && (beside || q.pairsWhole())
	join := m.joinsRows(roundUp(q.channels, w), pairs)
	if join {
		first, width = x.first, (x.positions-1)*x.stride+x.taps
	} else if size == 2 && q.channels <= 4 {
		w = 4
	}
	wide := roundUp(q.channels, w)
	n := q.images * height * width * (wide / w)
	typ := ctype(q.dtype)
	from := m.pointer(m.a)
	m.a.at = m.reserve(int64(n) * int64(w*size))
	m.a.made = m.scratch(typ, "wide"+m.tag, m.a.at)
	entry := "widen" + m.tag
	m.elements(entry, indexType(n), n, "",
		fmt.Sprintf("store<1, %d>(%s + i64(e) * %d, widened<%d, %d, %d, %d, %d, %d, %d, %d, %d, %d, %d>(%s + %d, e));",
			w*size, m.a.made, w, w, q.channels, wide, height, width, first, x.size, q.stride[0], q.stride[1], q.stride[2], q.stride[3],
			from, q.offset))
	m.before = append(m.before, m.elementStep(entry, n))
	q.channels, q.offset, q.stride = wide, 0, [4]int{height * width * wide, width * wide, wide, 1}
	m.a.offset = 0
	if join {
		q.joinRow()
	} else if pairs {
		q.pairUp()
	}
	return true
}

// joinsRows reports whether the copy engine should take the taps of a row, with that many channels each, as one pixel: in f32, or
// where pairs of pixels could be one but for those beside windows. The taps have to fill more than half of what it takes, and small
// products are not worth it.
func (m *matmul) joinsRows(channels int, pairs bool) bool {
	q := m.a.patches
	y, x, size := q.slides[0], q.slides[1], q.dtype.Size()
	pixel := channels * size
	filled, whole := x.taps*pixel, roundUp(x.taps*pixel, sliceBytes)
	return m.cfg.hopper() && (size == 4 || q.pairs() && !pairs) && x.step == 1 && pixel < sliceBytes && sliceBytes%pixel == 0 &&
		2*filled > whole && min(m.n, q.rows(), y.taps*whole/size) >= hopperLeast
}

// taps is the layout of the filters of a class, [rows, columns, channels, columns of the result] of the first group.
func (c *convolution) taps(s [2]slide) graph.Layout {
	l := c.filters.Layout.Transpose(graph.IntsOf(0, 1, c.axes[0], c.axes[1]))
	for i, s := range s {
		l.Offset += s.tap0 * l.Stride[i]
		l.Stride[i] *= s.tapStep
	}
	l.Shape = graph.ShapeOf(s[0].taps, s[1].taps, c.channels, c.columns)
	return l
}

// layFilters describes the filters as factor B: as they lie, if that is a matrix for each group, or packed by a step.
func (c *convolution) layFilters(m *matmul, s [2]slide) {
	b, l := &m.b, c.taps(s)
	groupStride := c.filters.Layout.Stride[3] * (c.filters.Layout.Shape.At(3) / c.groups)
	channels := c.channels
	if m.a.patches != nil {
		channels = m.a.patches.channels
	}
	flat, ok := l.Reshape(graph.ShapeOf(l.Shape.Elems()/max(c.columns, 1), c.columns))
	if ok && channels == c.channels && (flat.Stride[0] == 1 || flat.Stride[1] == 1 || c.columns == 1 || m.k <= 1) || m.k*m.n == 0 {
		b.k, b.outer, b.offset, b.batch[3] = flat.Stride[0], flat.Stride[1], l.Offset, groupStride
		return
	}
	if m.batch == 1 && channels == c.channels && m.a.patches != nil {
		b.k, b.outer, b.offset = l.Stride[2], l.Stride[3], l.Offset
		b.taps = &taps{channels: channels, count: [2]int{s[1].taps, s[0].taps}, stride: [2]int{l.Stride[1], l.Stride[0]}}
		if h, _ := m.hopperPlan(); h != nil && !m.a.gathered() {
			return
		}
		b.taps, b.offset = nil, 0
	}
	across, pixels, shift := s[1].taps, 1, 0
	if q := m.a.patches; q != nil {
		across, pixels, shift = q.slides[1].taps, q.pixels(), q.shift
	}
	size := b.dtype.Size()
	pitch := roundUp(c.columns, 16/size)
	n, at := m.batch*m.k*pitch, "e"
	from := m.pointer(*b)
	b.at = m.reserve(int64(n) * int64(size))
	b.made = m.scratch(ctype(b.dtype), "filters"+m.tag, b.at)
	b.k, b.outer, b.batch[3] = pitch, 1, m.k*pitch
	if q := m.a.patches; q != nil && q.boxed() && m.cfg.hopper() && size == 4 && !m.cfg.strict() && m.batch == 1 {
		b.k, b.outer, at = 1, m.k, fmt.Sprintf("e %% %d * %d + e / %d", m.k, pitch, m.k) // tensor cores read tf32 along k
	}
	entry := "pack" + m.tag
	shape := fmt.Sprintf("%d, %d, %d, %d, %d, %d, %d, %d, %d", m.k/channels, across, s[1].taps, pixels, shift, c.channels,
		channels/pixels, c.columns, pitch)
	call := fmt.Sprintf("packed<%s, %d, %d, %d, %d, %d>(%s + %d, %s)", shape, l.Stride[0], l.Stride[1], l.Stride[2], l.Stride[3],
		groupStride, from, l.Offset, at)
	m.elements(entry, indexType(n), n, "", fmt.Sprintf("%s[e] = %s;", b.made, call))
	m.before = append(m.before, m.elementStep(entry, n))
}
