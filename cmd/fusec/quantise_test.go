package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"fusec/cmd/internal/clitest"
	"fusec/cmd/internal/quantising"
	"fusec/graph"
	"fusec/graph/npy"
)

// TestQuantise stores the digits' model in few bits, and runs what it writes.
func TestQuantise(t *testing.T) {
	dir := t.TempDir()
	pixels, err := npy.ReadFile(digitPixels)
	if err != nil {
		t.Fatal(err)
	}
	samples := zipped(t, map[string]*graph.Tensor{"pixels": pixels})
	small := filepath.Join(dir, "small.graph")
	for _, weights := range []string{"i8", "i4"} {
		var r quantising.Report
		out := clitest.Good(t, "quantise", digitsModel, "--weights", weights, "--calibrate", samples, "--limit", "0.3", "-o",
			small, "--json")
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatal(err)
		}
		stored := 0
		for _, l := range r.Layers {
			if l.Quantised {
				stored++
			}
			if l.Quantised == (l.Reason != "") {
				t.Errorf("%+v", l)
			}
		}
		if stored == 0 || r.Samples == 0 || len(r.Outputs) == 0 || r.Bytes >= r.BytesBefore || r.Outputs[0].Error <= 0 {
			t.Errorf("%+v", r)
		}
		clitest.Good(t, "run", small, "--in", "pixels="+digitPixels, "--against", "ref")
		clitest.Good(t, "explain", small)
		clitest.Good(t, "dump", small, "-o", filepath.Join(dir, "small.svg"))
	}
	out := clitest.Good(t, "quantise", digitsModel, "--limit", "1e-9", "-o", small)
	if !strings.Contains(out, "stays: its results would be off by") || !strings.Contains(out, " 0 of ") {
		t.Errorf("the report is\n%s", out)
	}
	clitest.Good(t, "run", small, "--in", "pixels="+digitPixels, "--precision", "bf16")

	out = clitest.Good(t, "quantise", digitsModel, "--activations", "i8", "--group", "24", "--calibrate", samples, "-o", small)
	if !strings.Contains(out, "what it multiplies stays: its rows are no whole groups of 24") {
		t.Errorf("the report is\n%s", out)
	}
	clitest.Good(t, "quantise", digitsModel, "--activations", "i8", "--calibrate", samples, "-o", small)
	clitest.Good(t, "run", small, "--in", "pixels="+digitPixels, "--against", "ref")

	// It does not write over what it reads.
	clitest.Bad(t, clitest.FusecRun(t, "quantise", small, "-o", dir+"/./small.graph"), 2, "whose weights would be lost")
	clitest.Bad(t, clitest.FusecRun(t, "quantise", digitsModel), 2, "want a file named like small.graph")
	clitest.Bad(t, clitest.FusecRun(t, "quantise", digitsModel, "-o", small, "--weights", "i3"), 2, "i3")
	clitest.Bad(t, clitest.FusecRun(t, "quantise", digitsModel, "-o", small, "--group", "12"), 2, "multiple of 8")
	clitest.Bad(t, clitest.FusecRun(t, "quantise", digitsModel, "-o", small, "--limit", "-1"), 2, "positive")
	clitest.Bad(t, clitest.FusecRun(t, "quantise", filepath.Join(dir, "none.graph"), "-o", small), 1, "no such file")
	clitest.Bad(t, clitest.FusecRun(t, "quantise", digitsModel, "-o", small, "--calibrate", "none.npz"), 1, "none.npz")
}
