package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "fusec/graph/graphtest/untuned"
	"fusec/kernels/group/grouptest"
)

// TestMain makes the test program the command itself, for its participants.
func TestMain(m *testing.M) {
	if os.Getenv("FUSEC_GROUP_TEST") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func command(t *testing.T, n int, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self, args...)
	if n > 0 {
		c = grouptest.MPIRun(t, n, self, args...)
	}
	c.Env = append(os.Environ(), "FUSEC_GROUP_TEST=1")
	return c
}

// stepLine is what the first participant says after each step.
var stepLine = regexp.MustCompile(`(?m)^step \d+ of \d+ participants: cost (\S+), weights (\S+)$`)

// steps are the costs and the hashes of the weights in an output.
func steps(t *testing.T, out []byte) (costs []float64, hashes []string) {
	t.Helper()
	for _, m := range stepLine.FindAllSubmatch(out, -1) {
		cost, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		costs, hashes = append(costs, cost), append(hashes, string(m[2]))
	}
	return costs, hashes
}

func output(t *testing.T, n int, args ...string) (costs []float64, hashes []string) {
	t.Helper()
	out, err := command(t, n, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	costs, hashes = steps(t, out)
	if len(costs) == 0 {
		t.Fatalf("no steps in\n%s", out)
	}
	return costs, hashes
}

// TestProcesses trains on two processes as on one, with the same bits in each run, and goes on from a checkpoint on another mesh.
func TestProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts processes")
	}
	alone, _ := output(t, 0, "--steps", "6")
	for _, zero := range []string{"0", "1", "3"} {
		folder := t.TempDir()
		costs, hashes := output(t, 2, "--steps", "6", "--zero", zero)
		again, same := output(t, 2, "--steps", "3", "--zero", zero, "--folder", folder)
		rest, end := output(t, 2, "--steps", "6", "--zero", zero, "--folder", folder)
		if fmt.Sprint(append(again, rest...), append(same, end...)) != fmt.Sprint(costs, hashes) {
			t.Errorf("ZeRO %s: interrupted %v %v, in one run %v", zero, append(same, end...), rest, hashes)
		}
		for i := range costs {
			if d := costs[i] - alone[i]; d > 2e-5 || d < -2e-5 {
				t.Errorf("ZeRO %s: cost %d is %v, alone %v", zero, i, costs[i], alone[i])
			}
		}
		if more, _ := output(t, 0, "--steps", "8", "--folder", folder); len(more) != 2 {
			t.Errorf("one process does %d steps after the checkpoint of two", len(more))
		}
	}
	folder := t.TempDir() // four begin, and eight go on
	four, _ := output(t, 4, "--steps", "3", "--zero", "3", "--folder", folder)
	eight, _ := output(t, 8, "--steps", "6", "--zero", "1", "--folder", folder)
	for i, c := range append(four, eight...) {
		if d := c - alone[i]; len(four) != 3 || d > 2e-5 || d < -2e-5 {
			t.Errorf("four and eight processes: cost %d is %v, alone %v", i, c, alone[i])
		}
	}
}

// TestKilled kills a participant: the others end, and training goes on from the last checkpoint to the same bits.
func TestKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts processes")
	}
	const all = 400
	folder := t.TempDir()
	args := []string{"--steps", strconv.Itoa(all), "--folder", folder, "--zero", "1"}
	_, want := output(t, 2, "--steps", strconv.Itoa(all), "--zero", "1")
	for kill := range 2 {
		c := command(t, 2, args...)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var complaint bytes.Buffer
		c.Stderr = &complaint
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; n < 5 && lines.Scan(); n++ {
		}
		victim, err := os.FindProcess(child(t, c.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		if err := victim.Kill(); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for lines.Scan() {
		}
		if err := c.Wait(); err == nil {
			t.Fatalf("kill %d: the run ends without an error", kill)
		}
		if d := time.Since(start); d > 30*time.Second {
			t.Errorf("kill %d: it took %v until all had ended", kill, d)
		}
		if complaint.Len() == 0 {
			t.Errorf("kill %d: nothing is said of it", kill)
		}
	}
	_, got := output(t, 2, args...)
	if len(got) == 0 || len(got) == all || got[len(got)-1] != want[all-1] {
		t.Errorf("%d steps after the kills end at other weights than in one run", len(got))
	}
}

// child is the last process that another one has started.
func child(t *testing.T, parent int) int {
	t.Helper()
	list := children(t, parent)
	if len(list) == 0 {
		t.Fatal("mpirun has started no process")
	}
	return list[len(list)-1]
}

// children are the participants that another process has started and that run, in their order. The numbers of processes need not
// have it: where many are started, these begin again from the lowest.
func children(t *testing.T, parent int) (pids []int) {
	t.Helper()
	list, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	ranks := map[int]int{}
	for _, file := range list {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) < 2 || fields[1] != strconv.Itoa(parent) || fields[0] == "Z" {
			continue
		}
		environ, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "environ"))
		for v := range bytes.SplitSeq(environ, []byte{0}) {
			name, value, _ := strings.Cut(string(v), "=")
			if name != "RANK" && name != "OMPI_COMM_WORLD_RANK" {
				continue
			}
			if rank, err := strconv.Atoi(value); err == nil {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
				ranks[pid] = rank
				pids = append(pids, pid)
				break
			}
		}
	}
	slices.SortFunc(pids, func(a, b int) int { return ranks[a] - ranks[b] })
	return pids
}
