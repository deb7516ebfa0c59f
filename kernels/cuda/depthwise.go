package cuda

import "fmt"

// stripLength is how many neighbouring positions a thread of a depthwise convolution computes: more would share more pixels, and
// leave room for fewer threads. gradStrip is the same of the gradient for filters.
const stripLength, gradStrip = 2, 4

// mostSpan is how many columns of the image a thread of a depthwise convolution reads at most, which it does one after
// another.
const mostSpan = 48

// depthwise reports whether nothing is summed over channels, and windows are small.
func (c *convolution) depthwise() bool {
	for _, s := range c.classes {
		if x := s[1]; (stripLength-1)*x.stride+max(x.taps-1, 0)*max(x.step, -x.step)+1 > mostSpan {
			return false
		}
	}
	return c.channels == 1 && c.columns == 1
}

// slideOver describes a class of a depthwise convolution: one group whose columns are all channels.
func (c *convolution) slideOver(m *matmul, s [2]slide) {
	c.problem(m, s, 1, c.groups, c.groups)
	l := c.filters.Layout
	for i, s := range s {
		m.b.offset += s.tap0 * l.Stride[i]
		m.taps[i] = s.tapStep * l.Stride[i]
	}
	m.b.offset += l.Offset
	m.b.outer = l.Stride[3]
}

// depthwiseSteps writes the entry of a depthwise convolution.
func (m *matmul) depthwiseSteps() (*Kernel, cut) {
	q := m.a.patches
	positions := q.slides[1].positions
	threads := q.images * q.slides[0].positions * ceilDiv(positions, stripLength) * (m.n / m.w)
	c := cut{source: []string{"depthwise"}}
	k := &Kernel{Scratch: m.used}
	if threads == 0 {
		return k, c
	}
	entry := "depthwise" + m.tag
	align := func(vec int) int { return min(vec, m.w) * m.a.dtype.Size() }
	_, bVec := m.pieces(m.b, m.n)
	for _, s := range m.taps {
		for bVec > 1 && s%bVec != 0 {
			bVec /= 2
		}
	}
	m.entry(entry, blockThreads, fmt.Sprintf("depthwise<Problem, %d, %d, %d, %d, %d, %d, %d>(Body{p}, %s + %d, %s + %d);",
		q.slides[0].taps, q.slides[1].taps, stripLength, m.taps[0], m.taps[1], align(q.vec()), align(bVec),
		m.pointer(m.a), m.a.offset, m.pointer(m.b), m.b.offset))
	k.Steps = []Step{{Entry: entry, Grid: [3]int{ceilDiv(threads, blockThreads), 1, 1}, Block: blockThreads}}
	return k, c
}

const (
	// leastChunk is how many strips of positions a part of a block of the gradient for depthwise filters sums at least.
	leastChunk = 4
	// downBlocks is how many blocks of threads that go down columns a multiprocessor has, and leastSegment how many rows they go
	// down at least.
	downBlocks, leastSegment = 2, 4
	// mostTaps is how many taps a thread sums at once at most, and mostSums how many sums it keeps.
	mostTaps, mostSums = 9, 40
)

// depthwiseFilterGrad makes the gradient of a depthwise convolution for its filters: sums over chunks of positions, which a
// second step adds in order.
func depthwiseFilterGrad(u *unit, s [2]slide, cfg Config) *Kernel {
	x, y, w := u.args[0], u.args[1], u.results[0]
	channels := w.Layout.Shape.At(3)
	q := newPatches(x, s, channels)
	n := w.Layout.Shape.Elems()
	if n == 0 {
		return &Kernel{}
	}
	rows, taps, strip := s[0].taps, s[1].taps, gradStrip
	if rows*taps > mostTaps {
		rows = 1
	}
	if taps > mostTaps {
		taps = 1
	}
	if (strip-1)*s[1].stride+(taps-1)*s[1].step+1 > mostSpan {
		taps, strip = 1, 1
	}
	vec, width := q.vec(), 16/x.DType.Size()
	for channels%width != 0 || rows*taps*width > mostSums && width > 1 {
		width /= 2
	}
	lanes := 32
	for lanes/2*width >= channels {
		lanes /= 2
	}
	groups, across := ceilDiv(channels, lanes*width), s[0].taps/rows*(s[1].taps/taps)
	strips := q.images * s[0].positions * ceilDiv(s[1].positions, strip)
	chunks := max(1, min(ceilDiv(strips, leastChunk*blockThreads/lanes), ceilDiv(4*cfg.Chip.SMs, groups*across)))
	chunk := max(ceilDiv(strips, chunks), 1)
	yVec, pixel := width, pixelStride(y.Layout)
	for (y.Layout.Offset|pixel)%yVec != 0 {
		yVec /= 2
	}
	sum := lane(w.DType)
	u.printf("struct Problem {\n")
	q.write(u)
	u.printf("};\n\n")
	partial := u.scratch(sum, "partial", 0)
	template, divided := "depthwise_filters", fmt.Sprintf("%d, %d, %d, %d, %d", rows, taps, strip, channels, chunk)
	if rows == s[0].taps && taps == s[1].taps && s[0].stride == 1 && s[0].step == 1 && strip > 1 && x.DType.Is16() {
		parts, columns := blockThreads/lanes, q.images*ceilDiv(s[1].positions, strip)
		most := max(downBlocks*cfg.Chip.SMs/groups, 1) * parts // segments at once
		segment := max(ceilDiv(s[0].positions, max(most/max(columns, 1), 1)), min(leastSegment, s[0].positions), 1)
		units := columns * ceilDiv(s[0].positions, segment)
		chunk = max(ceilDiv(units, most), 1) * parts
		chunks = max(ceilDiv(units, chunk), 1)
		template, divided = "depthwise_filters_down", fmt.Sprintf("%d, %d, %d, %d", strip, channels, segment, chunk)
	}
	u.entry("chunks", blockThreads, fmt.Sprintf("%s<Problem::Image, %d, %d, %s, %d, %d, %d, %d>(%s, %s + %d, %s + %d);", template,
		width, lanes, divided, min(vec, width)*x.DType.Size(), yVec*x.DType.Size(), pixel, y.Layout.Stride[3], partial, u.arg(0),
		x.Layout.Offset, u.arg(1), y.Layout.Offset))
	u.entry("sums", blockThreads, fmt.Sprintf("add_blocks<%s, %d, %d, 1>(%s + %d, %s);", sum, chunks, n, u.result(0),
		w.Layout.Offset, partial))
	steps := []Step{
		{Entry: "chunks", Grid: [3]int{groups, chunks, across}, Block: blockThreads},
		{Entry: "sums", Grid: [3]int{ceilDiv(n, 32), 1, 1}, Block: blockThreads, Shared: 8 * 32 * 8},
	}
	return u.kernel(int64(chunks)*int64(n)*int64(w.DType.Size()), steps, "gemm", "patches", "depthwise")
}
