// Package testtools is for tests that need programs other than Go's.
package testtools

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Need skips the test if a program is missing, and says which. In CI, where FUSEC_FPGA=required, that is an error.
func Need(t testing.TB, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err == nil {
			continue
		}
		if os.Getenv("FUSEC_FPGA") == "required" {
			t.Fatalf("%s is required and not installed", p)
		}
		t.Skipf("%s is not installed: make test-tools says from where", p)
	}
}

// Long skips a test that takes minutes, unless FUSEC_LONG is set: make fpga-long does so.
func Long(t testing.TB) {
	t.Helper()
	if os.Getenv("FUSEC_LONG") == "" {
		t.Skip("takes minutes: make fpga-long runs it")
	}
}

// Start starts a simulator's program, which ends with its standard input, at the end of the test, and has to end well.
func Start(t testing.TB, program string, args ...string) (in io.Writer, out io.Reader) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if out, err = cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	return stdin, out
}

// Board starts the program of a simulated board (sim.BuildBoard) and gives the path of its serial line.
func Board(t testing.TB, program string) (line string) {
	t.Helper()
	_, out := Start(t, program)
	path, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(path)
}
