//go:build !amd64 && !arm64

package vec

// wordGroups makes no words without assembly.
func wordGroups([]uint32, uint64, uint64) (done int) { return 0 }

// wordRows makes none either.
func wordRows([]uint32, int, uint64, uint64, uint64) bool { return false }
