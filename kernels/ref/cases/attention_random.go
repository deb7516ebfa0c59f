package cases

import (
	"math"
	"math/rand/v2"

	"fusec/graph"
)

// AttentionSizes bounds what [RandomAttention] draws.
type AttentionSizes struct {
	Queries, Keys int
	Few           int   // keys where there are one to three queries
	Columns       []int // one of them bounds the depth, one the width
	Heads         int
}

// RandomAttention draws an attention of any attributes, and operands of any shapes that fit it, of element type d.
func RandomAttention(r *rand.Rand, d graph.DType, most AttentionSizes) (graph.Attention, []*graph.Tensor) {
	size := func(most int) int {
		switch r.IntN(12) {
		case 0:
			return 0
		case 1:
			return 1
		case 2:
			return most
		}
		return 1 + r.IntN(most)
	}
	coin := func() bool { return r.IntN(2) == 0 }
	columns := func() int { return size(most.Columns[r.IntN(len(most.Columns))]) }
	sq, sk, depth, width := size(most.Queries), size(most.Keys), columns(), columns()
	if r.IntN(3) == 0 {
		sq, sk = 1+r.IntN(3), size(most.Few)
	}
	rank := 2 + r.IntN(3)
	heads, group, batch := 1+r.IntN(most.Heads), 1+r.IntN(3), 1+r.IntN(2)
	if rank == 2 {
		heads, group = 1, 1
	}
	if rank < 4 {
		batch = 1
	}
	dims := func(h, rows, cols int) []int { return []int{batch, h, rows, cols}[4-rank:] }
	op := graph.Attention{Scale: 0.3, Causal: coin(), HasMask: coin(), HasLengths: coin()}
	if r.IntN(8) == 0 {
		op.Scale = -0.2
	}
	pages := 0
	if rank > 2 && r.IntN(3) == 0 {
		op.Page, op.HasLengths = 1+r.IntN(40), true
		pages = 1 + r.IntN(20)
		sk = (sk + op.Page - 1) / op.Page * op.Page
	}
	if coin() {
		op.Window = 1 + r.IntN(sk+2)
	}
	draw := func(d graph.DType, lo, hi float64, dims ...int) *graph.Tensor {
		return Arg{Type: graph.TypeOf(d, dims...), Lo: lo, Hi: hi}.Draw(r)
	}
	args := []*graph.Tensor{draw(d, -2, 2, dims(heads*group, sq, depth)...), draw(d, -2, 2, dims(heads, sk, depth)...),
		draw(d, -2, 2, dims(heads, sk, width)...)}
	if op.Page > 0 {
		args[1], args[2] = draw(d, -2, 2, pages, heads, op.Page, depth), draw(d, -2, 2, pages, heads, op.Page, width)
	}
	if op.HasMask {
		args = append(args, randomMask(r, graph.TypeOf(d).Accumulator().DType, dims(heads*group, sq, sk)))
	}
	batches := dims(0, 0, 0)[:max(rank-3, 0)]
	if op.HasLengths {
		op.Tail = coin()
		args = append(args, draw([]graph.DType{graph.I32, graph.I64}[r.IntN(2)], -3, float64(sk+3), batches...))
	}
	if op.Page > 0 {
		args = append(args, draw(graph.I64, 0, float64(pages), append(batches, sk/op.Page)...))
	}
	if r.IntN(3) == 0 {
		op.Dropout = 0.3
		args = append(args, draw(graph.I64, -9, 9))
	}
	if r.IntN(4) == 0 {
		op.HasScales = true
		for i := 1; i < 3; i++ {
			s := args[i].Type.Shape
			args[i] = draw(graph.I8, -128, 128, s.Slice()...)
			args = append(args, draw(d.Accumulator(), 0.001, 0.02, s.With(s.Rank()-1, 1).Slice()...))
		}
	}
	return op, args
}

// randomMask draws a mask for scores of the given dimensions, broadcast along some, with blocks of keys and whole rows
// masked.
func randomMask(r *rand.Rand, d graph.DType, dims []int) *graph.Tensor {
	for i := range dims {
		if r.IntN(4) == 0 {
			dims[i] = 1
		}
	}
	dims = dims[r.IntN(len(dims)):]
	kind := r.IntN(4)
	if kind == 0 {
		d = graph.Bool
	}
	m := Arg{Type: graph.TypeOf(d, dims...), Lo: -3, Hi: 3}.Draw(r)
	cols := max(dims[len(dims)-1], 1)
	lo, hi := r.IntN(cols+1), r.IntN(cols+1)
	for i := range m.Type.Shape.Elems() {
		masked := i%cols >= lo && i%cols < hi || i/cols%5 == 3
		switch {
		case kind == 0 && masked:
			m.SetFloat(i, 0)
		case kind == 0 && r.IntN(3) > 0:
			m.SetFloat(i, 1)
		case kind == 1 && masked:
			m.SetFloat(i, -1e9)
		case kind == 2 && masked:
			m.SetFloat(i, math.Inf(-1))
		}
	}
	return m
}
