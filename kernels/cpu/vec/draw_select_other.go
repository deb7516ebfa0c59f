//go:build !amd64 && !arm64

package vec

// maxGroup are the words of the largest group.
const maxGroup = 2 * groupWords

// groupOf has no group without assembly.
func groupOf(int) int { return 0 }

func (stream) groups([]uint32, int, *[8]uint64, uint64) {}
