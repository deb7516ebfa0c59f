package checkpoint

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"fusec/graph"
)

// childEnv names the folder in which the test binary, started as a child, saves without end.
const childEnv = "CHECKPOINT_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		err := train(Dir{Path: dir, Keep: 3})
		fmt.Fprintln(os.Stderr, err) // it ends by being killed or not at all well
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// stateOf is the state of a make-believe run after a step: every number follows from it.
func stateOf(step int64) *State {
	w := graph.Filled(graph.TypeOf(graph.F32, 257, 64), float64(step))
	m := graph.Filled(graph.TypeOf(graph.F64, 1000), float64(-step))
	return &State{
		Params: map[string]*graph.Tensor{"w": w},
		State:  map[string]*graph.Tensor{"m": m},
		Step:   step, Seed: uint64(step) * 3, Position: step * 2,
		Meta: map[string]string{"step": fmt.Sprint(step)},
	}
}

// train resumes from the newest checkpoint and saves after every step.
func train(d Dir) error {
	step := int64(0)
	f, err := d.Latest()
	switch {
	case err == nil:
		step = f.Step
	case !errors.Is(err, ErrNone):
		return err
	}
	for {
		step++
		if _, err := d.Save(stateOf(step)); err != nil {
			return err
		}
		fmt.Println(step)
	}
}

// TestKilledAtAnyMoment kills a run that saves all the time, again and again. Each time the newest checkpoint is whole,
// at least as new as the last one that the run said was saved, and the next run goes on from it.
func TestKilledAtAnyMoment(t *testing.T) {
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(3, 4))
	last := int64(0)
	for round := range 20 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		said := last
		for range 1 + r.IntN(3) {
			if lines.Scan() {
				fmt.Sscan(lines.Text(), &said)
			}
		}
		time.Sleep(time.Duration(r.Int64N(int64(3 * time.Millisecond))))
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() {
			fmt.Sscan(lines.Text(), &said)
		}
		if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() == 1 {
			t.Fatalf("round %d: the run ended by itself: %v", round, err)
		}
		f, err := Dir{Path: dir}.Latest()
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if len(f.Skipped) > 0 {
			t.Errorf("round %d: %v", round, f.Skipped)
		}
		if f.Step < said || said <= last {
			t.Errorf("round %d: the newest is of step %d; the run said %d, the one before it %d", round, f.Step, said, last)
		}
		if err := equal(f.State, stateOf(f.Step)); err != nil {
			t.Errorf("round %d, step %d: %v", round, f.Step, err)
		}
		last = f.Step
	}
	// What the killed runs left behind goes with the next save.
	if _, err := (Dir{Path: dir, Keep: 1}).Save(stateOf(last + 1)); err != nil {
		t.Fatal(err)
	}
	if list := names(t, dir); len(list) != 1 {
		t.Errorf("left behind: %v", list)
	}
}
