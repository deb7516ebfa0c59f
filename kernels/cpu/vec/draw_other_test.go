//go:build !amd64 && !arm64

package vec

import "testing"

// eachGenerator runs a test with the one generator of words that there is.
func eachGenerator(t *testing.T, test func(*testing.T)) {
	t.Helper()
	t.Run("portable", test)
}
