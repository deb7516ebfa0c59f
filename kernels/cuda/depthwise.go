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
	// downBytes is how many bytes of channels such a thread has, downStages how many rows of a block are in shared memory at most,
	// and downReserved what the rest of a block's shared memory takes at most, in bytes.
	downBytes, downStages, downReserved = 8, 3, 6 << 10
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
	size, vec, width := x.DType.Size(), q.vec(), 16/x.DType.Size()
	for channels%width != 0 || rows*taps*width > mostSums && width > 1 {
		width /= 2
	}
	yVec, pixel := 16/size, pixelStride(y.Layout)
	for (y.Layout.Offset|pixel)%yVec != 0 {
		yVec /= 2
	}
	stage := ((strip-1)*s[1].stride + (taps-1)*s[1].step + 1 + strip) * blockThreads * downBytes
	wide := downBytes / size
	stages := min(downStages, (cfg.Chip.Shared/downBlocks-downReserved)/stage)
	down := rows == s[0].taps && taps == s[1].taps && s[0].stride == 1 && s[0].step == 1 && strip > 1 && stages > 1 &&
		cfg.Chip.Arch >= 80 && channels%wide == 0 && min(vec, yVec) >= wide &&
		x.Layout.Stride[3] == 1 && y.Layout.Stride[3] == 1
	if down {
		width = wide
	}
	lanes := 32
	for lanes/2*width >= channels {
		lanes /= 2
	}
	groups, across := ceilDiv(channels, lanes*width), s[0].taps/rows*(s[1].taps/taps)
	strips := q.images * s[0].positions * ceilDiv(s[1].positions, strip)
	chunks := max(1, min(ceilDiv(strips, leastChunk*blockThreads/lanes), ceilDiv(4*cfg.Chip.SMs, groups*across)))
	chunk := max(ceilDiv(strips, chunks), 1)
	sum := lane(w.DType)
	u.printf("struct Problem {\n")
	q.write(u)
	u.printf("};\n\n")
	partial := u.scratch(sum, "partial", 0)
	operands := fmt.Sprintf("%s, %s + %d, %s + %d", partial, u.arg(0), x.Layout.Offset, u.arg(1), y.Layout.Offset)
	chunkStep := Step{Entry: "chunks", Block: blockThreads}
	templates := []string{"gemm", "patches", "depthwise"}
	if down {
		parts, columns := blockThreads/lanes, q.images*ceilDiv(s[1].positions, strip)
		most := max(downBlocks*cfg.Chip.SMs/groups, 1) * parts // segments at once
		segment := max(ceilDiv(s[0].positions, max(most/max(columns, 1), 1)), min(leastSegment, s[0].positions), 1)
		units := columns * ceilDiv(s[0].positions, segment)
		chunk = max(ceilDiv(units, most), 1) * parts
		chunks = max(ceilDiv(units, chunk), 1)
		blocks := downBlocks
		if rows > 3 {
			blocks = 1 // a thread keeps more rows than it has registers for else
		}
		u.printf("KERNEL(chunks, %d, %d) {\n%s  SHARED;\n", blockThreads, blocks, u.guard())
		u.printf("  depthwise_filters_down<Problem::Image, %d, %d, %d, %d, %d, %d, %d, %d>(%s, reinterpret_cast<%s *>(shared));\n}\n\n",
			width, lanes, strip, channels, segment, chunk, stages, pixel, operands, ctype(x.DType))
		chunkStep.Shared = stages * stage
		templates = append([]string{"mma"}, templates...)
	} else {
		u.entry("chunks", blockThreads, fmt.Sprintf("depthwise_filters<Problem::Image, %d, %d, %d, %d, %d, %d, %d, %d, %d, %d, %d>(%s);",
			width, lanes, rows, taps, strip, channels, chunk, min(vec, width)*size, min(yVec, width)*size, pixel, y.Layout.Stride[3],
			operands))
	}
	chunkStep.Grid = [3]int{groups, chunks, across}
	u.entry("sums", blockThreads, fmt.Sprintf("add_blocks<%s, %d, %d, 1>(%s + %d, %s);", sum, chunks, n, u.result(0),
		w.Layout.Offset, partial))
	steps := []Step{
		chunkStep,
		{Entry: "sums", Grid: [3]int{ceilDiv(n, 32), 1, 1}, Block: blockThreads, Shared: 8 * 32 * 8},
	}
	return u.kernel(int64(chunks)*int64(n)*int64(w.DType.Size()), steps, templates...)
}
