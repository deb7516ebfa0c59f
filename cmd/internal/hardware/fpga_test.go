package hardware

import (
	"encoding/json"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/graph/graphtest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const digitsModel = "../../../testdata/models/digits-mlp.graph"

// TestPlan plans hardware for a model, and draws it.
func TestPlan(t *testing.T) {
	var rep planReport
	plot := filepath.Join(t.TempDir(), "plan.svg")
	if err := json.Unmarshal([]byte(clitest.Good(t, "fpga", "plan", digitsModel, "--arrays", "4,8,4x16", "--memories", "2,8",
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

// TestPlanFromOverlay plans for a named overlay, and for others that begin from it.
func TestPlanFromOverlay(t *testing.T) {
	plan := func(args ...string) (rep planReport) {
		t.Helper()
		if err := json.Unmarshal([]byte(clitest.Good(t, append([]string{"fpga", "plan", digitsModel, "--json"}, args...)...)),
			&rep); err != nil {
			t.Fatal(err)
		}
		return rep
	}
	rep := plan("--overlay", "ecp5")
	if len(rep.Rows) != 1 || rep.Rows[0].Array != "8×8" || rep.Rows[0].MemoryBytes != 8 || rep.Rows[0].Multipliers != 104 ||
		rep.LaneBytes != 4096 {
		t.Errorf("the plan of ecp5 is %+v", rep)
	}
	rep = plan("--overlay", "ecp5", "--arrays", "4,16", "--lane", "8192")
	if len(rep.Rows) != 2 || rep.Rows[0].MemoryBytes != 8 || rep.Rows[1].Array != "16×16" || rep.LaneBytes != 8192 {
		t.Errorf("the plan of arrays beside ecp5's is %+v", rep)
	}
	if rep = plan("--overlay", "hx8k"); len(rep.Rows) != 1 || !strings.Contains(rep.Rows[0].Refused, "addresses of 16 bits") {
		t.Errorf("the plan of hx8k is %+v", rep)
	}
}

// TestFPGAErrors are wrong words for fusec fpga.
func TestFPGAErrors(t *testing.T) {
	empty := t.TempDir()
	if err := os.Mkdir(filepath.Join(empty, "hx8k"), 0o777); err != nil {
		t.Fatal(err)
	}
	graphtest.WriteFile(t, filepath.Join(empty, "hx8k", "report.json"), []byte("{}"))
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{nil, cli.ExitUsage, "build, report or plan"},
		{[]string{"biuld"}, cli.ExitUsage, `cannot "biuld"`},
		{[]string{"build", "--board", "nosuch"}, cli.ExitUsage, `no board is called "nosuch"`},
		{[]string{"build", "--board", "hx8k", "--seed", "-3"}, cli.ExitUsage, `--seed -3: a seed is 0 or more`},
		{[]string{"build", "--overlay", "nosuch"}, cli.ExitUsage, `no overlay is called "nosuch"`},
		{[]string{"build", "more"}, cli.ExitUsage, `unexpected argument "more"`},
		{[]string{"report", "--dir", t.TempDir()}, cli.ExitFailure, "no build lies below"},
		{[]string{"plan"}, cli.ExitUsage, "which model?"},
		{[]string{"plan", digitsModel, "--arrays", "0"}, cli.ExitUsage, `"0" is no size`},
		{[]string{"plan", digitsModel, "--arrays", "3"}, cli.ExitUsage, "want a power of two"},
		{[]string{"plan", digitsModel, "--memories", "x"}, cli.ExitUsage, `--memories x: "x" is no positive whole number`},
		{[]string{"plan", digitsModel, "--memories", "4,3"}, cli.ExitUsage, "--memories 4,3: 3 bytes a cycle: want 2, 4, 8 or 16"},
		{[]string{"plan", digitsModel, "--memories", "32"}, cli.ExitUsage, "--memories 32: 32 bytes a cycle: want 2, 4, 8 or 16"},
		{[]string{"plan", digitsModel, "--overlay", "nosuch"}, cli.ExitUsage, `no overlay is called "nosuch"`},
		{[]string{"report", "--dir", empty}, cli.ExitFailure, filepath.Join(empty, "hx8k", "report.json") + " is no report of a build"},
		{[]string{"plan", digitsModel, "--clocks", "1.5"}, cli.ExitUsage, `"1.5" is no positive whole number`},
		{[]string{"plan", digitsModel, "--latency", "-1"}, cli.ExitUsage, "--latency -1"},
		{[]string{"plan", digitsModel, "--lane", "1000"}, cli.ExitUsage, "--lane 1000: want bytes, a power of two"},
		{[]string{"plan", digitsModel, "--in", "x=x.npy"}, cli.ExitFailure, `the model has no input "x"`},
		{[]string{"plan", digitsModel, "--plot", "plan.txt"}, cli.ExitUsage, "ends in .svg or .png"},
	} {
		clitest.Bad(t, clitest.FusecRun(t, append([]string{"fpga"}, c.args...)...), c.code, c.want)
	}
}
