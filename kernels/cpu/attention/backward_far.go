package attention

import "math"

// A query is far if its log-sum-exp is so large that rounding it moves the probabilities e^(s − lse): for a row that a
// finite mask moves to −1e9, a log-sum-exp of f32 has the mask but not the logarithm, so that each of n equal scores
// would have the probability 1 instead of 1÷n. For blocks with such queries a pass over their keys finds the greatest
// score m and l = Σ e^(s−m) again, as the forward pass did, and their probabilities are e^(s−m)÷l.

// nearLSE is the least log-sum-exp of a far query, in absolute value. Half a unit in the last place of an f32 below it
// is 4e-6.
const nearLSE = 1 << 7

// far has the maxima and the factors for the exponentials of far queries.
type far[T Float] struct {
	top    []T    // of each query: its greatest score, +Inf if it is not far
	share  []T    // the factor of the exponentials
	blocks []bool // the blocks of queries that have any
}

func newFar[T Float](queries, blocks int) far[T] {
	return far[T]{make([]T, queries), make([]T, queries), make([]bool, blocks)}
}

// is reports whether a query is far.
func (f *far[T]) is(query int) bool { return f.top[query] != T(math.Inf(1)) }

// findFar marks the far queries of a block of a head, and finds their maxima and sums.
func (k *Backward[T]) findFar(worker, head, block int) {
	low, none := T(math.Inf(-1)), T(math.Inf(1))
	first := block * k.queries
	end := min(first+k.queries, k.Dims.Queries)
	found := false
	for i := first; i < end; i++ {
		at, lse := head*k.Dims.Queries+i, k.lse(head, i)
		k.far.top[at], k.far.share[at] = none, 0
		if (lse > nearLSE || lse < -nearLSE) && lse != low && lse != none {
			k.far.top[at], found = low, true
		}
	}
	k.far.blocks[head*k.blocks+block] = found
	if !found {
		return
	}
	b := k.pair(worker)
	b.sums = true
	b.queriesAt(head, block)
	for chunk := range k.chunks {
		b.keysAt(head/k.Dims.Group, chunk)
		b.meet()
	}
	for i := first; i < end; i++ {
		at := head*k.Dims.Queries + i
		switch top := k.far.top[at]; {
		case top == none:
		case top == low: // attends to no key, whatever the log-sum-exp is
			k.far.top[at] = 0
		default:
			k.far.share[at] = 1 / k.far.share[at]
		}
	}
}

// sumPanel raises the maxima of far queries by their scores of the n keys from first on, and adds to their sums.
func (b *pair[T]) sumPanel(first, n, from, to int, whole bool) {
	s, start, _ := b.scores(first, n, from, to, whole)
	low := T(math.Inf(-1))
	for i := start; i < to; i++ {
		at := b.head*b.Dims.Queries + b.row + i
		if !b.far.is(at) {
			continue
		}
		row := s[(i-start)*b.micro.NR:][:n]
		old := b.far.top[at]
		top := old
		for _, x := range row {
			top = max(top, x)
		}
		if top == low {
			continue
		}
		if top != old {
			b.far.top[at] = top
			b.far.share[at] *= T(math.Exp(float64(old - top)))
		}
		for j := range row {
			row[j] -= top
		}
		exponentials(row)
		var sum T
		for _, e := range row {
			sum += e
		}
		b.far.share[at] += sum
	}
}

// lowerFar subtracts from the scores of far queries, from the block's query from on, their maxima.
func (b *pair[T]) lowerFar(s []T, from, to, n int) {
	for i := from; i < to; i++ {
		if at := b.head*b.Dims.Queries + b.row + i; b.far.is(at) {
			row, top := s[(i-from)*b.micro.NR:][:n], b.far.top[at]
			for j := range row {
				row[j] -= top
			}
		}
	}
}

// shareFar makes the exponentials of far queries probabilities.
func (b *pair[T]) shareFar(p []T, from, to, n int) {
	for i := from; i < to; i++ {
		if at := b.head*b.Dims.Queries + b.row + i; b.far.is(at) {
			multiply(p[(i-from)*b.micro.NR:][:n], b.far.share[at])
		}
	}
}
