package plan

import (
	"math"
	"testing"

	"fusec/fpga/isa"
)

// TestResources holds the estimate against what yosys counted.
func TestResources(t *testing.T) {
	ecp5, err := isa.Overlay("ecp5")
	if err != nil {
		t.Fatal(err)
	}
	small := ecp5
	small.Rows, small.Cols, small.WordBytes, small.XWords, small.WWords, small.YWords = 4, 4, 4, 1024, 1024, 1024
	for _, c := range []struct {
		config             isa.Config
		multipliers, cells int
	}{{ecp5, 104, 40021}, {small, 36, 20748}} {
		r := ResourcesOf(c.config)
		if r.Multipliers != c.multipliers {
			t.Errorf("%d×%d: %d multipliers, counted %d", c.config.Rows, c.config.Cols, r.Multipliers, c.multipliers)
		}
		if math.Abs(float64(r.Cells)/float64(c.cells)-1) > 0.03 {
			t.Errorf("%d×%d: %d cells, counted %d", c.config.Rows, c.config.Cols, r.Cells, c.cells)
		}
	}
}

// TestUnfinished checks that a program that cannot end is detected.
func TestUnfinished(t *testing.T) {
	c, err := isa.Overlay(isa.Overlays()[0])
	if err != nil {
		t.Fatal(err)
	}
	mem := Memory{Bytes: 8, Latency: 40}
	load := &isa.Load{Space: isa.SpaceX, Rows: 1, Words: 1}
	load.Wait = 1
	if _, err := Predict(c, mem, []isa.Command{load, &isa.End{}}, nil); err == nil {
		t.Error("a semaphore that nothing posts: no error")
	}
	if _, err := Predict(c, mem, []isa.Command{&isa.Load{Space: isa.SpaceX, Rows: 1, Words: 1}}, nil); err == nil {
		t.Error("no end: no error")
	}
	if _, err := Predict(c, Memory{}, []isa.Command{&isa.End{}}, nil); err == nil {
		t.Error("memory that delivers nothing: no error")
	}
}
