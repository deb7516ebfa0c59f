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

// maxGroup are the words of the largest group.
const maxGroup = 2 * groupWords

// groupOf are the words of the largest group that so many words have; 0 is none, or no assembly.
func groupOf(words int) int {
	if wordsByNEON && words >= groupWords {
		return groupWords
	}
	return 0
}

// groups sets the words of as many whole groups as fit into dst. The first has the blocks of the counters, each other one those
// step further.
func (s stream) groups(dst []uint32, group int, counters *[8]uint64, step uint64) {
	if s.rounds == 7 {
		philox7NEON(&dst[0], len(dst)/group, s.seed, counters, step)
	} else {
		philox10NEON(&dst[0], len(dst)/group, s.seed, counters, step)
	}
}
