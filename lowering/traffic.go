package lowering

import "fusec/graph"

// traffic is the number of bytes that a launch of op reads. Each element of a view counts once, even if several
// operands or slices in a fusion's body read it.
func traffic(op graph.Op, args []View) int64 {
	read := map[View]int64{} // elements
	var body []int64
	if f, ok := op.(graph.Fusion); ok {
		body = f.Reads()
	}
	for i, v := range args[:graph.Reads(op, len(args))] {
		all := elements(v.Layout)
		n := all
		if body != nil {
			n = min(all, body[i])
		}
		read[v] = min(all, read[v]+n)
	}
	var bytes int64
	for v, n := range read {
		bytes += v.DType.Span(n)
	}
	return bytes
}

// elements is the number of elements of a layout; repeated ones count once.
func elements(l graph.Layout) int64 {
	n := int64(1)
	for i := range l.Shape.Rank() {
		if l.Stride[i] != 0 || l.Shape.At(i) == 0 {
			n *= int64(l.Shape.At(i))
		}
	}
	return n
}
