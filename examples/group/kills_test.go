//go:build linux

package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// steps and kills of TestKills, by the number of participants.
const killSteps = 40

var kills = map[int]int{2: 20, 4: 5, 8: 3}

// TestKills kills participants at random moments after they have done their first step, and on processors also some while they
// start: each time all end with an error that names the one, within 30 s, and training goes on to the same bits. With the
// environment variable FUSEC_TEST_TARGET each of two participants has a device of that target, such as cuda. FUSEC_COMMAND is the
// fusec that starts them, which is built otherwise.
func TestKills(t *testing.T) {
	if os.Getenv("FUSEC_LONG") == "" {
		t.Skip("it takes minutes: .ci/long kills")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	fusec := os.Getenv("FUSEC_COMMAND")
	if fusec == "" {
		fusec = filepath.Join(t.TempDir(), "fusec")
		if out, err := exec.Command("go", "build", "-o", fusec, "fusec/cmd/fusec").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	args, times, starting := []string{"--steps", fmt.Sprint(killSteps), "--zero", "1"}, kills, 4
	launches := map[string]func(n int, args ...string) *exec.Cmd{
		"mpirun": func(n int, args ...string) *exec.Cmd { return command(t, n, args...) },
		"fusec launch": func(n int, args ...string) *exec.Cmd {
			c := exec.Command(fusec, append([]string{"launch", "--devices", fmt.Sprint(n), "--", self}, args...)...)
			c.Env = append(os.Environ(), "FUSEC_GROUP_TEST=1")
			return c
		},
	}
	if target := os.Getenv("FUSEC_TEST_TARGET"); target != "" {
		args, times, starting = append(args, "--target", target), map[int]int{2: kills[2]}, 0
		delete(launches, "mpirun")
	}
	for name, launch := range launches {
		for n, times := range times {
			t.Run(fmt.Sprintf("%s, %d participants", name, n), func(t *testing.T) {
				start := func(folder string) *exec.Cmd { return launch(n, append(args, "--folder", folder)...) }
				k := killer{t: t, n: n, start: start, random: rand.New(rand.NewPCG(uint64(n), 1))}
				k.whole()
				for range times {
					k.kill(true)
				}
				for range starting {
					k.kill(false)
				}
				t.Logf("%d kills, %d of them before the first step; the slowest run ended %v after it; %d launchers had to be ended, too",
					times+starting, k.early, k.slowest, k.lingered)
				if k.early > starting {
					t.Errorf("%d kills came before the first step, want at most %d", k.early, starting)
				}
			})
		}
	}
}

// killer kills participants of runs.
type killer struct {
	t       *testing.T
	n       int
	start   func(folder string) *exec.Cmd
	random  *rand.Rand
	first   time.Duration // from when the participants of a run without a kill are there to their first step
	rest    time.Duration // from then to its end
	weights string        // at the end
	slowest time.Duration
	early   int // kills before the first step
	// runs of which the launcher had to be ended, after all participants had
	lingered int
}

// running is a run that has been started.
type running struct {
	cmd  *exec.Cmd
	said said
	pids []int // in the order of the participants
	done chan error
}

// said is what a run says.
type said struct {
	mu   sync.Mutex
	b    bytes.Buffer
	step chan struct{} // closed when it has told of a step, which all participants have done
}

// Write implements io.Writer.
func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.worked()
	n, err := s.b.Write(b)
	if !before && s.worked() {
		close(s.step)
	}
	return n, err
}

func (s *said) worked() bool { return stepLine.Match(s.b.Bytes()) }

func (s *said) bytes() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.b.Bytes())
}

// begin starts a run, and returns when all its participants are there, or when it has ended.
func (k *killer) begin(folder string) *running {
	r := &running{cmd: k.start(folder), said: said{step: make(chan struct{})}, done: make(chan error, 1)}
	r.cmd.Stdout, r.cmd.Stderr = &r.said, &r.said
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := r.cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	go func() { r.done <- r.cmd.Wait() }()
	for deadline := time.Now().Add(30 * time.Second); len(r.pids) < k.n; r.pids = children(k.t, r.cmd.Process.Pid) {
		select {
		case err := <-r.done: // sooner than all were seen
			r.done <- err
			return r
		case <-time.After(time.Millisecond):
		}
		if time.Now().After(deadline) {
			k.t.Fatalf("%d participants after 30 s:\n%s", len(r.pids), r.said.bytes())
		}
	}
	return r
}

