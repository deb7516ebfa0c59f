package attention

import (
	"slices"

	"fusec/graph"
)

// build makes the Attention y and the value that takes the place of the second contraction.
func (a *attention) build(b *graph.Builder) (y, to *graph.Node, err error) {
	s, err := a.shape()
	if err != nil {
		return nil, nil, err
	}
	q := s.view(b, a.q, s.batch, s.heads, s.queries)
	k := s.view(b, a.k, s.batch, s.kvHeads, nil)
	v := s.view(b, a.v, s.batch, s.kvHeads, nil)
	if q == nil || k == nil || v == nil {
		return nil, nil, a.Stop(a.second, "its operands take more than %d axes to describe", graph.MaxRank)
	}
	for _, f := range a.factors {
		if f.scalar.Type.DType != q.Type.DType {
			return nil, nil, a.Stop(f.scalar, "the scores are scaled by a scalar of %v, and the queries are %v",
				f.scalar.Type.DType, q.Type.DType)
		}
		q = b.Binary(f.fn, q, f.scalar)
	}
	m, err := a.masking(b, s)
	if err != nil {
		return nil, nil, err
	}
	op := graph.Attention{Scale: a.scale, Causal: m.causal, Window: m.window, Dropout: a.dropout,
		HasMask: m.operand != nil, HasLengths: m.lengths != nil, Tail: m.tail}
	if m.some != nil { // without a key that it keeps, a query weighs all of them alike
		q = b.Add(graph.Select{}, b.Broadcast(m.some, q.Type.Shape), q, b.Scalar(q.Type.DType, 0))
	}
	args := []*graph.Node{q, k, v}
	if op.HasMask {
		args = append(args, m.operand)
	}
	if op.HasLengths {
		args = append(args, b.Const(m.lengths))
	}
	if a.dropout > 0 {
		args = append(args, a.seed)
	}
	y = b.Add(op, args...)
	like := a.second.Type.Shape.Slice()
	if a.side == 0 {
		return y, b.Reshape(y, like...), nil
	}
	r := len(like)
	like[r-2], like[r-1] = like[r-1], like[r-2]
	perm := make([]int, r)
	for i := range perm {
		perm[i] = i
	}
	perm[r-2], perm[r-1] = r-1, r-2
	return y, b.Transpose(b.Reshape(y, like...), perm...), nil
}

// rowShape says how the rows of the scores, cut into pieces that fit all operands, make up the axes of the attention.
type rowShape struct {
	pieces  []int // sizes
	batch   []span
	heads   []span // one, or none if there are only queries
	kvHeads []span // the part of heads along which keys or values differ
	queries []span // one
}

// span is the pieces [lo, hi) that make up an axis.
type span struct{ lo, hi int }

// shape decides on the axes of the attention: batches, heads and queries as the user has them at the masks, where
// positions matter, or else at the product of queries and keys. Where that product has batches and heads in one axis, the
// views of the queries say how to divide it. Where heads have two axes, and keys differ along the first only, both
// together are the heads.
func (a *attention) shape() (*rowShape, error) {
	lead, queries := slices.Clone(a.rows[:len(a.rows)-1]), a.rows[len(a.rows)-1]
	if len(lead) == 1 {
		lead = splitLike(lead[0], a.q.rows)
	}
	s := &rowShape{pieces: append(slices.Clone(lead), queries)}
	for _, o := range a.operands() {
		var ok bool
		if s.pieces, ok = refine(s.pieces, sizes(o.rows)); !ok {
			return nil, a.Stop(a.softmax, "its rows are %v in one place and %v in another", append(lead, queries), sizes(o.rows))
		}
	}
	for _, o := range a.operands() {
		o.rows = cut(o.rows, s.pieces)
	}
	at := 0
	take := func(size int) span {
		lo := at
		for n := 1; n < size; at++ {
			n *= s.pieces[at]
		}
		return span{lo, at}
	}
	for _, d := range lead {
		s.batch = append(s.batch, take(d))
	}
	s.queries = []span{take(queries)}
	if !a.sharesKeys(s.queries[0]) {
		return nil, a.Stop(a.softmax, "along the axis of %d queries, keys or values differ", queries)
	}
	if n := len(s.batch); n > 0 {
		h := s.batch[n-1]
		s.batch = s.batch[:n-1]
		if n > 2 && h.lo < h.hi && a.sharesKeys(h) {
			h.lo = s.batch[n-2].lo
			s.batch = s.batch[:n-2]
		}
		kv := h
		for kv.hi > kv.lo && a.sharesKeys(span{kv.hi - 1, kv.hi}) {
			kv.hi--
		}
		s.heads, s.kvHeads = []span{h}, []span{kv}
	}
	return s, nil
}

// splitLike divides a leading axis of the given size in the way of axes.
func splitLike(size int, axes []axis) []int {
	var r []int
	n := 1
	for _, x := range axes {
		if n*x.size > size {
			break
		}
		n, r = n*x.size, append(r, x.size)
	}
	if n != size {
		return []int{size}
	}
	return r
}

// operands lists everything that is read along the rows of the scores.
func (a *attention) operands() []*operand {
	os := []*operand{&a.q, &a.k, &a.v}
	for i := range a.masks {
		os = append(os, &a.masks[i].operand)
	}
	return os
}

// sharesKeys reports whether all of the rows' pieces in the span read the same keys and values.
func (a *attention) sharesKeys(p span) bool {
	return repeats(a.k.rows[p.lo:p.hi]) && repeats(a.v.rows[p.lo:p.hi])
}

// size is the number of rows along the pieces of a span.
func (s *rowShape) size(p span) int {
	n := 1
	for _, d := range s.pieces[p.lo:p.hi] {
		n *= d
	}
	return n
}

// view makes an operand with the given axes and its own after them, repeated to their full size.
func (s *rowShape) view(b *graph.Builder, o operand, axes ...[]span) *graph.Node {
	var dims []int
	for _, p := range slices.Concat(axes...) {
		dims = append(dims, s.size(p))
	}
	for _, g := range o.tail {
		dims = append(dims, extentOf(g))
	}
	x := s.narrow(b, o, axes...)
	if x == nil || len(dims) > graph.MaxRank {
		return nil
	}
	return b.Broadcast(x, graph.ShapeOf(dims...))
}

// narrow is view with axes of size 1 where the operand repeats.
func (s *rowShape) narrow(b *graph.Builder, o operand, axes ...[]span) *graph.Node {
	var groups [][]axis
	for _, p := range slices.Concat(axes...) {
		groups = append(groups, o.rows[p.lo:p.hi])
	}
	return o.view(b, append(groups, o.tail...))
}
