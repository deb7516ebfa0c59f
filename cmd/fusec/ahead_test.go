package main

import (
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"path/filepath"
	"strings"
	"testing"
)

// TestCompileAhead compiles a model ahead of time and runs the file, as the help says, to what the processor gives.
func TestCompileAhead(t *testing.T) {
	clitest.Emulated(t)
	out := filepath.Join(t.TempDir(), "mlp.fuse")
	const model, pixels = "../../testdata/models/digits-mlp.graph", "pixels=../../testdata/models/digits-mlp.pixels.npy"
	text := clitest.Good(t, "compile", model, "-o", out)
	if !strings.Contains(text, "digits-mlp for sm_90a") {
		t.Errorf("compile says %q", text)
	}
	outputs := func(args ...string) string {
		_, lines, _ := strings.Cut(clitest.Good(t, append([]string{"run", "--in", pixels}, args...)...), "output")
		fields := strings.Fields(lines)
		return strings.Join(fields[len(fields)-3:], " ")
	}
	if got, want := outputs(out), outputs(model); got != want {
		t.Errorf("the compiled model's last values are %s, the processor's %s", got, want)
	}
	if text := clitest.Good(t, "explain", out); !strings.Contains(text, "mlp for cuda/sm_90a: 3 launches") {
		t.Errorf("explain of the compiled model says\n%s", text)
	}
	two, devices := filepath.Join(t.TempDir(), "two.fuse"), "cuda:0,cuda:1"
	text = clitest.Good(t, "compile", model, "--target", devices, "-o", two)
	if want := "one of 2 participants: run it with --target " + devices; !strings.Contains(text, want) {
		t.Errorf("compile for %s says %q, not %q", devices, text, want)
	}
	if got, want := outputs(two, "--target", devices), outputs(model); got != want {
		t.Errorf("on %s the compiled model's last values are %s, the processor's %s", devices, got, want)
	}
	clitest.Bad(t, clitest.FusecRun(t, "run", two), cli.ExitFailure, "it was compiled with other options")
	clitest.Bad(t, clitest.FusecRun(t, "run", "--overlay", "sim8", out), cli.ExitUsage,
		"--overlay sim8 is for --target fpga; the target is cuda")
	clitest.Bad(t, clitest.FusecRun(t, "run", "--arch", "sm_80", out), cli.ExitUsage,
		"--arch sm_80: the model was compiled for sm_90a")
	clitest.Bad(t, clitest.FusecRun(t, "dump", "--stage", "cuda", "--arch", "sm_80", out), cli.ExitUsage,
		"--arch sm_80: the model was compiled for sm_90a")
	clitest.Bad(t, clitest.FusecRun(t, "dump", "--stage", "fpga", out), cli.ExitUsage,
		"--stage fpga: the model was compiled for target cuda")
	clitest.Bad(t, clitest.FusecRun(t, "run", "--target", "cpu", out), cli.ExitUsage,
		"--target cpu: the model was compiled for target cuda")
	clitest.Bad(t, clitest.FusecRun(t, "compile", model, "-o", "mlp.so"), cli.ExitUsage, "a compiled model is named like model.fuse")
	clitest.Bad(t, clitest.FusecRun(t, "compile", model, "-o", "no/mlp.fuse"), cli.ExitFailure,
		"writing no/mlp.fuse: no such file or directory")
	clitest.Bad(t, clitest.FusecRun(t, "run", "testdata/not.fuse"), cli.ExitFailure, "not a compiled model")
	clitest.Bad(t, clitest.FusecRun(t, "run", "testdata/none.fuse"), cli.ExitFailure, "testdata/none.fuse: no such file")
}