// lingers is how long a launcher may outlive all participants.
const lingers = 20 * time.Second

// end waits until a run ends. The mpirun of Open MPI 4.1 with PMIx 4.2 may never end: where a participant dies while it connects,
// it says so, ends the others, and then waits for a lock in memory that it has freed. It is ended then.
func (k *killer) end(r *running) error {
	var alone, all time.Duration // for how long the launcher is, and the run goes on; not while this process stands still
	for last := time.Now(); ; {
		select {
		case err := <-r.done:
			return err
		case <-time.After(10 * time.Millisecond):
		}
		left := slices.DeleteFunc(slices.Clone(r.pids), func(pid int) bool { return !runs(pid) })
		passed := min(time.Since(last), time.Second)
		last, all, alone = time.Now(), all+passed, alone+passed
		if len(left) > 0 {
			alone = 0
		}
		switch {
		case len(left) == 0 && alone > lingers:
			k.lingered++
		case all < 2*time.Minute:
			continue
		}
		for _, pid := range append(left, r.cmd.Process.Pid) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		err := <-r.done
		if len(left) > 0 {
			k.t.Fatalf("the run does not end; %v of %v are left:\n%s", left, r.pids, r.said.bytes())
		}
		return err
	}
}

// runs reports whether a process has not ended.
func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" Z"))
}

// works waits until all participants have done a step, or the run has ended.
func (r *running) works() {
	select {
	case <-r.said.step:
	case err := <-r.done:
		r.done <- err
	}
}

// whole does a run without a kill.
func (k *killer) whole() {
	r := k.begin(k.t.TempDir())
	start := time.Now()
	r.works()
	k.first = time.Since(start)
	if err := k.end(r); err != nil {
		k.t.Fatalf("%v:\n%s", err, r.said.bytes())
	}
	k.rest = time.Since(start) - k.first
	_, hashes := steps(k.t, r.said.bytes())
	if len(hashes) != killSteps {
		k.t.Fatalf("%d steps", len(hashes))
	}
	k.weights = hashes[killSteps-1]
}

// kill kills a participant of a run at a random moment, when all work or while they start, and starts the run again.
func (k *killer) kill(work bool) {
	folder := k.t.TempDir()
	r := k.begin(folder)
	if len(r.pids) < k.n {
		if err := k.end(r); err != nil {
			k.t.Fatalf("without a kill: %v:\n%s", err, r.said.bytes())
		}
		k.kill(work)
		return
	}
	within := k.first
	if work {
		within = k.rest
		r.works()
	}
	moment, victim := time.Duration(k.random.Int64N(int64(within))), k.random.IntN(k.n)
	time.Sleep(moment)
	if err := syscall.Kill(r.pids[victim], syscall.SIGKILL); err != nil {
		k.end(r)
		k.kill(work) // the run was faster than the one before
		return
	}
	start := time.Now()
	err := k.end(r)
	took := time.Since(start)
	out := r.said.bytes()
	_, before := steps(k.t, out)
	switch {
	case err == nil && len(before) == killSteps:
		k.kill(work) // it had ended
		return
	case err == nil:
		k.t.Fatalf("kill of participant %d after %v: the run ends without an error:\n%s", victim, moment, out)
	case took > 30*time.Second:
		k.t.Errorf("kill of participant %d after %v: it took %v until all had ended:\n%s", victim, moment, took, out)
	}
	if k.slowest = max(k.slowest, took); len(before) == 0 {
		k.early++
	}
	if !regexp.MustCompile(fmt.Sprintf(`participant %d\b|process rank %[1]d with PID`, victim)).Match(out) {
		k.t.Errorf("kill of participant %d after %v: it is not named:\n%s", victim, moment, out)
	}
	r = k.begin(folder)
	if err := k.end(r); err != nil {
		k.t.Fatalf("after the kill of participant %d after %v: %v\n%s", victim, moment, err, r.said.bytes())
	}
	_, rest := steps(k.t, r.said.bytes())
	if all := append(before, rest...); len(all) == 0 || all[len(all)-1] != k.weights {
		k.t.Errorf("kill of participant %d after %v, %d steps: %d more end at other weights than in one run", victim, moment, len(before),
			len(rest))
	}
}
