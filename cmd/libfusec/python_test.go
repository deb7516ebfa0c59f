package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"fusec/cmd/internal/clitest"
)

// TestPython runs the Python package's tests on the library, in which target cuda is the emulator where there is one. NumPy is
// taken from where `make tensorboard` puts it, too.
func TestPython(t *testing.T) {
	python := clitest.Tool(t, "python3")
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	path := strings.Join([]string{filepath.Join(here, "python"), filepath.Join(cache, "fusec-tensorboard")},
		string(os.PathListSeparator))
	library := filepath.Join(t.TempDir(), "libfusec.so")
	run := func(name string, args ...string) (string, error) {
		cmd := exec.Command(name, args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH="+path, "FUSEC_LIBRARY="+library)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run(python, "-c", "import numpy"); err != nil {
		if os.Getenv("FUSEC_REQUIRE") != "" {
			t.Fatalf("%v\n%s", err, out)
		}
		t.Skip("NumPy is not installed: make tensorboard does that")
	}
	clitest.Tool(t, "gcc")
	build, tests := []string{"build", "-buildmode=c-shared", "-o", library}, []string{"test_fusec.py"}
	if runtime.GOOS == "linux" && (runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64") {
		clitest.Tool(t, "g++")
		build, tests = append(build, "-tags", "emulator"), append(tests, "test_gpu.py")
	}
	if out, err := run("go", append(build, ".")...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range tests {
		out, err := run(python, filepath.Join("python", "tests", name))
		if err != nil || !strings.Contains(out, "\nOK") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		t.Log(out)
	}
}
