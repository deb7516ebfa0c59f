package vec

import "fusec/graph"

// The number of words of a block of the generator, and of a group of blocks, the least that the assembly makes at once.
const blockWords, groupWords = 4, 16

// Words sets dst to consecutive random words from number first on: word i is word i mod 4 of block i div 4 of
// [graph.Philox] with the seed, on every processor. It allocates nothing.
func Words(dst []uint32, seed, first uint64) {
	block := first / blockWords
	if skip := int(first % blockWords); skip > 0 {
		var room [groupWords]uint32
		head := room[:min(skip+len(dst), groupWords)]
		wordBlocks(head, seed, block)
		dst = dst[copy(dst, head[skip:]):]
		block += groupWords / blockWords
	}
	wordBlocks(dst, seed, block)
}

// WordRows sets dst to rows of n words each; row i has the words from number first + i·step on. See [Words].
func WordRows(dst []uint32, n int, seed, first, step uint64) {
	if first%blockWords == 0 && step%blockWords == 0 && wordRows(dst, n, seed, first/blockWords, step/blockWords) {
		return
	}
	for ; len(dst) > 0; dst = dst[n:] {
		Words(dst[:n], seed, first)
		first += step
	}
}

// wordBlocks is Words from the first word of a block on.
func wordBlocks(dst []uint32, seed, block uint64) {
	done := wordGroups(dst, seed, block)
	if dst = dst[done:]; len(dst) == 0 {
		return
	}
	var last [groupWords]uint32
	block += uint64(done / blockWords)
	if wordGroups(last[:], seed, block) == 0 {
		for at := 0; at < len(dst); at += blockWords {
			words := graph.Philox(seed, block+uint64(at/blockWords))
			copy(dst[at:], words[:])
		}
		return
	}
	copy(dst, last[:])
}

// keep is the portable [Kernels.Keep].
func keep[T Float](dst, x []T, words []uint32, least uint32, scale T) {
	dst, x = cut1(dst, x)
	dst, words = cut1(dst, words)
	for i, w := range words {
		choice := [2]T{x[i] * scale, 0} // avoids an unpredictable branch
		dst[i] = choice[(uint64(w)-uint64(least))>>63]
	}
}
