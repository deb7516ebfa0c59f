package runner

import (
	"path/filepath"
	"testing"

	"fusec/cmd/internal/clitest"
	"fusec/graph"
	"fusec/graph/npy"
)

// TestONNX runs an ONNX model whose batch is open.
func TestONNX(t *testing.T) {
	const model, shapes = "../../../graph/onnx/testdata/mlp.onnx", "../../../graph/onnx/testdata/shapes.onnx"
	dir := t.TempDir()
	clitest.Bad(t, clitest.FusecRun(t, "run", model), 1, "the sizes batch of the model's inputs are open", "--dim NAME=SIZE")
	clitest.Bad(t, clitest.FusecRun(t, "run", model, "--dim", "batch"), 2, "want NAME=SIZE")
	clitest.Bad(t, clitest.FusecRun(t, "run", model, "--dim", "batch=1", "--dim", "batch=2"), 2, "batch is given twice")
	clitest.Bad(t, clitest.FusecRun(t, "run", model, "--dim", "batch=1", "--dim", "batches=2"), 2,
		`--dim batches=2: unknown size "batches"; choose batch`)
	clitest.Bad(t, clitest.FusecRun(t, "run", clitest.Bare, "--random-weights", "--dim", "batch=1"), 2, "--dim is for ONNX models")
	clitest.Bad(t, clitest.FusecRun(t, "run", model[:len(model)-len(".onnx")]), 2,
		"did you mean ../../../graph/onnx/testdata/mlp.onnx?")
	clitest.Good(t, "run", model, "--dim", "batch=5", "--against", "ref", "--out", dir)
	y, err := npy.ReadFile(filepath.Join(dir, "class_p.npy"))
	if err != nil || y.Type != graph.TypeOf(graph.F32, 5, 3) {
		t.Fatalf("%v, %v", y, err)
	}
	x := filepath.Join(dir, "x.npy")
	if err := npy.WriteFile(x, graph.Filled(graph.TypeOf(graph.F32, 4, 2, 4), 1)); err != nil {
		t.Fatal(err)
	}
	clitest.Good(t, "run", shapes, "--in", "x="+x, "--out", dir)
	if y, err = npy.ReadFile(filepath.Join(dir, "z.npy")); err != nil || y.Type != graph.TypeOf(graph.F32, 4, 2, 4) {
		t.Fatalf("%v, %v", y, err)
	}
	clitest.Bad(t, clitest.FusecRun(t, "run", shapes, "--in", "x="+x, "--dim", "batch=3"), 1,
		`batch is 3; the value of input "x" is f32[4,2,4]`)
}
