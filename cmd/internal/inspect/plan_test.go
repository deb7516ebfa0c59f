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

const layersText = `fusec graph 2 "layers" {
  x = input : f32[64,256]
  y = input : f32[64,256]
  w1 = param : f32[256,1024]
  w2 = param : f32[1024,256]
  h = matmul x w1 : f32[64,1024]
  a = unary[fn=relu] h : f32[64,1024]
  z = matmul a w2 : f32[64,256]
  d = binary[fn=sub] z y : f32[64,256]
  s = unary[fn=square] d : f32[64,256]
  cost = reduce[fn=sum axes=[0,1]] s : f32[]
  output cost = cost
  optimiser adamw[rate=0.001]
  step w1 = cost
  step w2 = cost
}
`

func planOf(t *testing.T, args ...string) PlanReport {
	t.Helper()
	path := filepath.Join(t.TempDir(), "layers.graph")
	graphtest.WriteFile(t, path, []byte(layersText))
	var rep PlanReport
	if err := json.Unmarshal([]byte(clitest.Good(t, append([]string{"plan", path, "--json"}, args...)...)), &rep); err != nil {
		t.Fatal(err)
	}
	text := clitest.Good(t, append([]string{"plan", path}, args...)...)
	for _, w := range rep.Ways {
		if !strings.Contains(text, w.Name) {
			t.Errorf("no way %q in\n%s", w.Name, text)
		}
	}
	return rep
}

// TestPlan compares the bytes of known ways of splitting with what they are by definition.
func TestPlan(t *testing.T) {
	const weights = 2 * 256 * 1024 * 4
	for _, c := range []struct {
		args []string
		sent int64 // bytes, but for scalars

	}{
		{[]string{"--mesh", "data=2"}, weights},                        // all-reduce of gradients
		{[]string{"--mesh", "data=4", "--zero", "1"}, weights * 3 / 2}, // scattered, and weights gathered
		{[]string{"--mesh", "tensor=2", "--split", "w1=_,tensor", "--split", "x=_,_"}, 64 * 256 * 4},
	} {
		rep := planOf(t, c.args...)
		w := rep.Ways[0]
		// Of a small batch rows are gathered instead of gradients summed, which is less.
		if w.Sent > c.sent+1024 || w.Sent < c.sent/2 {
			t.Errorf("%v: %d bytes are sent, want up to %d\n%v", c.args, w.Sent, c.sent, rep.Exchanges)
		}
		if w.Exposed > w.Exchange || w.Ordered < w.Overlapped || w.Compute <= 0 || w.Memory <= 0 {
			t.Errorf("%v: %+v", c.args, w)
		}
	}
	whole, split := planOf(t, "--mesh", "data=4").Ways[0], planOf(t, "--mesh", "data=4", "--zero", "1").Ways[0]
	// The arena holds gathered weights, and for some launches gradients that are exchanged beside them.
	if saved := whole.Memory - split.Memory; saved < weights*3/8 {
		t.Errorf("splitting the moments saves %d bytes of %d", saved, 2*weights)
	}
}

// TestPlanAuto chooses what is fastest, and what fits.
func TestPlanAuto(t *testing.T) {
	rep := planOf(t, "--mesh", "data=2,tensor=2", "--parallel", "auto")
	if len(rep.Ways) < 4 || rep.Chosen < 0 {
		t.Fatalf("%+v", rep)
	}
	for _, w := range rep.Ways {
		if w.Overlapped < rep.Ways[rep.Chosen].Overlapped {
			t.Errorf("%q is faster than what was chosen", w.Name)
		}
	}
	if !strings.Contains(strings.Join(rep.Ways[1].Splits, " "), "tensor") {
		t.Errorf("no weight is split: %+v", rep.Ways[1])
	}
	rep.Ways[1].ZeRO = 1
	rep.Chosen = 1
	if text, want := rep.text(0), rep.Ways[1].Name+", the fastest: --split "; !strings.Contains(text, want) ||
		!strings.Contains(text, " --zero 1\n") {
		t.Errorf("lacks %q:\n%s", want, text)
	}
	if rep := planOf(t, "--mesh", "data=2", "--memory", "1KiB"); rep.Chosen != -1 {
		t.Errorf("%+v fits into 1 KiB", rep.Ways[rep.Chosen])
	}
}

// TestExplainMesh tells what a participant sends.
func TestExplainMesh(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mesh.graph")
	const x = "x = input : f32[64,256]"
	text := strings.NewReplacer("graph 2", "graph 3", x, "mesh data=2\n  "+x+" split [data,_]").Replace(layersText)
	graphtest.WriteFile(t, path, []byte(text))
	got := clitest.Good(t, "explain", path)
	if !strings.Contains(got, "one of the participants on the mesh data=2: ") ||
		!strings.Contains(got, "exchanges, in which it sends 2.00 MiB") {
		t.Error(got)
	}
	if got := clitest.Good(t, "dump", path, "--stage", "shard", "--format", "text"); !strings.Contains(got, "all_reduce") {
		t.Error(got)
	}
}

