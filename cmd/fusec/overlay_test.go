package main

import (
	"archive/zip"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fusec/cmd/internal/bench"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/cmd/internal/modelio"
	"fusec/cmd/internal/runner"
	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/npy"
	"fusec/graph/safetensors"
)

// zipped writes arrays into a .npz file.
func zipped(t testing.TB, arrays map[string]*graph.Tensor) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "samples.npz")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(f)
	for _, name := range modelio.SortedKeys(arrays) {
		w, err := z.Create(name + ".npy")
		if err != nil {
			t.Fatal(err)
		}
		if err := npy.Write(w, arrays[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// digitsModel is the model of digits in the repository, and its images.
const digitsModel, digitPixels = "../../testdata/models/digits-mlp.graph", "../../testdata/models/digits-mlp.pixels.npy"

// TestOverlayReports explains, draws, lists and times a model on an overlay.
func TestOverlayReports(t *testing.T) {
	has := func(text string, words ...string) {
		t.Helper()
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("the text lacks %q:\n%s", w, text)
			}
		}
	}
	has(clitest.Good(t, "explain", "--target", "fpga", digitsModel), "digits-mlp for fpga/sim8 in int8: 3 launches",
		"on the host: nothing",
		"8 bits from the least to the greatest number that they have on the inputs of the first run",
		"on the overlay sim8 the launches take about")
	has(clitest.Good(t, "explain", "--target", "fpga", "--overlay", "ecp5", "../../testdata/models/lenet.graph"),
		"on the host: 4 operations", "windows over images: the overlay ecp5 makes no addresses of patches")
	has(clitest.Good(t, "dump", "--target", "fpga", "--format", "text", digitsModel), "program for fpga", "cycles")
	has(clitest.Good(t, "dump", "--target", "fpga", digitsModel), "about", "cycles",
		"target fpga/sim8")
	has(clitest.Good(t, "explain", "--target", "fpga", "--overlay", "hx8k", digitsModel),
		"it cannot run on the overlay hx8k: program \"digits-mlp\": values and weights take", "on the host: nothing, if it could run")
	soft := graphtest.File(t, "soft.graph",
		"fusec graph 1 \"soft\" {\n  x = input : f32[8,16]\n  y = softmax[axis=1] x\n  output y = y\n}\n")
	has(clitest.Good(t, "explain", "--target", "fpga", "--overlay", "hx8k", soft),
		"on the host: everything, 1 operation; nothing runs on fpga/hx8k")
	has(clitest.Good(t, "dump", "--stage", "fpga", "--overlay", "sim16", digitsModel), "program for the overlay sim16",
		"gemm 360×64×64, scale and bias, relu",
		"load Space=X", "Panels=", "end")
	has(clitest.Good(t, "dump", "--target", "fpga", "--link", "model", "--measured", "--format", "text", digitsModel),
		"estimated cycles", "multiplying", "error at most", "error rms")
	has(clitest.Good(t, "bench", "--target", "fpga", "--link", "model", "--seconds", "0.01", "--rounds", "3", digitsModel),
		"digits-mlp on the overlay sim8",
		"multiplying", "cycles at 100 MHz", "cpu")
	var rep bench.OverlayReport
	if err := json.Unmarshal([]byte(clitest.Good(t, "bench", "--target", "fpga", "--link", "model", "--seconds", "0.01",
		"--rounds", "3", "--json", digitsModel)), &rep); err != nil {
		t.Fatal(err)
	}
	if len(rep.Launches) != 3 || rep.Launches[0].Cycles == 0 || rep.Launches[0].Share < 0.5 ||
		rep.Targets[0].Cycles == 0 {
		t.Errorf("the report is %+v", rep)
	}
	for _, args := range [][]string{{"explain", soft}, {"dump", soft}, {"dump", "--stage", "cuda", soft}, {"run", soft},
		{"run", "--target", "cuda", soft}, {"compile", soft}, {"bench", soft}, {"bench", "gpu"}, {"bench", "moe"},
		{"tune", "--target", "cuda", soft}} {
		for flag, value := range map[string]string{"--overlay": "sim16", "--link": "model", "--calibrate": "x.npz"} {
			clitest.Bad(t, clitest.FusecRun(t, append(args, flag, value)...), cli.ExitUsage,
				flag+" "+value+" is for --target fpga; the target is c")
		}
	}
	clitest.Bad(t, clitest.FusecRun(t, "explain", soft, "--arch", "sm_80"), cli.ExitUsage,
		"--arch sm_80 is for --target cuda; the target is cpu")
	clitest.Bad(t, clitest.FusecRun(t, "dump", "--stage", "fpga", soft, "--arch", "sm_80"), cli.ExitUsage,
		"--arch sm_80 is for --target cuda; the target is fpga")
	clitest.Bad(t, clitest.FusecRun(t, "bench", "matmul", "--target", "fpga"), cli.ExitUsage, "is not for target fpga")
	clitest.Bad(t, clitest.FusecRun(t, "bench", "gpu", "--target", "fpga"), cli.ExitUsage, "is not for an overlay")
	clitest.Bad(t, clitest.FusecRun(t, "tune", digitsModel, "--target", "fpga"), cli.ExitUsage, `unknown target "fpga"; choose cuda`)
	clitest.Bad(t, clitest.FusecRun(t, "bench", digitsModel, "--target", "fpga", "--mhz", "0"), cli.ExitUsage,
		"want a positive number of MHz")
	clitest.Bad(t, clitest.FusecRun(t, "dump", "--stage", "fpga", "--all", digitsModel), cli.ExitUsage, "--stage fpga is one text")
	clitest.Bad(t, clitest.FusecRun(t, "run", "--target", "fpga", "--overlay", "huge", digitsModel), cli.ExitUsage,
		`unknown overlay "huge"; choose sim8`)
	clitest.Bad(t, clitest.FusecRun(t, "run", "--target", "fpga", "--link", "pigeon", digitsModel), cli.ExitFailure, `link "pigeon"`)
}

// TestOverlayRuns runs a model on the overlay's model, calibrated on samples from files, and from a compiled file.
func TestOverlayRuns(t *testing.T) {
	pixels, err := npy.ReadFile(digitPixels)
	if err != nil {
		t.Fatal(err)
	}
	two := graph.NewTensor(graph.TypeOf(graph.F32, 2, 360, 64))
	for i := range two.Type.Shape.Elems() {
		two.SetFloat(i, pixels.Float(i%(360*64)))
	}
	tensors := filepath.Join(t.TempDir(), "samples.safetensors")
	if err := safetensors.WriteFile(tensors, []safetensors.Tensor{{Name: "pixels", Shape: []int{2, 360, 64},
		Data: two.Data}}, nil); err != nil {
		t.Fatal(err)
	}
	single, pair := zipped(t, map[string]*graph.Tensor{"pixels": pixels}), zipped(t,
		map[string]*graph.Tensor{"pixels": two})
	run := func(args ...string) string {
		t.Helper()
		_, table, _ := strings.Cut(clitest.Good(t, append([]string{"run", "--in", "pixels=" + digitPixels}, args...)...),
			"output")
		return table
	}
	want := run("--target", "fpga", "--link", "model", digitsModel)
	for _, file := range []string{single, pair, tensors} {
		if got := run("--target", "fpga", "--link", "model", "--calibrate", file, digitsModel); got != want {
			t.Errorf("calibrated on %s the outputs are %s, on the run's inputs %s", file, got, want)
		}
	}
	out := filepath.Join(t.TempDir(), "digits.fuse")
	if text := clitest.Good(t, "compile", "--target", "fpga", "--calibrate", single, "-o", out,
		digitsModel); !strings.Contains(text, "for the overlay sim8") {
		t.Errorf("compile says %q", text)
	}
	if got := run("--link", "model", out); got != want {
		t.Errorf("the compiled model's outputs are %s, want %s", got, want)
	}
	clitest.Bad(t, clitest.FusecRun(t, "run", "--target", "cpu", "--link", "model", out), cli.ExitUsage,
		"--target cpu: the model was compiled for target fpga")
	for _, args := range [][]string{{"run"}, {"run", "--target", "fpga", "--overlay", "sim8"}} {
		if text := clitest.Good(t, append(args, "--link", "model", out)...); !strings.Contains(text,
			"digits on fpga in int8: 3 launches") {
			t.Errorf("%v of the compiled model says\n%s", args, text)
		}
	}
	if text := clitest.Good(t, "bench", "--link", "model", "--seconds", "0.01", "--rounds", "3", out); !strings.Contains(text,
		"digits on the overlay sim8") || !strings.Contains(text, "cpu") {
		t.Errorf("bench of the compiled model says\n%s", text)
	}
	var rep runner.RunReport
	if err := json.Unmarshal([]byte(clitest.Good(t, "run", "--link", "model", "--json", out)), &rep); err != nil ||
		rep.Target != "fpga" ||
		rep.Precision != "int8" {
		t.Errorf("run of the compiled model says target %s, precision %s, %v", rep.Target, rep.Precision, err)
	}
	if text := clitest.Good(t, "explain", out); !strings.Contains(text, "digits for fpga/sim8 in int8: 3 launches") ||
		!strings.Contains(text, "on the samples that the program was compiled with") {
		t.Errorf("explain of the compiled model says\n%s", text)
	}
	if text := clitest.Good(t, "dump", "--format", "text", out); !strings.Contains(text, "for fpga/sim8 in int8") {
		t.Errorf("dump of the compiled model says\n%s", text)
	}
	if text := clitest.Good(t, "dump", "--stage", "fpga", out); !strings.Contains(text, "program for the overlay sim8") {
		t.Errorf("the compiled model's descriptors are\n%s", text)
	}
	for _, command := range []string{"explain", "dump", "run"} {
		clitest.Bad(t, clitest.FusecRun(t, command, "--overlay", "sim16", out), cli.ExitUsage,
			"the model was compiled for the overlay sim8")
	}
	clitest.Bad(t, clitest.FusecRun(t, "run", "--calibrate", single, out), cli.ExitUsage,
		"the model was compiled for the overlay sim8, with its ranges")
	clitest.Bad(t, clitest.FusecRun(t, "compile", "--target", "fpga", digitsModel), cli.ExitUsage, "requires --calibrate")
	nan := graph.NewTensor(pixels.Type)
	nan.SetFloat(100, math.NaN())
	for _, c := range []struct{ file, want string }{
		{zipped(t, map[string]*graph.Tensor{"x": pixels}), `the model has no input "x"`},
		{zipped(t, map[string]*graph.Tensor{"hidden1.bias": pixels}), `"hidden1.bias" is a param, not an input`},
		{zipped(t, map[string]*graph.Tensor{"pixels": graph.NewTensor(graph.TypeOf(graph.F32, 3, 64))}),
			"with or without an axis of samples"},
		{zipped(t, nil), "holds no arrays"},
		{zipped(t, map[string]*graph.Tensor{"pixels": graph.NewTensor(graph.TypeOf(graph.F32, modelio.ZippedFree/4, 1))}),
			"samples.npz: its arrays unpack to more than 64.0 MiB, from "},
		{zipped(t, map[string]*graph.Tensor{"pixels": nan}), `calibration sample 0: input "pixels" holds NaN`},
		{filepath.Join(t.TempDir(), "none.npz"), "none.npz: no such file"},
		{"samples.csv", "want a .npz or .safetensors file"},
	} {
		r := clitest.FusecRun(t, "run", "--target", "fpga", "--link", "model", "--calibrate", c.file, digitsModel)
		clitest.Bad(t, r, r.Code, c.want)
		if r.Code == cli.ExitOK {
			t.Errorf("samples of %s are taken", c.file)
		}
	}
}
