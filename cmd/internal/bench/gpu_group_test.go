package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/kernels/group"
	"fusec/lowering"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/emulator"
	"fusec/lowering/cuda/pool"
)

// benchGroup runs the works of a group, small, and gives what participant 0 prints and the error of each.
func benchGroup(t *testing.T, words []string, asJSON bool, all ...groupBench) (string, []error) {
	t.Helper()
	var wait sync.WaitGroup
	out, errs := make([]bytes.Buffer, len(all)), make([]error, len(all))
	for r, transport := range group.Local(len(all), 10*time.Minute) {
		wait.Go(func() {
			e := &cli.Env{Ctx: t.Context(), Out: bufio.NewWriter(&out[r]), Stderr: &out[r]}
			x := all[r]
			x.group, x.target = group.New(transport), "cuda"
			if x.release == nil {
				x.release = cuda.Release
			}
			errs[r] = errors.Join(x.run(e, words, true, asJSON), e.Out.Flush())
		})
	}
	wait.Wait()
	return out[0].String(), errs
}

// TestBenchGroup runs the works of a group, small, on emulated GPUs: what two compute is compared with what one does.
func TestBenchGroup(t *testing.T) {
	clitest.Emulated(t)
	const n = 2
	out, errs := benchGroup(t, nil, true, make([]groupBench, n)...)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if want := groupWorks(n, true); len(lines) != len(want) {
		t.Fatalf("%d lines of %d works:\n%s", len(lines), len(want), out)
	}
	for _, text := range lines {
		var l groupLine
		if err := json.Unmarshal([]byte(text), &l); err != nil || l.Participants != n || !(l.AloneMS > 0 && l.MS > 0 && l.Scaling > 0) ||
			l.Sent == 0 {
			t.Errorf("%v: %s", err, text)
		}
	}
}

// limited is an emulated GPU of a participant. Programs of one alone take memory from another pool than those in groups, as they do
// on a GPU, and closed programs leave it there.
type limited struct {
	pools    [2]*pool.Pool
	compiler driver.Compiler
	opened   int
}

// held is a GPU that stays open.
type held struct{ *pool.Pool }

func (held) Close() error { return nil }

func newLimited(t *testing.T, memory int64) *limited {
	t.Helper()
	g, c, err := emulator.Open(emulator.Options{Memory: memory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return &limited{pools: [2]*pool.Pool{pool.New(g), pool.New(g)}, compiler: c}
}

func (l *limited) bench() groupBench {
	return groupBench{release: l.release, options: []lowering.TargetOption{cuda.Driver(func(int) (driver.GPU, driver.Compiler, error) {
		l.opened++
		return held{l.pools[(l.opened-1)%2]}, l.compiler, nil
	})}}
}

func (l *limited) release() error { return errors.Join(l.pools[0].Trim(), l.pools[1].Trim()) }

func benches(all []*limited) (list []groupBench) {
	for _, l := range all {
		list = append(list, l.bench())
	}
	return list
}

// TestBenchGroupMemory runs a fully sharded step where some participants, or all, have too little memory for the whole, and where
// they have enough for it, but not beside what it has left.
func TestBenchGroupMemory(t *testing.T) {
	words := []string{"fully sharded training step bf16 autocast L1"}
	var ample []*limited
	for range 4 {
		ample = append(ample, newLimited(t, 1<<30))
	}
	if _, errs := benchGroup(t, words, true, benches(ample)...); errors.Join(errs...) != nil {
		t.Fatal(errs)
	}
	whole, part := ample[0].pools[0].Device().PeakHeld, ample[0].pools[1].Device().PeakHeld
	if part >= whole {
		t.Fatalf("a part takes %d bytes, and the whole %d", part, whole)
	}
	for _, c := range []struct {
		name   string
		memory [4]int64
		alone  bool
	}{
		{"two have too little", [4]int64{part, 1 << 30, 1 << 30, part}, false},
		{"all have enough for one after the other", [4]int64{whole, whole, whole, whole}, true},
	} {
		var all []*limited
		for _, bytes := range c.memory {
			all = append(all, newLimited(t, bytes))
		}
		out, errs := benchGroup(t, words, true, benches(all)...)
		var l groupLine
		if err := errors.Join(append(errs, json.Unmarshal([]byte(out), &l))...); err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if l.AloneMS > 0 != c.alone || l.PlanMS > 0 != c.alone || l.MS <= 0 || l.Sent == 0 {
			t.Errorf("%s: %s", c.name, out)
		}
	}
	text, errs := benchGroup(t, words, false, benches([]*limited{newLimited(t, part), ample[1], ample[2], ample[3]})...)
	if err := errors.Join(errs...); err != nil || !strings.Contains(text, "no memory") || strings.Count(text, " –") != 3 {
		t.Errorf("%v:\n%s", err, text)
	}
	// Too little for both is an error of its participant, and ends the others.
	_, errs = benchGroup(t, words, true, newLimited(t, 1<<30).bench(), newLimited(t, part/4).bench())
	if lost := new(group.LostError); !errors.Is(errs[1], driver.ErrOutOfMemory) || !errors.As(errs[0], &lost) || lost.Rank != 1 {
		t.Errorf("without memory: %v", errs)
	}
}

// TestBenchGroupRefused: a group is joined where a launcher has started it.
func TestBenchGroupRefused(t *testing.T) {
	for _, name := range []string{"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"} {
		t.Setenv(name, "")
	}
	clitest.Bad(t, clitest.FusecRun(t, "bench", "group"), cli.ExitFailure, "start it with fusec launch")
}
