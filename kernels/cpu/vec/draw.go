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

// Draws sets dst to words whose high bits are random numbers of 8, 16 or 32 bits, from number first on: of each word of the
// generator, the numbers from the lowest; see [graph.DropoutRule]. The other bits are of no meaning.
func Draws(dst []uint32, seed, first uint64, bits int) { DrawRows(dst, len(dst), seed, first, 0, bits) }

// DrawRows sets dst to rows of n numbers each; row i has those from number first + i·step on. See [Draws].
func DrawRows(dst []uint32, n int, seed, first, step uint64, bits int) {
	of := 32 / bits // numbers in a word
	switch {
	case of == 1:
		WordRows(dst, n, seed, first, step)
		return
	case n%of == 0 && first%uint64(of) == 0 && step%uint64(of) == 0:
		// The words are made at the end, and numbers overwrite them only when they have been read.
		words := dst[len(dst)-len(dst)/of:]
		WordRows(words, n/of, seed, first/uint64(of), step/uint64(of))
		spread(dst, words, bits)
		return
	}
	var room [groupWords]uint32
	var numbers [4 * groupWords]uint32
	for ; len(dst) > 0; dst = dst[n:] {
		for at := 0; at < n; {
			skip := int((first + uint64(at)) % uint64(of))
			count := min(skip+n-at, of*groupWords)
			words := room[:(count+of-1)/of]
			Words(words, seed, (first+uint64(at))/uint64(of))
			spread(numbers[:], words, bits)
			at += copy(dst[at:n], numbers[skip:count])
		}
		first += step
	}
}

// spread moves the numbers of 8 or 16 bits of words to the high bits of words of their own. The words may be the last of dst: all
// that are read at a time are read before any are written.
func spread(dst, words []uint32, bits int) {
	if bits == 16 {
		for i := range words {
			w, d := words[i], dst[2*i:][:2]
			d[0], d[1] = w<<16, w
		}
		return
	}
	for len(words) >= 4 {
		w, d := *(*[4]uint32)(words), (*[16]uint32)(dst)
		d[0], d[1], d[2], d[3] = w[0]<<24, w[0]<<16, w[0]<<8, w[0]
		d[4], d[5], d[6], d[7] = w[1]<<24, w[1]<<16, w[1]<<8, w[1]
		d[8], d[9], d[10], d[11] = w[2]<<24, w[2]<<16, w[2]<<8, w[2]
		d[12], d[13], d[14], d[15] = w[3]<<24, w[3]<<16, w[3]<<8, w[3]
		words, dst = words[4:], dst[16:]
	}
	for i := range words {
		w, d := words[i], dst[4*i:][:4]
		d[0], d[1], d[2], d[3] = w<<24, w<<16, w<<8, w
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
