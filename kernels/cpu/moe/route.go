package moe

import (
	"unsafe"

	"fusec/kernels/cpu/tiling"
)

// routes says which tokens each expert gets, in ascending order.
type routes struct {
	counts []int   // tokens of each expert
	starts []int   // start of each expert's tokens in order
	order  []int32 // tokens

	ranges, each int   // ranges of tokens, and their size
	partial      []int // [range][expert]: counts, then destinations of the range's tokens
}

// reserve allocates the lists: for k experts of each token, or all if k is 0.
func (r *routes) reserve(tokens, experts, k int, dense bool) {
	r.each = max(tiling.CeilDiv(tokens, tokenRanges), rangeMin)
	r.ranges = tiling.CeilDiv(tokens, r.each)
	r.counts, r.starts = make([]int, experts), make([]int, experts)
	if !dense {
		r.partial = make([]int, r.ranges*experts)
		if k == 0 || k > experts {
			k = experts
		}
		r.order = make([]int32, tokens*k)
		return
	}
	r.order = make([]int32, tokens) // of all experts
	for t := range r.order {
		r.order[t] = int32(t)
	}
	for e := range r.counts {
		r.counts[e] = tokens
	}
}

func (r *routes) bytes() int64 {
	return int64(len(r.order))*4 + int64(len(r.partial)+2*len(r.counts))*int64(unsafe.Sizeof(0))
}

// tokens lists those of a segment.
func (r *routes) tokens(s *segment) []int32 {
	return r.order[r.starts[s.expert]+s.from:][:s.n]
}

// route groups the tokens by expert.
func (k *Plan[T]) route() {
	r := &k.routes
	if k.Op.Dense {
		k.pool.Run(r.ranges, (*listTask[T])(k))
		return
	}
	k.pool.Run(r.ranges, (*countTask[T])(k))
	at := 0
	for e := range r.counts {
		r.starts[e] = at
		for i := e; i < len(r.partial); i += len(r.counts) {
			n := r.partial[i]
			r.partial[i] = at
			at += n
		}
		r.counts[e] = at - r.starts[e]
	}
	if at > len(r.order) { // tokens have more experts than TopK
		r.order = make([]int32, k.Dims.Tokens*k.Op.Experts)
	}
	k.pool.Run(r.ranges, (*listTask[T])(k))
}

// countTask counts the tokens of a range that each expert gets.
type countTask[T Float] Plan[T]

func (t *countTask[T]) Do(_, item int) {
	k := (*Plan[T])(t)
	n := k.Op.Experts
	counts := k.routes.partial[item*n:][:n]
	clear(counts)
	lo, hi := k.rangeOf(item)
	for token := lo; token < hi; token++ {
		at := k.Gates.Offsets[token]
		for e := range counts {
			if k.args.Gates[at+e*k.Gates.ColStride] != 0 {
				counts[e]++
			}
		}
	}
}

// listTask lists the tokens of a range with their experts, and clears the memory of later sums.
type listTask[T Float] Plan[T]

func (t *listTask[T]) Do(_, item int) {
	k := (*Plan[T])(t)
	n := k.Op.Experts
	lo, hi := k.rangeOf(item)
	for token := lo; token < hi; token++ {
		if k.Backward {
			clearRow(k.args.DX[k.DX.Offsets[token]:], k.DX.ColStride, k.Dims.Width)
			if k.DGates.Offsets != nil {
				clearRow(k.args.DGates[k.DGates.Offsets[token]:], k.DGates.ColStride, n)
			}
		} else {
			clearRow(k.args.Y[k.Y.Offsets[token]:], k.Y.ColStride, k.Dims.Result)
		}
	}
	if k.Op.Dense {
		return
	}
	next := k.routes.partial[item*n:][:n]
	for token := lo; token < hi; token++ {
		at := k.Gates.Offsets[token]
		for e := range next {
			if k.args.Gates[at+e*k.Gates.ColStride] != 0 {
				k.routes.order[next[e]] = int32(token)
				next[e]++
			}
		}
	}
}

// rangeOf is a range of tokens.
func (k *Plan[T]) rangeOf(item int) (lo, hi int) {
	return item * k.routes.each, min((item+1)*k.routes.each, k.Dims.Tokens)
}

// gate is the weight of an expert for a token.
func (k *Plan[T]) gate(token int32, expert int) T {
	return k.args.Gates[k.Gates.Offsets[token]+expert*k.Gates.ColStride]
}

// clearRow sets n elements, stride apart, to zero.
func clearRow[T Float](x []T, stride, n int) {
	if stride == 1 {
		clear(x[:n])
		return
	}
	for i := range n {
		x[i*stride] = 0
	}
}
