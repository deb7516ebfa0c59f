package attention

import (
	"bytes"
	"math"
	"unsafe"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/vec"
)

// maskAt is where the mask of a query and a key stands.
func (k *Plan[T]) maskAt(head, row, key int) int {
	return k.Mask.Offsets[head] + row*k.Mask.RowStride + key*k.Mask.ColStride
}

// attends reports whether the mask lets any of some queries attend any of the keys lo to hi−1. A mask that does is
// seldom read beyond the first query.
func (k *Plan[T]) attends(head, row, rows, lo, hi int) bool {
	for i := range rows {
		if k.rowAttends(head, row+i, lo, hi) {
			return true
		}
		if k.Mask.RowStride == 0 {
			break
		}
	}
	return false
}

func (k *Plan[T]) rowAttends(head, row, lo, hi int) bool {
	at, step := k.maskAt(head, row, lo), k.Mask.ColStride
	n := hi - lo
	if step == 0 {
		n, step = 1, 1
	}
	switch {
	case k.Bool && step == 1:
		return bytes.IndexByte(flags(k.args.Keep[at:][:n]), 1) >= 0
	case k.Bool:
		for j := range n {
			if k.args.Keep[at+j*step] {
				return true
			}
		}
		return false
	case step == 1:
		return !(opcodes[T]().Reduce(vec.MaxOf)(k.args.Mask[at:][:n]) == T(math.Inf(-1)))
	}
	for j := range n {
		if !(k.args.Mask[at+j*step] == T(math.Inf(-1))) {
			return true
		}
	}
	return false
}

// flags are the bytes of Bools, 0 or 1.
func flags(b []bool) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(b))), len(b))
}

// applyMask applies the mask to the scores s of n keys from first on.
func (b *block[T]) applyMask(s []T, row, rows, first, n int) {
	nr := b.micro.NR
	if !b.Bool {
		at := b.maskAt(b.head, row, first)
		gemm.Pack(b.mask, nr, n, rows, b.args.Mask[at:], b.Mask.ColStride, b.Mask.RowStride)
		opcodes[T]().AddTo(s, b.mask[:n*nr])
		return
	}
	for i := range rows {
		b.keepOnly(s[i:], nr, row+i, first, n)
	}
}

// keepOnly sets the scores of one query, step apart, to −Inf where the Bools from key first on are false.
func (b *block[T]) keepOnly(s []T, step, row, first, n int) {
	low := T(math.Inf(-1))
	at, stride := b.maskAt(b.head, row, first), b.Mask.ColStride
	if stride != 1 {
		for j := range n {
			if !b.args.Keep[at+j*stride] {
				s[j*step] = low
			}
		}
		return
	}
	// Masks come in runs, which are found a vector at a time.
	keep := flags(b.args.Keep[at:][:n])
	for j := 0; j < n; {
		skip := bytes.IndexByte(keep[j:], 0)
		if skip < 0 {
			return
		}
		j += skip
		run := bytes.IndexByte(keep[j:], 1)
		if run < 0 {
			run = n - j
		}
		for range run {
			s[j*step] = low
			j++
		}
	}
}

// drop zeroes the probabilities that dropout takes. Those kept are divided by the share of them at the end.
func (b *block[T]) drop(s []T, row, rows, first, n int) {
	nr := b.micro.NR
	for i := range rows {
		b.dropRow(s[i:], nr, b.head, row+i, first, n)
	}
}

// dropRow is drop for the n probabilities of one query from key first on, step apart.
func (k *Plan[T]) dropRow(p []T, step, head, row, first, n int) {
	least := graph.RandomThreshold(k.Op.Dropout)
	start := (uint64(head)*uint64(k.Dims.Queries)+uint64(row))*uint64(k.Dims.Keys) + uint64(first)
	words := graph.Philox(k.args.Seed, start/4)
	for j := range n {
		at := start + uint64(j)
		if at%4 == 0 {
			words = graph.Philox(k.args.Seed, at/4)
		}
		if words[at%4] < least {
			p[j*step] = 0
		}
	}
}
