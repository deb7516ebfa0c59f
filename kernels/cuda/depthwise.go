package cuda

import "fmt"

// stripLength is how many neighbouring positions a thread of a depthwise convolution computes.
const stripLength = 4

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
