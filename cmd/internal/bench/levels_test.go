package bench

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/lowering/local"
)

// TestLevels measures a model at each level on each target, and draws them.
func TestLevels(t *testing.T) {
	for target, tuned := range map[string]string{"cpu": "nothing is kept", "fpga": "nothing to tune", "cuda": "nothing is kept"} {
		t.Run(target, func(t *testing.T) {
			args := []string{graphtest.File(t, "wide.graph", clitest.Wide), "--random-weights", "--levels", "--target", target}
			t.Setenv(local.Variable, t.TempDir())
			switch target {
			case "cuda":
				clitest.Emulated(t)
			case "fpga":
				args = append(args, "--link", "model")
			}
			var rep levelsReport
			if err := json.Unmarshal([]byte(bench(t, append(args, "--json")...)), &rep); err != nil {
				t.Fatal(err)
			}
			if rep.Schema != "fusec.levels/1" || rep.Model != "wide" || rep.Target != target || len(rep.Levels) != len(levels) {
				t.Fatalf("%+v", rep)
			}
			for i, r := range rep.Levels {
				if r.Name != levels[i].name || !(float64(r.Difference) <= coarse) || (r.MedianNS > 0) != (r.Faster > 0) {
					t.Errorf("%+v", r)
				}
				own := !levels[i].rival && !levels[i].tuned
				if own != (r.Launches > 0 && r.Traffic > 0 && r.Held > 0) || (own || levels[i].rival) != (r.MedianNS > 0) {
					t.Errorf("%+v", r)
				}
				if own && (target == "cuda") != (r.DeviceNS > 0) || r.Cycles > 0 && target != "fpga" {
					t.Errorf("%+v", r)
				}
			}
			op, fused, last := rep.Levels[1], rep.Levels[3], rep.Levels[4]
			if rep.Levels[0].Faster != 1 || op.Launches <= fused.Launches || op.Traffic <= fused.Traffic ||
				!strings.Contains(last.Note, tuned) {
				t.Errorf("%+v", rep.Levels)
			}
			file := filepath.Join(t.TempDir(), "levels.svg")
			out := bench(t, append(args, "--output", file)...)
			drawn, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range levels {
				if !strings.Contains(out, "\n"+l.name+" ") || !l.tuned && !strings.Contains(string(drawn), l.name) {
					t.Errorf("lacks %q:\n%s", l.name, out)
				}
			}
		})
	}
}

// Passes that levels leave out exist and can be left out together.
func TestLevelsLeaveOutPasses(t *testing.T) {
	for _, l := range levels {
		for _, name := range l.without {
			if !slices.Contains(fusec.Passes(), name) {
				t.Errorf("%s: there is no pass %q", l.name, name)
			}
		}
	}
}

func TestLevelsRefuse(t *testing.T) {
	path := clitest.Model(t, nil)
	for want, args := range map[string][]string{
		"--levels is for models":                        {"matmul", "--levels"},
		"--baseline and --trace are not for --levels":   {path, "--levels", "--baseline", "b.json"},
		"--output is for --levels":                      {path, "-o", "x.svg"},
		"--output x.dot: want a name that ends in .svg": {path, "--levels", "-o", "x.dot"},
	} {
		clitest.Bad(t, clitest.FusecRun(t, append([]string{"bench"}, args...)...), cli.ExitUsage, want)
	}
	missing := filepath.Join(t.TempDir(), "none", "x.svg")
	clitest.Bad(t, clitest.FusecRun(t, "bench", path, "--levels", "-o", missing), cli.ExitFailure, "writing "+missing)
	// What Gorgonia cannot run is said, and the rest is measured.
	path = graphtest.File(t, "m.graph",
		"fusec graph 1 {\n  x = input : f32[0,4]\n  w = input : f32[4,2]\n  y = matmul x w\n  output y = y\n}\n")
	if out := bench(t, path, "--levels"); !strings.Contains(out, "without elements") || !strings.Contains(out, "all fused") {
		t.Error(out)
	}
}

// Levels that compute something else are named.
func TestLevelsAgree(t *testing.T) {
	y := func(v float64) map[string]*graph.Tensor {
		return map[string]*graph.Tensor{"y": graph.Filled(graph.TypeOf(graph.F32, 2), v)}
	}
	rep := &levelsReport{}
	for _, l := range levels {
		rep.Levels = append(rep.Levels, levelResult{Name: l.name})
	}
	if err := rep.agree([]map[string]*graph.Tensor{y(2), y(1), y(1.0001), y(1), nil}, false); err != nil ||
		rep.Levels[0].Note != "computed something else" {
		t.Errorf("%v, %+v", err, rep.Levels[0])
	}
	for _, v := range []float64{1.1, math.NaN()} {
		err := rep.agree([]map[string]*graph.Tensor{nil, y(1), y(1), y(v), nil}, false)
		if err == nil || !strings.Contains(err.Error(), `levels "all fused" and "op by op" differ by`) ||
			strings.Contains(err.Error(), "elementwise") {
			t.Errorf("error %v", err)
		}
	}
}
