package bench

import (
	"fusec/graph/graphtest"
	"strings"
	"testing"
)

// The disk's loop reads files whose size is a multiple of nothing, too.
func TestOpenDisk(t *testing.T) {
	run, stop, err := openDisk(t.Context(), graphtest.File(t, "x", strings.Repeat("x", 10_001)))
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
