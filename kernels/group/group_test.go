package group_test

import (
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"fusec/graph"
	"fusec/kernels/group"
	"fusec/kernels/group/grouptest"
)

// TestLocal is the conformance suite on goroutines.
func TestLocal(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5} {
		var all sync.WaitGroup
		errs := make([]error, n)
		for r, transport := range group.Local(n, 10*time.Second) {
			all.Go(func() { errs[r] = grouptest.Conforms(group.New(transport)) })
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Errorf("%d participants: %v", n, err)
		}
	}
}

// TestLate takes a participant that does not come for lost, and names it.
func TestLate(t *testing.T) {
	transports := group.Local(2, 50*time.Millisecond)
	g := group.New(transports[0])
	err := g.All().Gather([]byte{1}, make([]byte, 2))
	var lost *group.LostError
	if !errors.As(err, &lost) || lost.Rank != 1 || !strings.Contains(err.Error(), "participant 1 is lost: it has not come") {
		t.Errorf("error %v", err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if err := g.All().Gather([]byte{1}, make([]byte, 2)); err == nil {
		t.Error("a closed group is used")
	}
}

// TestAbort ends the others' waiting at once.
func TestAbort(t *testing.T) {
	transports := group.Local(3, time.Minute)
	stop := errors.New("out of cheese")
	var all sync.WaitGroup
	for r := range 2 {
		all.Go(func() {
			err := group.New(transports[r]).All().Reduce(graph.Sum, graph.F32, make([]byte, 12), make([]byte, 12))
			if !errors.Is(err, stop) || !strings.Contains(err.Error(), "participant 2") {
				t.Errorf("participant %d: %v", r, err)
			}
		})
	}
	time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
	group.New(transports[2]).Abort(stop)
	all.Wait()
}

func TestTeamRefused(t *testing.T) {
	g := group.New(group.Local(2, 0)[0])
	for _, ranks := range [][]int{{1}, {0, 0}, {0, 2}} {
		if _, err := g.Team(ranks); err == nil {
			t.Errorf("a team of %v is accepted", ranks)
		}
	}
	if err := group.Combine(graph.Sum, graph.Bool, [][]byte{{1}}, []byte{0}); err == nil {
		t.Error("bools are added")
	}
	if err := group.Combine(graph.Sum, graph.F32, nil, nil); err == nil {
		t.Error("nothing is added")
	}
}
