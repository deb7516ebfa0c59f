package mpi_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"fusec/kernels/group"
	"fusec/kernels/group/grouptest"
	"fusec/kernels/group/mpi"
)

// role is the environment variable that makes the test program a participant.
const role = "FUSEC_MPI_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(role) == "" {
		os.Exit(m.Run())
	}
	if err := participant(os.Getenv(role)); err != nil {
		fmt.Println(err)
		os.Exit(3)
	}
}

func participant(role string) error {
	patience := 2 * time.Second
	if role != "late" {
		patience = 0 // the default
	}
	g, err := mpi.Join(patience)
	if err != nil {
		return err
	}
	if role == "late" && g.Rank() == 1 {
		time.Sleep(time.Hour) // the launcher ends it
	}
	if role == "late" {
		err := g.All().Gather([]byte{1}, make([]byte, g.Size()))
		var lost *group.LostError
		if !errors.As(err, &lost) || lost.Rank != 1 {
			return fmt.Errorf("error %v, want that of participant 1", err)
		}
		fmt.Println(err)
		os.Exit(4)
	}
	if err := grouptest.Conforms(g); err != nil {
		return err
	}
	if _, err := mpi.Join(0); err == nil {
		return errors.New("a process joins twice")
	}
	fmt.Println("conforms")
	err = g.Close()
	time.Sleep(100 * time.Millisecond) // the process goes on without MPI
	return err
}

// run starts the test program as n participants.
func run(t *testing.T, n int, as string) (string, error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := grouptest.MPIRun(t, n, self)
	c.Env = append(os.Environ(), role+"="+as)
	out, err := c.CombinedOutput()
	return string(out), err
}

// TestConforms is the conformance suite on processes.
func TestConforms(t *testing.T) {
	for _, n := range []int{3, 4, 8} {
		out, err := run(t, n, "conforms")
		if err != nil || strings.Count(out, "conforms") != n {
			t.Errorf("%d participants: error %v:\n%s", n, err, out)
		}
	}
}

// TestLate names a participant that does not come, and ends.
func TestLate(t *testing.T) {
	out, err := run(t, 2, "late")
	if err == nil || !strings.Contains(out, "participant 1 is lost: it has not come to a collective operation within 2s") {
		t.Errorf("error %v:\n%s", err, out)
	}
}

func TestLaunched(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{nil, "{0 0 0 } false <nil>"},
		{map[string]string{"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, "{1 4 0 torchrun} true <nil>"},
		{map[string]string{"SLURM_PROCID": "2", "SLURM_NTASKS": "3"}, "{2 3 -1 srun of Slurm} true <nil>"},
		{map[string]string{"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "RANK": "5", "WORLD_SIZE": "6"},
			"{0 1 -1 mpirun of Open MPI} true <nil>"},
		{map[string]string{"PMI_RANK": "3", "PMI_SIZE": "3"},
			"{0 0 0 } true Hydra, of MPICH and Intel MPI has started rank \"3\" of \"3\""},
		{map[string]string{"RANK": "x", "WORLD_SIZE": "3"}, "{0 0 0 } true torchrun has started rank \"x\""},
	} {
		p, ok, err := group.Launched(func(name string) string { return c.env[name] })
		if got := fmt.Sprint(p, ok, err); !strings.HasPrefix(got, c.want) {
			t.Errorf("%v: %s, want %s", c.env, got, c.want)
		}
	}
	t.Setenv("OMPI_COMM_WORLD_RANK", "")
	t.Setenv("PMI_RANK", "")
	t.Setenv("SLURM_PROCID", "")
	t.Setenv("RANK", "")
	if _, err := mpi.Join(0); err == nil || !strings.Contains(err.Error(), "no launcher") {
		t.Errorf("error %v without a launcher", err)
	}
	t.Setenv("RANK", "0")
	t.Setenv("WORLD_SIZE", "1")
	if _, err := mpi.Join(0); err == nil || !strings.Contains(err.Error(), "torchrun starts participants without MPI") {
		t.Errorf("error %v under torchrun", err)
	}
	t.Setenv("PMI_RANK", "0")
	t.Setenv("PMI_SIZE", "1")
	t.Setenv(mpi.Library, "/no/libmpi.so")
	if _, err := mpi.Join(0); err == nil || !strings.Contains(err.Error(), "no MPI library") {
		t.Errorf("error %v without a library", err)
	}
}
