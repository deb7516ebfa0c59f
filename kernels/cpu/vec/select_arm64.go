package vec

import "golang.org/x/sys/cpu"

const instructions = "NEON"

// hasAssembly reports whether this processor runs the assembly.
func hasAssembly() bool { return cpu.ARM64.HasASIMD }

// useWiderF32 replaces nothing: there are no wider registers.
func useWiderF32(*Kernels[float32]) {}

func init() {
	if hasAssembly() {
		strips = append(strips, stripKernels{"neon", 12, maxColumnsF32, expColumnsF32, scaleColumnsF32})
	}
}

// wordsByNEON says whether the assembly makes random words: the processor decides, and tests do.
var wordsByNEON = hasAssembly()

// wordGroups sets the words of as many whole groups as fit into dst and returns how many they are: none without
// assembly.
func wordGroups(dst []uint32, seed, block uint64) (done int) {
	n := len(dst) / groupWords
	if n == 0 || !wordsByNEON {
		return 0
	}
	philoxNEON(&dst[0], n, seed, block, groupWords/blockWords)
	return n * groupWords
}

// wordRows makes rows of n words that start step blocks apart, if each is one group; it reports whether they are.
func wordRows(dst []uint32, n int, seed, block, step uint64) bool {
	switch {
	case len(dst) == 0:
	case n == groupWords && wordsByNEON:
		philoxNEON(&dst[0], len(dst)/n, seed, block, step)
	default:
		return false
	}
	return true
}
