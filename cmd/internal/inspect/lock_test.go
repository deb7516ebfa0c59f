package inspect

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/graph/graphtest"
)

// lockedModel is a copy of the test model with a lock file for three targets, and the text of both.
func lockedModel(t *testing.T) (path, lock, model string) {
	t.Helper()
	b := graphtest.ReadFile(t, clitest.Bare)
	path = graphtest.File(t, "mlp.graph", b)
	lock = strings.TrimSuffix(path, ".graph") + ".fuselock"
	text := clitest.Good(t, "lock", path, "--target", "cpu,cuda,fpga")
	for _, want := range []string{"mlp for cpu: 2 fusions in 4 launches", "mlp for cuda/sm_90a: ", "mlp for fpga/sim8 in int8: ",
		"written to "} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	return path, lock, string(b)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	graphtest.WriteFile(t, path, []byte(text))
}

func read(t *testing.T, path string) string {
	t.Helper()
	b := graphtest.ReadFile(t, path)
	return string(b)
}

func TestLock(t *testing.T) {
	path, lock, model := lockedModel(t)
	clitest.Golden(t, "mlp.fuselock", read(t, lock))
	if text := clitest.Good(t, "check", path); strings.Count(text, ": as locked\n") != 3 {
		t.Error(text)
	}
	// An edit that keeps all fusions, on other lines.
	write(t, path, "# a comment\n"+model)
	clitest.Good(t, "check", path)

	// An edit that loses one: another operation reads what the activation is computed from.
	write(t, path,
		strings.Replace(strings.Replace(model, "act    = unary[fn=gelu_tanh] sum",
			"apart  = softmax[axis=1] sum\n  act    = unary[fn=gelu_tanh] apart", 1), "hidden bias @", "hidden bias @", 1))
	r := clitest.FusecRun(t, "check", path)
	clitest.Bad(t, r, cli.ExitFailure, "mlp is behind "+lock+" for 3 targets", "fusec lock writes it down")
	for _, want := range []string{"mlp for cpu: not as locked\n", `  lost: fusion linear "act": "act" "hidden" "sum" of "b1" "w1" "x"`,
		`    is launch 1: linear "sum": "hidden" "sum"`, "    because ", "  worse: 5 launches, locked are 4\n"} {
		if !strings.Contains(r.Out, want) {
			t.Errorf("%q is not in\n%s", want, r.Out)
		}
	}
	var rep CheckReport
	r = clitest.FusecRun(t, "check", path, "--json", "--target", "cpu")
	if err := json.Unmarshal([]byte(r.Out), &rep); err != nil || r.Code != cli.ExitFailure {
		t.Fatalf("%v, exit code %d", err, r.Code)
	}
	if s := rep.Sections; rep.Schema != "fusec.check/1" || len(s) != 1 || s[0].OK || len(s[0].Lost) != 1 ||
		len(s[0].Lost[0].Reasons) == 0 || len(s[0].Worse) == 0 {
		t.Errorf("%+v", rep)
	}

	// fusec lock without flags brings all sections up to date; then the model as it was is better.
	clitest.Good(t, "lock", path)
	clitest.Good(t, "check", path)
	write(t, path, model)
	text := clitest.Good(t, "check", path)
	for _, want := range []string{"mlp for cpu: better than locked\n", "  better: 4 launches, locked are 5\n",
		"  changed: the model has no \"apart\" any more", "fusec lock brings " + lock + " up to date\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

// A section is added to a file that has others, and a file that cannot be read is left as it is.
func TestLockSections(t *testing.T) {
	path, lock, _ := lockedModel(t)
	clitest.Good(t, "lock", path, "--target", "cuda", "--precision", "bf16,f16", "--arch", "sm_80")
	text := read(t, lock)
	for _, want := range []string{"target cpu f32\n", "target cuda/sm_80 bf16\n", "target cuda/sm_80 f16\n",
		"target cuda/sm_90a f32\n", "target fpga/sim8 int8\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if out := clitest.Good(t, "check", path); strings.Count(out, ": as locked\n") != 5 {
		t.Error(out)
	}
	for _, c := range []struct{ old, new, want string }{
		{"fuselock 1", "fuselock 2", lock + ":1: the lock file is of version 2; this version of fusec reads version 1"},
		{"launches 4", "launches four", lock + ":4: launches: want a whole number"},
		{"target cpu f32", "target abacus f32", lock + `: the section of target abacus in f32: target "abacus" is not known`},
		{"fpga/sim8", "fpga/sim0", "sim0"},
		{"cpu f32", "cpu f33", `"f33"`},
	} {
		damaged := strings.Replace(text, c.old, c.new, 1)
		write(t, lock, damaged)
		clitest.Bad(t, clitest.FusecRun(t, "check", path), cli.ExitFailure, c.want)
		clitest.Bad(t, clitest.FusecRun(t, "lock", path), cli.ExitFailure, c.want)
		if read(t, lock) != damaged {
			t.Errorf("fusec lock wrote the file that has %q", c.new)
		}
	}
	other := filepath.Join(t.TempDir(), "other.fuselock")
	clitest.Bad(t, clitest.FusecRun(t, "check", path, "--file", other), cli.ExitFailure, other, "fusec lock writes it")
	clitest.Good(t, "lock", path, "--file", other)
	if text := read(t, other); !strings.Contains(text, "target cpu f32\n") || strings.Contains(text, "cuda") {
		t.Errorf("without flags a new file holds\n%s", text)
	}
	clitest.Bad(t, clitest.FusecRun(t, "check", path, "--file", other, "--target", "cuda"), cli.ExitFailure,
		"has nothing for cuda/sm_90a in f32")
	clitest.Bad(t, clitest.FusecRun(t, "check", "-"), cli.ExitUsage, "--file names it")
	clitest.Bad(t, clitest.FusecRun(t, "lock", path, "--file", "other.txt"), cli.ExitUsage, "named like model.fuselock")
	clitest.Bad(t, clitest.FusecRun(t, "check", path, "--arch", "sm_80"), cli.ExitUsage, "--arch sm_80 is for --target cuda")
	clitest.Bad(t, clitest.FusecRun(t, "lock", path, "--target", "cpu", "--overlay", "sim8"), cli.ExitUsage,
		"--overlay sim8 is for --target fpga")
	clitest.Bad(t, clitest.FusecRun(t, "lock", path, "--target", "cpu,gpu"), cli.ExitUsage, "gpu")
	clitest.Bad(t, clitest.FusecRun(t, "lock", path, "--precision", "tf32"), cli.ExitFailure, "precision tf32")
}

// The models of the repository keep their fusions.
func TestModelsKeepFusions(t *testing.T) {
	models, err := filepath.Glob("../../../testdata/models/*.graph")
	if err != nil || len(models) < 5 {
		t.Fatalf("%d models, %v", len(models), err)
	}
	for _, m := range models {
		t.Run(strings.TrimSuffix(filepath.Base(m), ".graph"), func(t *testing.T) {
			if r := clitest.FusecRun(t, "check", m); r.Code != cli.ExitOK {
				t.Errorf("exit code %d: %s\n%s", r.Code, r.Stderr, r.Out)
			}
		})
	}
}
