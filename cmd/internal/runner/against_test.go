package runner

import (
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/graph/graphtest"
	"math"
	"strings"
	"testing"
)

// TestRunAgainst compares a run that is right, one in integers of 8 bits, and one of the reference itself.
func TestRunAgainst(t *testing.T) {
	path := clitest.Model(t, nil)
	rep := runJSON(t, path, "--against", "ref")
	if a := rep.Against; a == nil || len(a.Launches) != rep.Launches || len(a.Outputs) != len(rep.Outputs) || a.err() != nil {
		t.Errorf("a run on the CPU against the reference: %+v", rep.Against)
	}
	if text := clitest.Good(t, "run", path, "--against", "ref"); !strings.Contains(text, "all within the bound; ") {
		t.Errorf("the report does not say that all is well:\n%s", text)
	}
	if a := runJSON(t, path, "--target", "ref", "--against", "ref").Against; a.Launches[0].Worst > 0.01 {
		t.Errorf("the reference departs from itself by more than the rounding of f32: %+v", a.Launches[0])
	}
	path = graphtest.File(t, "wide.graph", clitest.Wide)
	r := clitest.FusecRun(t, "run", path, "--random-weights", "--target", "fpga", "--link", "model", "--against", "ref")
	clitest.Bad(t, r, cli.ExitFailure, "2 launches and 1 output depart from the reference by more than the bound")
	if !strings.Contains(r.Out, "out of bounds:") || !strings.Contains(r.Out, "of 4096") {
		t.Errorf("the report does not list what departs:\n%s", r.Out)
	}
	clitest.Bad(t, clitest.FusecRun(t, "run", path, "--against", "cpu"), cli.ExitUsage, `unknown reference "cpu"; choose ref`)
}

// TestAgainstText prints what is off by any amount, and not more lines than are read.
func TestAgainstText(t *testing.T) {
	r := &runAgainst{}
	for i := range 25 {
		r.Launches = append(r.Launches, departure{Index: i + 1, Kind: "linear", Elements: 4, Off: 1, Worst: cli.Number(math.Inf(1)), At: []int{1}})
	}
	text := r.text()
	if !strings.Contains(text, "∞") || !strings.Contains(text, "and 5 more; --json lists all") {
		t.Errorf("report:\n%s", text)
	}
}
