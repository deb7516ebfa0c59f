package main

import (
	"encoding/json"
	"fusec/cmd/internal/clitest"
	"fusec/cmd/internal/inspect"
	"fusec/graph/graphtest"
	"strings"
	"testing"
)

// TestPrecision plans for a target that has more than f32. Every report names the precision.
func TestPrecision(t *testing.T) {
	path := graphtest.File(t, "wide.graph", clitest.Wide)
	text := clitest.Good(t, "explain", path, "--target", "cuda", "--precision", "bf16")
	for _, want := range []string{"wide for cuda/sm_90a in bf16: ", "stays in f32: it is handed out"} {
		if !strings.Contains(text, want) {
			t.Errorf("explain does not say %q:\n%s", want, text)
		}
	}
	var rep inspect.ExplainReport
	if err := json.Unmarshal([]byte(clitest.Good(t, "explain", "--json", path, "--target", "cuda", "--precision", "tf32")),
		&rep); err != nil {
		t.Fatal(err)
	}
	if rep.Precision != "tf32" || len(rep.Notes) == 0 || !strings.Contains(rep.Notes[0].Text, "round their operands to tf32") {
		t.Errorf("precision %q, notes %v", rep.Precision, rep.Notes)
	}
	text = clitest.Good(t, "dump", path, "--target", "cuda", "--precision", "f16", "--format", "text")
	if !strings.Contains(text, "for cuda/sm_90a in f16") || !strings.Contains(text, "f16[64,64]") {
		t.Errorf("dump:\n%s", text)
	}
	text = clitest.Good(t, "explain", path, "--precision", "bf16")
	if !strings.Contains(text, "wide for cpu in bf16: ") {
		t.Errorf("explain does not name the precision:\n%s", text)
	}
	clitest.Bad(t, clitest.FusecRun(t, "explain", path, "--precision", "tf32"), 1,
		`target "cpu" computes in f32: precision tf32 requires another target`)
	clitest.Bad(t, clitest.FusecRun(t, "explain", path, "--precision", "f8"), 2,
		`unknown precision "f8"; choose f32, tf32, bf16 or f16`)
	clitest.Bad(t, clitest.FusecRun(t, "train", "karate", "--precision", "tf32"), 1,
		`target "cpu" computes in f32: precision tf32 requires another target`)
}
