package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"fusec/cmd/internal/clitest"
)

// cycles is how often TestC opens and closes a model. With FUSEC_LONG=1 it is ten thousand times.
const cycles = "500"

// TestC builds the library, compiles testdata/test.c against it under AddressSanitizer, and runs it and the example.
func TestC(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("AddressSanitizer's flags and /proc are those of Linux")
	}
	dir := t.TempDir()
	tool := func(name string, args ...string) {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "ASAN_OPTIONS=detect_leaks=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		} else {
			t.Logf("%s", out)
		}
	}
	clitest.Tool(t, "gcc")
	library, test := filepath.Join(dir, "libfusec.a"), filepath.Join(dir, "test")
	tool("go", "build", "-buildmode=c-archive", "-o", library, ".")
	tool("gcc", "-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-I../../include", "-o", test,
		"testdata/test.c", library, "-lpthread", "-lm", "-lresolv")
	example := filepath.Join(dir, "digits")
	tool("gcc", "-D_POSIX_C_SOURCE=200809L", "-std=c11", "-Wall", "-Wextra", "-Werror", "-I../../include", "-o", example,
		"../../examples/c/digits.c", library, "-lpthread", "-lm", "-lresolv")
	tool(example, "../../testdata/models/digits-mlp.graph", "../../testdata/models/digits-mlp.pixels.npy")
	n := cycles
	if os.Getenv("FUSEC_LONG") != "" {
		n = "10000"
	}
	tool(test, "../../testdata/models/digits-mlp.graph", n)
}