func TestPlanRefused(t *testing.T) {
	for words, args := range map[string][]string{
		"has no mesh":                      {"plan", clitest.Bare},
		"want axes with their sizes":       {"plan", clitest.Bare, "--mesh", "data"},
		"want a name and the axes":         {"plan", clitest.Bare, "--mesh", "data=2", "--split", "w"},
		"want auto":                        {"plan", clitest.Bare, "--mesh", "data=2", "--parallel", "some"},
		"want a positive number":           {"plan", clitest.Bare, "--mesh", "data=2", "--gflops", "0"},
		"want h100 or h200":                {"plan", clitest.Bare, "--mesh", "data=2", "--device", "abacus"},
		"want a positive time":             {"plan", clitest.Bare, "--mesh", "data=2", "--alone", "-1s"},
		"such as 103ms":                    {"plan", clitest.Bare, "--mesh", "data=2", "--alone", "0s"},
		"--alone is not for a pipeline":    {"plan", clitest.Bare, "--mesh", "stage=2", "--pipeline", "2", "--alone", "1s"},
		"want a stage from 1 to 3":         {"plan", clitest.Bare, "--mesh", "data=2", "--zero", "-1"},
		"has no input, parameter or state": {"plan", clitest.Bare, "--mesh", "data=2", "--split", "none=data"},
	} {
		r := clitest.FusecRun(t, args...)
		if r.Code == cli.ExitOK || !strings.Contains(r.Stderr, words) {
			t.Errorf("%v: exit code %d: %s", args, r.Code, r.Stderr)
		}
	}
}

// TestPlanDevice plans with the rates of a device, and with those at which one takes as long as it was measured to.
func TestPlanDevice(t *testing.T) {
	cpu, gpu := planOf(t, "--mesh", "data=2").Ways[0], planOf(t, "--mesh", "data=2", "--device", "h200").Ways[0]
	slow := planOf(t, "--mesh", "data=2", "--gflops", "1", "--device", "h200").Ways[0]
	if !(gpu.Compute < cpu.Compute && cpu.Compute < slow.Compute) {
		t.Errorf("it computes for %v on an H200, %v on a processor, %v at 1 GFLOP/s", gpu.Compute, cpu.Compute, slow.Compute)
	}
	alone := planOf(t, "--mesh", "data=2", "--alone", "10s").Ways[0]
	if alone.Compute < 4 || alone.Compute > 10 { // each has half of the samples, and the whole optimiser's step
		t.Errorf("of 10 s alone, each of two computes %v s", alone.Compute)
	}
}

func TestPlanPipeline(t *testing.T) {
	two, eight := planOf(t, "--mesh", "stage=2", "--pipeline", "2:h"), planOf(t, "--mesh", "stage=2", "--pipeline", "8")
	a, b := two.Ways[0], eight.Ways[0]
	if share, less := a.Exposed/a.Ordered, b.Exposed/b.Ordered; !(less < share) {
		t.Errorf("%v of a step is waited for with 2 microbatches, and %v with 8", share, less)
	}
	if len(two.Exchanges) != 3 || !strings.Contains(two.Exchanges[0], "waits for 33 % of a step") {
		t.Errorf("exchanges %q", two.Exchanges)
	}
	path := filepath.Join(t.TempDir(), "layers.graph")
	graphtest.WriteFile(t, path, []byte(layersText))
	clitest.Good(t, "explain", path, "--target", "cpu,cpu", "--pipeline", "4:h")
	// Errors name flags, where package fusec names options.
	r := clitest.FusecRun(t, "explain", path, "--pipeline", "2")
	clitest.Bad(t, r, cli.ExitFailure, "--pipeline: a pipeline has at least 2 stages: give --target (such as cpu,cpu)")
	if strings.Contains(r.Stderr, "With") {
		t.Error(r.Stderr)
	}
	for _, args := range [][]string{{"--pipeline", "1"}, {"--pipeline", "4:"}, {"--pipeline", "4", "--parallel", "auto"}} {
		r := clitest.FusecRun(t, append([]string{"plan", path, "--mesh", "stage=2"}, args...)...)
		if r.Code == cli.ExitOK || !strings.Contains(r.Stderr, "pipeline") {
			t.Errorf("%q: exit code %d: %s", args, r.Code, r.Stderr)
		}
	}
}
