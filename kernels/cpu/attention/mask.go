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

// dropKeys is the number of keys for which random words are drawn at a time, a multiple of the generator's groups.
const dropKeys = 64

// dropRoom is the number of elements for the random words of a panel with rows probabilities for each key.
func (k *Plan[T]) dropRoom(rows int) int {
	if k.Op.Dropout == 0 {
		return 0
	}
	return rows * dropKeys
}

// words is scratch as random words, each in the space of an element.
func words[T Float](scratch []T) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(scratch))), len(scratch))
}

// rule is how dropout decides.
func (k *Plan[T]) rule() graph.DropoutRule { return graph.DropoutRuleOf(k.Op.Dropout) }

// drawn is the index of the random number of a query and a key; that of the next query is Keys further.
func (k *Plan[T]) drawn(head, row, key int) uint64 {
	return (uint64(head)*uint64(k.Dims.Queries)+uint64(row))*uint64(k.Dims.Keys) + uint64(key)
}

// keep sets the dropped probabilities to zero, by their words. The others are divided by the keep probability at the
// end.
func (k *Plan[T]) keep(p []T, words []uint32) {
	vec.Of[T]().Keep()(p, p, words, k.rule().Least(), 1)
}

// drop applies dropout to the probabilities s of n keys from first on.
func (b *block[T]) drop(s []T, row, rows, first, n int) {
	nr := b.micro.NR
	for at := 0; at < n; at += dropKeys {
		keys := min(dropKeys, n-at)
		drawn := words(b.drawn)[:rows*keys]
		vec.DrawRows(drawn, keys, b.args.Seed, b.Plan.drawn(b.head, row, first+at), uint64(b.Dims.Keys), b.rule().Bits)
		byKey := words(b.byKey)[:keys*nr]
		vec.F32().Transpose(bits(byKey), nr, bits(drawn), keys, rows, keys)
		b.keep(s[at*nr:][:keys*nr], byKey)
	}
}

// bits are words as elements, to be moved.
func bits(words []uint32) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(words))), len(words))
}

// dropRow applies dropout to the probabilities p of one query from key first on.
func (k *Plan[T]) dropRow(p, scratch []T, head, row, first int) {
	for at := 0; at < len(p); at += dropKeys {
		drawn := words(scratch)[:min(dropKeys, len(p)-at)]
		vec.Draws(drawn, k.args.Seed, k.drawn(head, row, first+at), k.rule().Bits)
		k.keep(p[at:][:len(drawn)], drawn)
	}
}
