//go:build linux && (amd64 || arm64)

package fpgatest

import (
	"testing"

	"fusec/fpga/link"
	"fusec/fpga/sim"
)

// TestLibrary runs it over the simulator in this process.
func TestLibrary(t *testing.T) {
	c := configs[0]
	b := built(t, sim.Build, c)
	Suite{Config: c, Programs: 4, Seed: 100, Errors: 20, Open: func(t testing.TB) link.Link {
		l, err := link.OpenLibrary(b.Library, link.Options{Memory: 1 << 20, Seed: 2})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}}.Run(t)
}
