// Package testtools is for tests that need programs beside Go's.
package testtools

import (
	"os"
	"os/exec"
	"testing"
)

// Need skips the test if a program is missing, and says which. In CI, where FUSEC_FPGA=required, that is an error.
func Need(t testing.TB, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err == nil {
			continue
		}
		if os.Getenv("FUSEC_FPGA") == "required" {
			t.Fatalf("%s is required and not installed", p)
		}
		t.Skipf("%s is not installed: make test-tools says from where", p)
	}
}

// Long skips a test that takes minutes, unless FUSEC_LONG is set: make fpga-long does so.
func Long(t testing.TB) {
	t.Helper()
	if os.Getenv("FUSEC_LONG") == "" {
		t.Skip("takes minutes: make fpga-long runs it")
	}
}
