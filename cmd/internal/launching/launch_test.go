//go:build unix

package launching

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/kernels/group/grouptest"
	"fusec/kernels/group/rendezvous"
)

func init() { clitest.TestedCommands = []*cli.Command{Command} }

// TestMain is a participant where the tests start themselves as one.
func TestMain(m *testing.M) {
	if os.Getenv("FUSEC_TEST_PARTICIPANT") == "" {
		os.Exit(m.Run())
	}
	if err := participant(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
}

// without are participants that do not join the group.
var without = map[string]func() error{}

func participant(what string) error {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	if run := without[what]; run != nil {
		return run()
	}
	g, place, err := rendezvous.Join(5 * time.Minute) // a busy machine is no failure
	if err != nil {
		return err
	}
	switch what {
	case "conform":
		err = grouptest.Conforms(g)
		fmt.Printf("participant %d of %d conforms: %v\n", place.Local, place.Size, err)
	case "die":
		if err := g.All().Gather([]byte{1}, make([]byte, place.Size)); err != nil { // all have come, and take signals
			return err
		}
		if place.Rank == 1 {
			os.Exit(7)
		}
		<-told
		fmt.Printf("participant %d was told to end\n", place.Rank)
	}
	return errors.Join(err, g.Close())
}

// TestLaunch starts participants that find one another.
func TestLaunch(t *testing.T) {
	t.Setenv("FUSEC_TEST_PARTICIPANT", "1")
	t.Setenv("SLURM_PROCID", "0") // of an allocation in which the program is started
	t.Setenv("SLURM_NTASKS", "1")
	out := clitest.Good(t, "launch", "--devices", "3", "--", os.Args[0], "conform")
	for r := range 3 {
		if want := fmt.Sprintf("participant %d of 3 conforms: <nil>\n", r); !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
}

// TestLaunchEnds ends the others when one dies.
func TestLaunchEnds(t *testing.T) {
	t.Setenv("FUSEC_TEST_PARTICIPANT", "1")
	r := clitest.FusecRun(t, "launch", "--devices", "3", "--", os.Args[0], "die")
	clitest.Bad(t, r, cli.ExitFailure, "participant 1, ", "die: exit status 7")
	for _, other := range []int{0, 2} {
		if want := fmt.Sprintf("participant %d was told to end\n", other); !strings.Contains(r.Out, want) {
			t.Errorf("no %q in %s", want, r.Out)
		}
	}
	clitest.Bad(t, clitest.FusecRun(t, "launch", "--devices", "2", "--", "/no/such/program"), cli.ExitFailure, "participant 0",
		"no such file")
	clitest.Bad(t, clitest.FusecRun(t, "launch", "--devices", "2"), cli.ExitUsage, "a program to start is missing")
}
