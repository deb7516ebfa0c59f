package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// TestPlan plans hardware for a model, and draws it.
func TestPlan(t *testing.T) {
	var rep planReport
	plot := filepath.Join(t.TempDir(), "plan.svg")
	if err := json.Unmarshal([]byte(good(t, "fpga", "plan", digitsModel, "--arrays", "4,8,4x16", "--memories", "2,8",
		"--clocks", "50,100", "--plot", plot, "--json")), &rep); err != nil {
		t.Fatal(err)
	}
	if len(rep.Rows) != 3*2*2 {
		t.Fatalf("%d rows for 3 arrays, 2 memories and 2 clocks", len(rep.Rows))
	}
	if _, err := os.Stat(plot); err != nil {
		t.Error(err)
	}
	for i, r := range rep.Rows {
		if r.Cycles <= 0 || r.Utilisation <= 0 || r.Utilisation > 1 || r.TimeNS != r.Cycles*1000/int64(r.ClockMHz) {
			t.Errorf("row %d is %+v", i, r)
		}
	}
}

// TestFPGAErrors are wrong words for fusec fpga.
func TestFPGAErrors(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{nil, exitUsage, "build, report or plan"},
		{[]string{"biuld"}, exitUsage, `cannot "biuld"`},
		{[]string{"build", "--board", "nosuch"}, exitUsage, `no board is called "nosuch"`},
		{[]string{"build", "--overlay", "nosuch"}, exitUsage, `no overlay is called "nosuch"`},
		{[]string{"build", "more"}, exitUsage, `unexpected argument "more"`},
		{[]string{"report", "--dir", t.TempDir()}, exitFailure, "no build lies below"},
		{[]string{"plan"}, exitUsage, "which model?"},
		{[]string{"plan", digitsModel, "--arrays", "0"}, exitUsage, `"0" is no size`},
		{[]string{"plan", digitsModel, "--arrays", "3"}, exitUsage, "want a power of two"},
		{[]string{"plan", digitsModel, "--memories", "x"}, exitUsage, `--memories x: "x" is no positive whole number`},
		{[]string{"plan", digitsModel, "--clocks", "1.5"}, exitUsage, `"1.5" is no positive whole number`},
		{[]string{"plan", digitsModel, "--latency", "-1"}, exitUsage, "--latency -1"},
		{[]string{"plan", digitsModel, "--lane", "1000"}, exitUsage, "--lane 1000: want bytes, a power of two"},
		{[]string{"plan", digitsModel, "--plot", "plan.txt"}, exitUsage, "ends in .svg or .png"},
	} {
		bad(t, fusecRun(t, append([]string{"fpga"}, c.args...)...), c.code, c.want)
	}
}
