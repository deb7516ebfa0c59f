package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
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

// TestConvertKeeps: a model that is written over itself keeps all tensors of its weights file, or is refused.
func TestConvertKeeps(t *testing.T) {
	path := clitest.Model(t, nil)
	clitest.Good(t, "convert", path, path)
	text := "fusec graph 1 {\n  b1 = param : f32[5]\n  y = unary[fn=relu] b1\n  output y = y\n}\n"
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	want := "would be replaced, and lose the tensors that the graph does not name: runs, w1, w2"
	clitest.Bad(t, clitest.FusecRun(t, "convert", path, path), 1, want)
	if _, w, err := graph.Load(path); err != nil || len(w.Unused) != 3 {
		t.Errorf("%v, %v", w, err)
	}
	if r := clitest.FusecRun(t, "convert", path, filepath.Join(t.TempDir(), "other.graph")); r.Code != 0 ||
		!strings.Contains(r.Stderr, "note: ") {
		t.Errorf("exit code %d, %s", r.Code, r.Stderr)
	}
}

// TestConvertLanguage writes a language model in the form of transformers, and the decoding step of what it has written.
func TestConvertLanguage(t *testing.T) {
	dir := t.TempDir()
	novel, folder, step := filepath.Join(dir, "novel.graph"), filepath.Join(dir, "novel")+"/", filepath.Join(dir, "step.graph")
	clitest.Good(t, "train", "language", "--steps", "1", "--batch", "1", "--save", novel)
	clitest.Good(t, "convert", novel, folder)
	clitest.Good(t, "convert", folder, step)
	if g, w, err := graph.Load(step); err != nil || len(g.Outputs) != 1 || len(w.Tensors) < 30 {
		t.Errorf("%v, %v", w, err)
	}
	one, other := clitest.Good(t, "generate", novel, "--temperature", "0", "--tokens", "20"),
		clitest.Good(t, "generate", folder, "--temperature", "0", "--tokens", "20")
	if one != other {
		t.Errorf("as a graph it writes %q, as a folder %q", one, other)
	}
	clitest.Bad(t, clitest.FusecRun(t, "convert", "../../testdata/models/moe-block.graph", folder), 1,
		"is it a model of fusec train language?")
	clitest.Bad(t, clitest.FusecRun(t, "convert", dir, step), 1, "transformers: config.json: no such file")

	weights := filepath.Join(folder, "model.safetensors")
	before, err := os.ReadFile(weights)
	if err != nil {
		t.Fatal(err)
	}
	clitest.Good(t, "convert", novel, folder) // the same model
	clitest.Bad(t, clitest.FusecRun(t, "convert", folder, filepath.Join(folder, "model.graph")), 1, weights+" has weights of")
	inside := filepath.Join(dir, "model.graph")
	clitest.Good(t, "train", "language", "--steps", "1", "--batch", "1", "--save", inside)
	clitest.Bad(t, clitest.FusecRun(t, "convert", inside, dir), 1, "model.safetensors has the weights of "+inside)
	clitest.Bad(t, clitest.FusecRun(t, "convert", novel, dir), 1, "model.safetensors belongs to another model")
	config := filepath.Join(folder, "config.json")
	if err := os.WriteFile(config, []byte("{}"), 0o666); err != nil {
		t.Fatal(err)
	}
	clitest.Bad(t, clitest.FusecRun(t, "convert", novel, folder), 1, config+" belongs to another model")
	if after, err := os.ReadFile(weights); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the weights of the folder were replaced: %v", err)
	}
}
