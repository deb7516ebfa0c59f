package grouptest

import (
	"os"
	"os/exec"
	"strconv"
	"testing"
)

// MPIRun is a command that starts a program as n participants of MPI. Without mpirun it skips the test, or fails it where
// FUSEC_REQUIRE is set.
func MPIRun(t *testing.T, n int, program string, args ...string) *exec.Cmd {
	t.Helper()
	mpirun, err := exec.LookPath("mpirun")
	if err != nil && os.Getenv("FUSEC_REQUIRE") == "" {
		t.Skip("mpirun is not installed (on Debian: openmpi-bin)")
	}
	if err != nil {
		t.Fatal(err)
	}
	return exec.Command(mpirun, append([]string{"--allow-run-as-root", "--oversubscribe", "-n", strconv.Itoa(n), program}, args...)...)
}
