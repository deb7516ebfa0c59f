package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/kernels/group"
)

// TestBenchGroup runs the works of a group, small, on emulated GPUs: what two compute is compared with what one does.
func TestBenchGroup(t *testing.T) {
	clitest.Emulated(t)
	const n = 2
	var all sync.WaitGroup
	var out bytes.Buffer
	errs := make([]error, n)
	for r, transport := range group.Local(n, 0) {
		all.Go(func() {
			to := &bytes.Buffer{}
			e := &cli.Env{Ctx: t.Context(), Out: bufio.NewWriter(to), Stderr: to}
			x := groupBench{group: group.New(transport), target: "cuda"}
			errs[r] = errors.Join(x.run(e, nil, true, true), e.Out.Flush())
			if r == 0 {
				out = *to
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if want := groupWorks(n, true); len(lines) != len(want) {
		t.Fatalf("%d lines of %d works:\n%s", len(lines), len(want), &out)
	}
	for _, text := range lines {
		var l groupLine
		if err := json.Unmarshal([]byte(text), &l); err != nil || l.Participants != n || !(l.AloneMS > 0 && l.MS > 0 && l.Scaling > 0) ||
			l.Sent == 0 {
			t.Errorf("%v: %s", err, text)
		}
	}
}

// TestBenchGroupRefused: a group is joined where a launcher has started it.
func TestBenchGroupRefused(t *testing.T) {
	for _, name := range []string{"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"} {
		t.Setenv(name, "")
	}
	clitest.Bad(t, clitest.FusecRun(t, "bench", "group"), cli.ExitFailure, "start it with fusec launch")
}
