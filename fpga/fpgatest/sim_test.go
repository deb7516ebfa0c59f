package fpgatest

import (
	"context"
	"testing"
	"time"

	"fusec/fpga/isa"
	"fusec/fpga/link"
	"fusec/fpga/sim"
	"fusec/fpga/testtools"
)

// built is what a builder built.
func built[T any](t testing.TB, build func(context.Context, isa.Config, sim.Options) (T, error), c isa.Config) T {
	t.Helper()
	testtools.Need(t, "verilator", "g++", "make")
	b, err := build(context.Background(), c, sim.Options{Check: true, Log: func(line string) { t.Log(line) }})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestSimulator runs the suite over the simulator in its process, for every small overlay.
func TestSimulator(t *testing.T) {
	for _, c := range configs {
		t.Run(c.Name, func(t *testing.T) {
			if c.Name != configs[0].Name && !c.SerialMul {
				testtools.Long(t)
			}
			b := built(t, sim.Build, c)
			Suite{Config: c, Programs: 12, Open: func(t testing.TB) link.Link {
				p, err := link.StartProcess(b.Program, link.Options{Memory: int64(min(1<<c.AddrBits, 1<<20)), Seed: 1})
				if err != nil {
					t.Fatal(err)
				}
				return p
			}}.Run(t)
		})
	}
}

// TestBoard runs it over a board's top whose serial line is played bit by bit on a pseudo-terminal.
func TestBoard(t *testing.T) {
	c, err := isa.Overlay("hx8k")
	if err != nil {
		t.Fatal(err)
	}
	program := built(t, sim.BuildBoard, c)
	Suite{Config: c, Programs: 1, Errors: 4, Watchdog: 1 << 16, Options: Options{Commands: 12, MaxWork: 1 << 11},
		Open: func(t testing.TB) link.Link {
			s, err := link.Open(t.Context(), "serial:"+testtools.Board(t, program), link.Options{Timeout: 20 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}}.Run(t)
}
