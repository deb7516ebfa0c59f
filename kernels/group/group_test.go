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
	for _, n := range []int{1, 2, 3, 5, 8} {
		var all sync.WaitGroup
		errs := make([]error, n)
		for r, transport := range group.Local(n, 5*time.Minute) {
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

// TestSentBefore gets what a participant has sent before it fails, and its error from the next exchange.
func TestSentBefore(t *testing.T) {
	stop := errors.New("out of cheese")
	for range 20 { // a select between two channels that are ready takes either
		transports := group.Local(2, time.Minute)
		if err := transports[1].Exchange([]group.Message{{Peer: 0, Bytes: []byte{7}}}, nil); err != nil {
			t.Fatal(err)
		}
		transports[1].Abort(stop)
		got := []byte{0}
		message := []group.Message{{Peer: 1, Bytes: got}}
		if err := transports[0].Exchange(message, message); err != nil || got[0] != 7 {
			t.Fatalf("received %d, error %v", got[0], err)
		}
		if err := transports[0].Exchange(message, message); !errors.Is(err, stop) {
			t.Fatalf("the next exchange: error %v", err)
		}
	}
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

// TestRenew makes transports usable again, without what a participant had sent before another failed.
func TestRenew(t *testing.T) {
	transports := group.Local(2, 5*time.Minute)
	groups := []*group.Group{group.New(transports[0]), group.New(transports[1])}
	for round := range byte(3) {
		if err := transports[0].Exchange([]group.Message{{Peer: 1, Bytes: []byte{99}}}, nil); err != nil {
			t.Fatal(err)
		}
		groups[1].Abort(errors.New("it fails"))
		if err := groups[0].All().Gather([]byte{1}, make([]byte, 2)); err == nil || groups[0].Failed() == nil {
			t.Error("an error is not known")
		}
		group.Renew(transports)
		var all sync.WaitGroup
		for r, g := range groups {
			all.Go(func() {
				got := make([]byte, 2)
				err := g.All().Gather([]byte{round + byte(r)}, got)
				if err != nil || got[0] != round || got[1] != round+1 || g.Failed() != nil {
					t.Errorf("participant %d, round %d: %v, %v, %v", r, round, got, err, g.Failed())
				}
			})
		}
		all.Wait()
	}
}
