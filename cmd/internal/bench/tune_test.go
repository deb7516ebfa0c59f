package bench

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/graph/graphtest"
	"fusec/lowering/local"
)

// TestTune measures the products of a model, keeps what was found, and compiles by it.
func TestTune(t *testing.T) {
	clitest.Emulated(t)
	t.Setenv(local.Variable, t.TempDir())
	path := graphtest.File(t, "m.graph", `fusec graph 1 {
  x = input : f32[64,600]
  w = param : f32[600,64]
  y = matmul x w : f32[64,64]
  output y = y
}`)
	var rep tuneReport
	out := clitest.Good(t, "tune", path, "--target", "cuda", "--random-weights", "--json")
	if err := json.Unmarshal([]byte(out), &rep); err != nil {
		t.Fatal(err)
	}
	if rep.Schema != "fusec.tune/1" || len(rep.Products) != 1 {
		t.Fatalf("%+v", rep)
	}
	r := rep.Products[0]
	if r.Product != "Split<>:1x64x64x600" || r.Ways < 5 || r.BestNS <= 0 || r.RulesNS <= 0 {
		t.Errorf("%+v", r)
	}
	text, err := os.ReadFile(rep.File)
	if err != nil || !strings.HasPrefix(string(text), "fusec tuning 1 "+rep.Chip) ||
		!strings.Contains(string(text), r.Way) {
		t.Errorf("%v: %s", err, text)
	}
	clitest.Good(t, "run", path, "--target", "cuda", "--random-weights")
	if err := os.WriteFile(rep.File, []byte("noise"), 0o666); err != nil {
		t.Fatal(err)
	}
	ran := clitest.FusecRun(t, "run", path, "--target", "cuda", "--random-weights")
	clitest.Bad(t, ran, cli.ExitFailure, "remove it, or run fusec tune again")
}

// TestTuneNothing: a model without what could be tuned is told, and nothing is written.
func TestTuneNothing(t *testing.T) {
	clitest.Emulated(t)
	dir := t.TempDir()
	t.Setenv(local.Variable, dir)
	path := graphtest.File(t, "m.graph", "fusec graph 1 {\n  x = input : f32[3]\n  y = unary[fn=exp] x\n  output y = y\n}")
	clitest.Bad(t, clitest.FusecRun(t, "tune", path, "--target", "cpu"), cli.ExitFailure, "m has no convolutions")
	clitest.Bad(t, clitest.FusecRun(t, "tune", path, "--target", "cuda"), cli.ExitFailure, "m has no products")
	if names := clitest.FileNames(t, dir); len(names) > 0 {
		t.Errorf("written: %v", names)
	}
}

// TestTuneConvolutions measures the convolutions of a model on the CPU, and compiles by what was kept. Without Winograd's algorithm
// what is kept of that stays, and nothing uses it.
func TestTuneConvolutions(t *testing.T) {
	t.Setenv(local.Variable, t.TempDir())
	path := graphtest.File(t, "m.graph", `fusec graph 1 {
  x = input : f32[1,32,12,12]
  w = param : f32[32,32,3,3]
  v = param : f32[32,1,3,3]
  c = conv2d[stride=[1,1] dilation=[1,1] pad=[1,1,1,1] groups=1] x w : f32[1,32,12,12]
  y = conv2d[stride=[1,1] dilation=[1,1] pad=[1,1,1,1] groups=32] c v : f32[1,32,12,12]
  output y = y
}`)
	const dense = "f32:1x32x12x12:32x3x3:s1x1:d1x1:p1x1x1x1:g1"
	tune := func(ways int, flags ...string) (rep tuneReport, text string) {
		t.Helper()
		out := clitest.Good(t, append([]string{"tune", path, "--target", "cpu", "--threads", "2", "--json"}, flags...)...)
		if err := json.Unmarshal([]byte(out), &rep); err != nil {
			t.Fatal(err)
		}
		if rep.Schema != "fusec.tune/1" || len(rep.Products) != 2 {
			t.Fatalf("%+v", rep)
		}
		for _, r := range rep.Products {
			if r.BestNS <= 0 || r.RulesNS <= 0 || r.Product == dense && r.Ways != ways || r.Product != dense && r.Ways != 2 {
				t.Errorf("%+v", r)
			}
		}
		read, err := os.ReadFile(rep.File)
		if err != nil {
			t.Fatal(err)
		}
		return rep, string(read)
	}
	rep, text := tune(14)
	for _, way := range []string{" direct", " winograd:", " im2col ", " depthwise "} {
		if strings.Count(text, way) < 1 {
			t.Errorf("no way%s is kept:\n%s", way, text)
		}
	}
	if _, again := tune(6, "--no-winograd"); strings.Count(again, " winograd:") != 1 {
		t.Errorf("the time by Winograd's algorithm is lost:\n%s", again)
	}
	if s := clitest.Good(t, "bench", path, "--random-weights", "--levels", "--no-gorgonia", "--threads", "2", "--rounds", "3",
		"--seconds", "0.01"); !strings.Contains(s, "tuned  ") {
		t.Error(s)
	}
	clitest.Bad(t, clitest.FusecRun(t, "tune", "../../../testdata/models/digits-mlp.graph", "--target", "cpu,cpu", "--pipeline", "2"),
		cli.ExitFailure, "for a program on one device, not for the stages of a pipeline")
	clitest.Good(t, "run", path, "--threads", "2", "--random-weights", "--against", "ref")
	if err := os.WriteFile(rep.File, []byte("fusec tuning 1 "+rep.Chip+"\n"+dense+" direct\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	ran := clitest.FusecRun(t, "run", path, "--threads", "2", "--random-weights")
	clitest.Bad(t, ran, cli.ExitFailure, "remove it, or run fusec tune again")
}
