package vec

import "testing"

// eachGenerator runs a test with every generator of words that this processor has.
func eachGenerator(t *testing.T, test func(*testing.T)) {
	t.Helper()
	avx2, avx512 := wordsByAVX2, wordsByAVX512
	defer func() { wordsByAVX2, wordsByAVX512 = avx2, avx512 }()
	if avx512 {
		t.Run("avx512", test)
	}
	wordsByAVX512 = false
	if avx2 {
		t.Run("avx2", test)
	}
	wordsByAVX2 = false
	t.Run("portable", test)
}
