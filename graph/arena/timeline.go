package arena

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// timeline knows which bytes are taken in which steps. It is a segment tree over the steps: node 1 stands for all of
// them, nodes 2i and 2i+1 for the halves of node i, the last len(nodes)/2 nodes for one step each. A lifetime is cut
// into the fewest nodes that make it up.
type timeline struct {
	nodes []period
	ahead []cursor // of the last search, for the next one to use
}

// period is a node of the tree.
type period struct {
	whole spans // the bytes of lifetimes that the node is a part of
	some  spans // the bytes of lifetimes that end in the node or below it, whole among them

	// Size bytes that are free in one step of the node, at least, lie at floor or above it.
	floor, size int64
}

// newTimeline makes a timeline of so many steps.
func newTimeline(steps int) *timeline {
	leaves := 1
	for leaves < steps {
		leaves *= 2
	}
	return &timeline{nodes: make([]period, 2*leaves)}
}

// lowest returns the lowest offset of size bytes that are free from step first to step last. Sizes never rise from call
// to call.
func (t *timeline) lowest(size int64, first, last int) int64 {
	t.ahead = t.ahead[:0]
	at := int64(0)
	// What is taken all through a period that holds step first is not free: the search starts behind it. The lists of
	// long periods, which are read first, are those that others read, too.
	leaves := len(t.nodes) / 2
	for shift := bits.Len(uint(leaves)) - 1; shift >= 0; shift-- {
		n := &t.nodes[(leaves+first)>>shift]
		t.add(n.whole)
		if n.size == size {
			at = max(at, n.floor)
		}
		at = t.search(at, size)
		n.floor, n.size = at, size
	}
	for l, r := leaves+first, leaves+last; l != r; l, r = l/2, r/2 {
		t.add(t.nodes[r].whole)
	}
	t.parts(first, last, func(n *period) { t.add(n.some) })
	return t.search(at, size)
}

// add has the search consider a list.
func (t *timeline) add(s spans) {
	if len(s) > 0 {
		t.ahead = append(t.ahead, cursor{s[0].from, s})
	}
}

// search returns the lowest offset, from at on, of size bytes that are in none of the lists.
func (t *timeline) search(at, size int64) int64 {
	for unmoved := false; !unmoved; {
		unmoved = true
		for i := range t.ahead {
			if c := &t.ahead[i]; c.from < at+size {
				if to := c.pass(at, size); to > at {
					at, unmoved = to, false
				}
			}
		}
	}
	return at
}

// A cursor is the spans of a list that a search has not passed, and where the first of them starts.
type cursor struct {
	from int64
	rest spans
}

// pass passes all spans that end before an offset or leave less than size bytes after it, and returns the offset behind
// them, or the offset itself if none is in its way.
func (c *cursor) pass(at, size int64) int64 {
	s := c.rest
	for far := 1; len(s) > 0 && s[0].to <= at; far *= 2 { // by steps of twice the length, as some lists are long
		if far < len(s) && s[far].to <= at {
			s = s[far:]
		} else {
			s = s[s[:min(far, len(s))].after(at):]
			break
		}
	}
	for len(s) > 0 && s[0].from < at+size {
		at, s = s[0].to, s[1:]
	}
	c.rest, c.from = s, math.MaxInt64
	if len(s) > 0 {
		c.from = s[0].from
	}
	return at
}

// take marks the bytes as taken from step first to step last.
func (t *timeline) take(bytes span, first, last int) {
	t.parts(first, last, func(n *period) { n.whole.add(bytes); n.some.add(bytes) })
	t.above(first, last, func(n *period) { n.some.add(bytes) })
}

// parts visits the fewest nodes that stand for just the steps from first to last.
func (t *timeline) parts(first, last int, visit func(*period)) {
	leaves := len(t.nodes) / 2
	for l, r := leaves+first, leaves+last+1; l < r; l, r = l/2, r/2 {
		if l%2 == 1 {
			visit(&t.nodes[l])
			l++
		}
		if r%2 == 1 {
			r--
			visit(&t.nodes[r])
		}
	}
}

// above visits all nodes above those of [timeline.parts]. Others that it visits lie below these and hold step first or
// last: what is taken in them is taken there as well.
func (t *timeline) above(first, last int, visit func(*period)) {
	leaves := len(t.nodes) / 2
	for l, r := leaves+first, leaves+last; l > 0; l, r = l/2, r/2 {
		visit(&t.nodes[l])
		if r != l {
			visit(&t.nodes[r])
		}
	}
}

// span is the bytes from offset from up to offset to.
type span struct{ from, to int64 }

// spans is bytes as the fewest spans, by rising offset.
type spans []span

// after returns the index of the first span that ends above the offset.
func (s spans) after(at int64) int {
	i, _ := slices.BinarySearchFunc(s, at+1, func(x span, at int64) int { return cmp.Compare(x.to, at) })
	return i
}

// add adds the bytes of x, of which some may be there.
func (s *spans) add(x span) {
	i := s.after(x.from - 1) // the first span that x meets or touches
	j := i
	for ; j < len(*s) && (*s)[j].from <= x.to; j++ {
		x.from, x.to = min(x.from, (*s)[j].from), max(x.to, (*s)[j].to)
	}
	*s = slices.Replace(*s, i, j, x)
}
