package bench

import (
	"fusec/cmd/internal/clitest"
	"strings"
	"testing"
)

// The disk's loop reads files whose size is a multiple of nothing, too.
func TestOpenDisk(t *testing.T) {
	run, stop, err := openDisk(t.Context(), clitest.Write(t, "x", strings.Repeat("x", 10_001)))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for range 2 {
		if n, err := run(); err != nil || n != 10_001 {
			t.Errorf("%d bytes read (%v)", n, err)
		}
	}
}
