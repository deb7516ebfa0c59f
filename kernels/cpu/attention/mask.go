package attention

import (
	"bytes"
	"math"
	"unsafe"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/vec"
)

// maskAt is the index of the mask of a query and a key.
func (k *Plan[T]) maskAt(head, row, key int) int {
	return k.Mask.Offsets[head] + row*k.Mask.RowStride + key*k.Mask.ColStride
}

// attends reports whether the mask lets any of some queries attend any of the keys lo to hi−1. If it does, usually only
// the mask of the first query is read.
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
		return !(vec.Of[T]().Reduce(vec.MaxOf)(k.args.Mask[at:][:n]) == T(math.Inf(-1)))
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
		vec.Of[T]().AddTo(s, b.mask[:n*nr])
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
	// Masks have runs of equal elements, which are found a vector at a time.
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

// dropKeys is the number of keys for which dropout draws at a time.
const dropKeys = 64

// dropRoom is the number of elements for the bits of so many rows of dropKeys weights.
func (k *Plan[T]) dropRoom(rows int) int {
	if k.Op.Dropout == 0 {
		return 0
	}
	return rows * dropKeys / 32
}

// words is scratch as words, each in the space of an element.
func words[T Float](scratch []T) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(scratch))), len(scratch))
}

// rule is how dropout decides.
func (k *Plan[T]) rule() graph.DropoutRule { return graph.DropoutRuleOf(k.Op.Dropout) }

// kept sets dst to the bits of [vec.Kept] for some queries and n keys from first on.
func (k *Plan[T]) kept(dst []uint32, head, row, rows, first, n int) {
	at := (uint64(head)*uint64(k.Dims.Queries)+uint64(row))*uint64(k.Dims.Keys) + uint64(first)
	vec.Kept(dst, rows, n, k.rule(), k.args.Seed, at, uint64(k.Dims.Keys))
}

// drop applies dropout to the probabilities s of n keys from first on. Those that are kept are divided by the probability at the
// end.
func (b *block[T]) drop(s []T, row, rows, first, n int) {
	nr := b.micro.NR
	for at := 0; at < n; at += dropKeys {
		keys := min(dropKeys, n-at)
		groups := (keys + 31) / 32
		byQuery, byKey := words(b.drawn), words(b.byKey)
		b.Plan.kept(byQuery, b.head, row, rows, first+at, 32*groups)
		clear(byQuery[rows*groups : nr*groups])
		vec.KeptColumns(byKey, byQuery, nr, groups)
		p := s[at*nr:][:keys*nr]
		vec.Of[T]().Keep()(p, p, byKey, 1)
	}
}

// dropRow applies dropout to the probabilities p of one query from key first on.
func (k *Plan[T]) dropRow(p, scratch []T, head, row, first int) {
	for at := 0; at < len(p); at += dropKeys {
		p, kept := p[at:][:min(dropKeys, len(p)-at)], words(scratch)
		k.kept(kept, head, row, 1, first+at, len(p))
		vec.Of[T]().Keep()(p, p, kept, 1)
	}
}
