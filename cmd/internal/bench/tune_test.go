package bench

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/graph/graphtest"
	"fusec/lowering/cuda/driver/cache"
)

// TestTune measures the products of a model, keeps what was found, and compiles by it.
func TestTune(t *testing.T) {
	clitest.Emulated(t)
	t.Setenv(cache.Variable, t.TempDir())
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
