// Package clitest runs command lines in tests.
package clitest

import (
	"bytes"
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/graph"
	_ "fusec/graph/graphtest/untuned"
	"fusec/lowering"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/emulator"
)

var update = flag.Bool("update", false, "write the golden files in testdata again")

// Update reports whether golden files are to be written again.
func Update() bool { return *update }

// TestedCommands are those that command lines of tests name. A test package sets it.
var TestedCommands []*cli.Command

// Result is what a command line did.
type Result struct {
	Code        int
	Out, Stderr string
}

// FusecIn runs a command line on a standard input.
func FusecIn(t testing.TB, stdin string, args ...string) Result {
	t.Helper()
	var out, stderr bytes.Buffer
	code := cli.RunCommandLine(context.Background(), TestedCommands, args, strings.NewReader(stdin), &out, &stderr)
	return Result{code, out.String(), stderr.String()}
}

// FusecRun runs a command line.
func FusecRun(t testing.TB, args ...string) Result {
	t.Helper()
	return FusecIn(t, "", args...)
}

// Good runs a command line that must work and say nothing on standard error, and returns its output.
func Good(t testing.TB, args ...string) string {
	t.Helper()
	r := FusecRun(t, args...)
	if r.Code != cli.ExitOK || r.Stderr != "" {
		t.Fatalf("fusec %s: exit code %d, standard error:\n%s", strings.Join(args, " "), r.Code, r.Stderr)
	}
	return r.Out
}

// Bad runs a command line that must fail with the code and say all of the words, in lines that begin as errors do.
func Bad(t testing.TB, r Result, code int, words ...string) {
	t.Helper()
	if r.Code != code {
		t.Errorf("exit code %d, want %d", r.Code, code)
	}
	for line := range strings.Lines(r.Stderr) {
		if !strings.HasPrefix(line, "fusec: ") {
			t.Errorf("error line %q does not begin with the program's name", line)
		}
	}
	for _, w := range words {
		if !strings.Contains(r.Stderr, w) {
			t.Errorf("standard error lacks %q:\n%s", w, r.Stderr)
		}
	}
	if strings.Contains(r.Stderr, "internal error") {
		t.Errorf("a panic:\n%s", r.Stderr)
	}
}

// Golden compares text with a file in testdata.
func Golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; go test -update makes it", err)
	}
	if got != string(want) {
		t.Errorf("differs from %s (go test -update rewrites it):\n%s", path, got)
	}
}

// Bare is the path of the test model, which has no weights beside it.
var Bare = func() string {
	up := ""
	for range 5 {
		if _, err := os.Stat(filepath.Join(up, "go.mod")); err == nil {
			break
		}
		up = filepath.Join(up, "..")
	}
	return filepath.Join(up, "cmd/internal/clitest/testdata/mlp.graph")
}()

// Model copies the test model to a folder of its own and gives it weights, which change may change.
func Model(t testing.TB, change func(map[string]*graph.Tensor)) string {
	t.Helper()
	g, err := graph.LoadGraph(Bare)
	if err != nil {
		t.Fatal(err)
	}
	weights := map[string]*graph.Tensor{}
	for _, n := range g.Sources() {
		if _, input := n.Op.(graph.Input); !input {
			weights[n.Name] = modelio.RandomTensor(n, 7, modelio.DefaultLimit)
		}
	}
	if change != nil {
		change(weights)
	}
	path := filepath.Join(t.TempDir(), "mlp.graph")
	if err := graph.Save(path, g, weights); err != nil {
		t.Fatal(err)
	}
	return path
}

// FileNames lists a folder.
func FileNames(t testing.TB, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range list {
		names = append(names, f.Name())
	}
	return names
}

// Emulated has all programs of the test that ask for CUDA run on the emulator.
func Emulated(t testing.TB) {
	t.Helper()
	modelio.ExtraOptions = []lowering.TargetOption{cuda.Driver(func(int) (driver.GPU, driver.Compiler, error) {
		return emulator.Open(emulator.Options{})
	})}
	t.Cleanup(func() { modelio.ExtraOptions = nil })
}

// Quick are the flags of a benchmark that need not be exact.
var Quick = []string{"--seconds", "0.01", "--rounds", "3"}

// Tool is the path of a program that a test needs. Where it is missing the test is skipped, in continuous integration it
// fails.
func Tool(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil && os.Getenv("FUSEC_REQUIRE") == "" {
		t.Skipf("%s is not installed", name)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// FullDisk gives the path of a device that takes nothing.
func FullDisk(t testing.TB) string {
	t.Helper()
	const path = "/dev/full"
	if _, err := os.Stat(path); err != nil {
		t.Skipf("this system has no device that is always full: %v", err)
	}
	return path
}

// Wide is a linear layer of which all matrices are large.
const Wide = `fusec graph 1 "wide" {
  x = input : f32[64,64]
  w = param : f32[64,64]
  a = matmul x w
  h = unary[fn=relu] a
  v = param : f32[64,64]
  y = matmul h v
  output y = y
}
`
