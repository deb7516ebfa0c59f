package hardware

import (
	"encoding/json"
	"math"
	"testing"

	"fusec/cmd/internal/bench"
	"fusec/cmd/internal/clitest"
	"fusec/fpga/testtools"
)

// TestEstimates holds what plans predict of models against what simulation counts, and prints both.
func TestEstimates(t *testing.T) {
	testtools.Need(t, "verilator", "g++", "make")
	for _, c := range []struct {
		model, overlay string
		long           bool
	}{
		{"moe-top2", "sim8", false},
		{"moe-block", "sim8", false},
		{"lenet", "sim8", false},
		{"transformer-block", "sim8", true},
		{"moe-top2", "sim16", true},
		{"moe-block", "sim16", true},
		{"transformer-block", "sim16", true},
	} {
		t.Run(c.model+" on "+c.overlay, func(t *testing.T) {
			if c.long {
				testtools.Long(t)
			}
			path := "../../../testdata/models/" + c.model + ".graph"
			var counted bench.OverlayReport
			if err := json.Unmarshal([]byte(clitest.Good(t, "bench", "--target", "fpga", "--overlay", c.overlay, "--seconds", "0.01",
				"--rounds", "3", "--json", path)), &counted); err != nil {
				t.Fatal(err)
			}
			var plan planReport
			if err := json.Unmarshal([]byte(clitest.Good(t, "fpga", "plan", "--overlay", c.overlay, "--json", path)), &plan); err != nil {
				t.Fatal(err)
			}
			check := func(name string, predicted, simulated int64) {
				t.Helper()
				off := float64(predicted)/float64(simulated) - 1
				t.Logf("%-16s simulated %8d cycles, predicted %8d, %+.2f %%", name, simulated, predicted, 100*off)
				if math.Abs(off) > 0.05 {
					t.Errorf("%s: predicted %d cycles, simulated %d", name, predicted, simulated)
				}
			}
			for _, l := range counted.Launches {
				check(l.Kind, l.Estimate, l.Cycles)
			}
			check("fusec fpga plan", plan.Rows[0].Cycles, counted.Targets[0].Cycles)
		})
	}
}
