package vec

import "golang.org/x/sys/cpu"

// wideWords are the words of a group in AVX-512.
const wideWords = 2 * groupWords

// What makes random words: the processor decides, and tests do.
var (
	wordsByAVX2   = cpu.X86.HasAVX2
	wordsByAVX512 = wordsByAVX2 && cpu.X86.HasAVX512F
)

// wordGroups sets the words of as many whole groups as fit into dst and returns how many they are: none without
// assembly.
func wordGroups(dst []uint32, seed, block uint64) (done int) {
	if n := len(dst) / wideWords; n > 0 && wordsByAVX512 {
		philoxAVX512(&dst[0], n, seed, block, wideWords/blockWords)
		done = n * wideWords
	}
	if n := (len(dst) - done) / groupWords; n > 0 && wordsByAVX2 {
		philoxAVX2(&dst[done], n, seed, block+uint64(done/blockWords), groupWords/blockWords)
		done += n * groupWords
	}
	return done
}

// wordRows makes rows of n words that start step blocks apart, if each is one group; it reports whether they are.
func wordRows(dst []uint32, n int, seed, block, step uint64) bool {
	switch {
	case len(dst) == 0:
	case n == wideWords && wordsByAVX512:
		philoxAVX512(&dst[0], len(dst)/n, seed, block, step)
	case n == groupWords && wordsByAVX2:
		philoxAVX2(&dst[0], len(dst)/n, seed, block, step)
	default:
		return false
	}
	return true
}
