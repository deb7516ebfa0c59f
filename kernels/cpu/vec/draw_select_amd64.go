package vec

import "golang.org/x/sys/cpu"

// maxGroup are the words of a group in AVX-512, the largest.
const maxGroup = 2 * groupWords

// What makes random words: the processor decides, and tests do.
var (
	wordsByAVX2   = cpu.X86.HasAVX2
	wordsByAVX512 = wordsByAVX2 && cpu.X86.HasAVX512F
)

// groupOf are the words of the largest group that so many words have; 0 is none, or no assembly.
func groupOf(words int) int {
	switch {
	case wordsByAVX512 && words >= maxGroup:
		return maxGroup
	case wordsByAVX2 && words >= groupWords:
		return groupWords
	}
	return 0
}

// groups sets the words of as many whole groups as fit into dst. The first has the blocks of the counters, each other one those
// step further.
func (s stream) groups(dst []uint32, group int, counters *[8]uint64, step uint64) {
	n := len(dst) / group
	switch {
	case group == maxGroup && s.rounds == 7:
		philox7AVX512(&dst[0], n, s.seed, counters, step)
	case group == maxGroup:
		philox10AVX512(&dst[0], n, s.seed, counters, step)
	case s.rounds == 7:
		philox7AVX2(&dst[0], n, s.seed, counters, step)
	default:
		philox10AVX2(&dst[0], n, s.seed, counters, step)
	}
}
