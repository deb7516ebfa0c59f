package main

import (
	"path/filepath"
	"testing"

	"fusec/cmd/internal/clitest"
	"fusec/graph"
)

// TestConvert writes an ONNX model as a graph and back.
func TestConvert(t *testing.T) {
	const model = "../../graph/onnx/testdata/speech.onnx"
	dir := t.TempDir()
	text, back := filepath.Join(dir, "speech.graph"), filepath.Join(dir, "speech.onnx")
	clitest.Good(t, "convert", model, text)
	clitest.Good(t, "convert", text, back)
	clitest.Good(t, "run", back, "--against", "ref")
	if _, w, err := graph.Load(text); err != nil || len(w.Tensors) != 5 {
		t.Errorf("%v, %v", w, err)
	}
	clitest.Bad(t, clitest.FusecRun(t, "convert", model), 2, "which models?")
	clitest.Bad(t, clitest.FusecRun(t, "convert", model, "m.txt"), 2, "want a file named like model.graph or model.onnx")
	clitest.Bad(t, clitest.FusecRun(t, "convert", filepath.Join(dir, "none.onnx"), text), 1, "no such file")
	clitest.Bad(t, clitest.FusecRun(t, "convert", clitest.Bare, back), 1, "the weights file is missing")
}
