package cpu

import (
	"fusec/graph"
	"fusec/kernels/cpu/gemm"
)

// offsets lists where the values of the first axes of a layout start, the last of them fastest.
func offsets(l graph.Layout, axes int) []int {
	at := []int{l.Offset}
	for i := range axes {
		next := make([]int, 0, len(at)*l.Shape.At(i))
		for _, o := range at {
			for j := range l.Shape.At(i) {
				next = append(next, o+j*l.Stride[i])
			}
		}
		at = next
	}
	return at
}

// matrices is the layout of the matrices in the last two axes, each listed times times.
func matrices(l graph.Layout, times int) gemm.Layout {
	r := l.Shape.Rank()
	m := gemm.Layout{RowStride: l.Stride[r-2], ColStride: l.Stride[r-1]}
	if l.Shape.At(r-1) == 1 {
		m.ColStride = 1
	}
	each := offsets(l, r-2)
	m.Offsets = make([]int, 0, len(each)*times)
	for _, o := range each {
		for range times {
			m.Offsets = append(m.Offsets, o)
		}
	}
	return m
}

// columns is the layout of the columns that the last axis of a layout holds.
func columns(l graph.Layout) gemm.Layout {
	l, _ = l.Reshape(graph.ShapeOf(append(l.Shape.Slice(), 1)...)) // an axis of 1 never fails
	return matrices(l, 1)
}

// pooled is the layout of one page of a pool [pages, heads, page, depth], an offset for each head of queries of every
// batch, and the distance of the pages.
func pooled(l graph.Layout, d graph.AttentionDims) (gemm.Layout, int) {
	page := l.Slice(0, 0, 1, 1)
	m := matrices(page, d.Group)
	each := m.Offsets
	for range d.Batch.Elems() - 1 {
		m.Offsets = append(m.Offsets, each...)
	}
	if d.Batch.Elems()*d.Heads == 0 {
		m.Offsets = nil
	}
	return m, l.Stride[0]
}
