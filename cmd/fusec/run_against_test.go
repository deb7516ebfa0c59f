package main

import (
	"math"
	"strings"
	"testing"
)

// TestRunAgainst compares a run that is right, one in integers of 8 bits, and one of the reference itself.
func TestRunAgainst(t *testing.T) {
	path := model(t, nil)
	rep := runJSON(t, path, "--against", "ref")
	if a := rep.Against; a == nil || len(a.Launches) != rep.Launches || len(a.Outputs) != len(rep.Outputs) || a.err() != nil {
		t.Errorf("a run on the CPU against the reference: %+v", rep.Against)
	}
	if text := good(t, "run", path, "--against", "ref"); !strings.Contains(text, "all within the bound; ") {
		t.Errorf("the report does not say that all is well:\n%s", text)
	}
	if a := runJSON(t, path, "--target", "ref", "--against", "ref").Against; a.Launches[0].Worst > 0.01 {
		t.Errorf("the reference departs from itself by more than the rounding of f32: %+v", a.Launches[0])
	}
	path = write(t, "wide.graph", wide)
	r := fusecRun(t, "run", path, "--random-weights", "--target", "fpga", "--link", "model", "--against", "ref")
	bad(t, r, exitFailure, "2 launches and 1 output depart from the reference by more than the bound")
	if !strings.Contains(r.out, "out of bounds:") || !strings.Contains(r.out, "of 4096") {
		t.Errorf("the report does not list what departs:\n%s", r.out)
	}
	bad(t, fusecRun(t, "run", path, "--against", "cpu"), exitUsage, "want one of ref")
}

// TestAgainstText prints what is off by any amount, and not more lines than are read.
func TestAgainstText(t *testing.T) {
	r := &runAgainst{}
	for i := range 25 {
		r.Launches = append(r.Launches, departure{Index: i + 1, Kind: "linear", Elements: 4, Off: 1, Worst: number(math.Inf(1)), At: []int{1}})
	}
	text := r.text()
	if !strings.Contains(text, "∞") || !strings.Contains(text, "and 5 more; --json lists all") {
		t.Errorf("report:\n%s", text)
	}
}
