package arena

import (
	"cmp"
	"slices"
)

// timeline knows which bytes are taken in which steps. It is a segment tree over the steps: node 1 stands for all of
// them, nodes 2i and 2i+1 for the halves of node i, the last len(nodes)/2 nodes for one step each. A lifetime is cut
// into the fewest nodes that make it up.
type timeline struct{ nodes []period }

// period is a node of the tree.
type period struct {
	whole spans // the bytes of lifetimes that the node is a part of
	some  spans // the bytes of lifetimes that end in the node or below it, whole among them
}

// newTimeline makes a timeline of so many steps.
func newTimeline(steps int) *timeline {
	leaves := 1
	for leaves < steps {
		leaves *= 2
	}
	return &timeline{make([]period, 2*leaves)}
}

// lowest returns the lowest offset of size bytes that are free from step first to step last.
func (t *timeline) lowest(size int64, first, last int) int64 {
	var taken []spans
	t.parts(first, last, func(n *period) { taken = append(taken, n.some) })
	t.above(first, last, func(n *period) { taken = append(taken, n.whole) })
	taken = slices.DeleteFunc(taken, func(s spans) bool { return len(s) == 0 })
	at := int64(0)
	for i, unmoved := 0, 0; unmoved < len(taken); i, unmoved = (i+1)%len(taken), unmoved+1 {
		s := taken[i]
		if j := s.after(at); j < len(s) && s[j].from < at+size {
			at, unmoved = s[j].to, -1
		}
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
