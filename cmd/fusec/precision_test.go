package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// wide is a linear layer of which all matrices are large.
const wide = `fusec graph 1 "wide" {
  x = input : f32[64,64]
  w = param : f32[64,64]
  a = matmul x w
  h = unary[fn=relu] a
  v = param : f32[64,64]
  y = matmul h v
  output y = y
}
`

// TestPrecision plans for a target that has more than f32. Every report names the precision.
func TestPrecision(t *testing.T) {
	path := write(t, "wide.graph", wide)
	text := good(t, "explain", path, "--target", "cuda", "--precision", "bf16")
	for _, want := range []string{"wide for cuda in bf16: ", "stays in f32: it is handed out"} {
		if !strings.Contains(text, want) {
			t.Errorf("explain does not say %q:\n%s", want, text)
		}
	}
	var rep explainReport
	if err := json.Unmarshal([]byte(good(t, "explain", "--json", path, "--target", "cuda", "--precision", "tf32")), &rep); err != nil {
		t.Fatal(err)
	}
	if rep.Precision != "tf32" || len(rep.Notes) == 0 || !strings.Contains(rep.Notes[0].Text, "round their operands to tf32") {
		t.Errorf("precision %q, notes %v", rep.Precision, rep.Notes)
	}
	text = good(t, "dump", path, "--target", "cuda", "--precision", "f16", "--format", "text")
	if !strings.Contains(text, "for cuda in f16") || !strings.Contains(text, "f16[64,64]") {
		t.Errorf("dump:\n%s", text)
	}
	bad(t, fusecRun(t, "explain", path, "--precision", "bf16"), 1, `target "cpu" computes in f32; precision bf16 requires target cuda`)
	bad(t, fusecRun(t, "explain", path, "--precision", "f8"), 2, "want f32, tf32, bf16 or f16")
	bad(t, fusecRun(t, "train", "karate", "--precision", "f16"), 1, `target "cpu" computes in f32; precision f16 requires target cuda`)
}
