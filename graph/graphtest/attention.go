package graphtest

import (
	"math"

	"fusec/graph"
)

// AttentionWriter writes attention in one of the usual ways, chosen at random.
type AttentionWriter struct {
	Writer
	Heads  int // of keys and values
	Groups int // heads of queries for each of them

	Batch, Queries, Keys, Depth, Width int
}

func (w *AttentionWriter) heads() int { return w.Heads * w.Groups }

// split is an input of h heads, [batch, h, n, m]: an input of that shape, or views of one of another shape.
func (w *AttentionWriter) split(name string, h, n, m int) *graph.Node {
	switch w.R.IntN(3) {
	case 0:
		return w.in(name, w.Batch, h, n, m)
	case 1:
		return w.B.Transpose(w.B.Reshape(w.in(name, w.Batch*n, h*m), w.Batch, n, h, m), 0, 2, 1, 3)
	}
	return w.B.Transpose(w.in(name, w.Batch, h, m, n), 0, 1, 3, 2)
}

// keysOrValues gives each head of queries its keys or values.
func (w *AttentionWriter) keysOrValues(name string, m int) *graph.Node {
	b := w.B
	x := w.split(name, w.Heads, w.Keys, m)
	if w.Groups == 1 {
		return x
	}
	if w.Heads == 1 && w.coin() {
		return x // by broadcasting
	}
	if w.coin() {
		x = b.Broadcast(b.Reshape(x, w.Batch, w.Heads, 1, w.Keys, m), graph.ShapeOf(w.Batch, w.Heads, w.Groups, w.Keys, m))
		return b.Reshape(x, w.Batch, w.heads(), w.Keys, m)
	}
	var parts []*graph.Node
	for h := range w.Heads {
		part := b.Slice(x, 1, h, 1, 1)
		for range w.Groups {
			parts = append(parts, part)
		}
	}
	return b.Add(graph.Concat{Axis: 1}, parts...)
}

func (w *AttentionWriter) scale(x *graph.Node) *graph.Node {
	switch w.R.IntN(4) {
	case 0:
		return w.B.BinaryScalar(graph.Div, x, 0.5+2*w.R.Float64())
	case 1:
		return w.B.BinaryScalar(graph.Mul, x, 0.5+w.R.Float64())
	}
	return x
}

// mask masks the scores x, of shape [batch, heads, sq, sk], or returns them unchanged.
func (w *AttentionWriter) mask(x *graph.Node) *graph.Node {
	b, more := w.B, w.Keys-w.Queries
	low := []float64{math.Inf(-1), -1e9}[w.R.IntN(2)]
	narrow := []int{w.one(1, w.Batch), w.one(1, w.heads()), w.one(1, w.Queries), w.Keys}
	lengths := make([]int, w.Batch)
	for i := range lengths {
		lengths[i] = w.R.IntN(w.Keys + 1)
	}
	keep := [](func([]int) bool){
		func(ix []int) bool { return ix[3] <= ix[2]+more },
		func(ix []int) bool { return ix[3] <= ix[2]+more && ix[2]+more-ix[3] < 3 },
		func(ix []int) bool { return ix[2]+more-ix[3] < 2 && ix[3]-ix[2]-more < 2 },
		func(ix []int) bool { return ix[3] < lengths[ix[0]] },
		func([]int) bool { return w.coin() },
		func([]int) bool { return true },
	}[w.R.IntN(6)]
	dims := []int{w.Batch, 1, w.Queries, w.Keys}
	full := x.Type.Shape
	switch w.R.IntN(6) {
	case 0:
		return b.Binary(graph.Add, x, b.Broadcast(w.in("m", narrow...), full))
	case 1:
		return b.Binary(graph.Add, b.Broadcast(b.Const(Mask(w.D, low, keep, dims...)), full), x)
	case 2:
		return b.Binary(graph.Sub, x, b.Broadcast(b.Const(Mask(w.D, -low, keep, dims...)), full))
	case 3:
		return b.Add(graph.Select{}, b.Broadcast(b.Const(Mask(graph.Bool, 0, keep, dims...)), full), x, b.Scalar(w.D, low))
	case 4:
		c := w.operand("keep", graph.TypeOf(graph.Bool, narrow...))
		if w.coin() {
			return b.Add(graph.Select{}, b.Broadcast(c, full), x, b.Scalar(w.D, low))
		}
		return b.Add(graph.Select{}, b.Broadcast(c, full), b.Scalar(w.D, low), x)
	}
	return x
}

// Write writes one form and returns its result [Batch, Heads·Groups, Queries, Width].
func (w *AttentionWriter) Write() *graph.Node {
	b := w.B
	q := w.scale(w.split("q", w.heads(), w.Queries, w.Depth))
	k, v := w.scale(w.keysOrValues("k", w.Depth)), w.keysOrValues("v", w.Width)
	flat := w.coin() && k.Type.Shape.At(1) == w.heads() && v.Type.Shape.At(1) == w.heads()
	full := []int{w.Batch, w.heads(), w.Queries, w.Keys}
	if flat {
		merge := func(x *graph.Node) *graph.Node {
			s := x.Type.Shape
			return b.Reshape(x, s.At(0)*s.At(1), s.At(2), s.At(3))
		}
		q, k, v = merge(q), merge(k), merge(v)
		full = []int{w.Batch * w.heads(), w.Queries, w.Keys}
	}
	var s *graph.Node
	if w.coin() {
		s = b.MatMul(q, k, false, true)
	} else {
		r := k.Type.Shape.Rank()
		perm := []int{0, 1, 2, 3}[:r]
		perm[r-2], perm[r-1] = r-1, r-2
		s = b.MatMul(q, b.Transpose(k, perm...), false, false)
	}
	wide := w.D
	if w.D == graph.F32 && w.coin() {
		wide = graph.F64
		s = b.Add(graph.Cast{To: wide}, s)
	}
	s = b.Reshape(w.scale(s), w.Batch, w.heads(), w.Queries, w.Keys)
	if wide == w.D {
		for range w.R.IntN(3) {
			s = w.mask(s)
		}
	}
	p := w.softmax(b.Reshape(w.scale(s), full...))
	if w.R.IntN(3) == 0 {
		p = b.Add(graph.Dropout{P: 0.4}, p, w.operand("seed", graph.TypeOf(graph.I64)))
	}
	if wide != w.D {
		p = b.Add(graph.Cast{To: w.D}, p)
	}
	return b.Reshape(b.MatMul(p, v, false, false), w.Batch, w.heads(), w.Queries, w.Width)
}
