// Package nvrtctest opens NVRTC in tests.
package nvrtctest

import (
	"os"
	"testing"

	"fusec/lowering/cuda/driver/nvrtc"
)

// Open gives NVRTC. A test is skipped on a machine that has none, unless $FUSEC_NVRTC says that it should: continuous
// integration sets it.
func Open(t testing.TB, options ...string) *nvrtc.Compiler {
	t.Helper()
	c, err := nvrtc.Open(options...)
	if err != nil && os.Getenv(nvrtc.Variable) == "" {
		t.Skipf("make cuda-tools fetches NVRTC: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}
