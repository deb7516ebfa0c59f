package vec

import "testing"

// eachGenerator runs a test with every generator of words that this processor has.
func eachGenerator(t *testing.T, test func(*testing.T)) {
	t.Helper()
	defer func(neon bool) { wordsByNEON = neon }(wordsByNEON)
	if wordsByNEON {
		t.Run("neon", test)
	}
	wordsByNEON = false
	t.Run("portable", test)
}
