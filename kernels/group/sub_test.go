package group_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"fusec/kernels/group"
)

// TestSub has the participants of a group speak with those of its rows and columns, in turn.
func TestSub(t *testing.T) {
	list := group.Local(4, time.Minute)
	var all sync.WaitGroup
	for rank, transport := range list {
		all.Go(func() {
			g := group.New(transport)
			row, column := []int{rank / 2 * 2, rank/2*2 + 1}, []int{rank % 2, rank%2 + 2}
			for _, ranks := range [][]int{row, column, row} {
				of, err := g.Sub(ranks)
				if err != nil {
					t.Error(err)
					return
				}
				got := make([]byte, 2)
				if err := of.All().Gather([]byte{byte(rank)}, got); err != nil {
					t.Error(err)
				}
				if of.Size() != 2 || ranks[of.Rank()] != rank || int(got[0]) != ranks[0] || int(got[1]) != ranks[1] {
					t.Errorf("participant %d, as %d of %v, has %v", rank, of.Rank(), ranks, got)
				}
				if !of.Threads() {
					t.Error("the participants are not of this process")
				}
				if err := errors.Join(of.Failed(), of.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	g := group.New(list[0])
	if _, err := g.Sub([]int{1, 2}); err == nil {
		t.Error("a part without this participant is made")
	}
	of, err := g.Sub([]int{0, 3})
	if err != nil {
		t.Fatal(err)
	}
	other, _ := group.New(list[3]).Sub([]int{0, 3})
	other.Abort(errors.New("broken"))
	var lost *group.LostError
	if err := of.All().Gather([]byte{1}, make([]byte, 2)); !errors.As(err, &lost) || lost.Rank != 3 || of.Failed() == nil {
		t.Errorf("error %v, want one of participant 3", err)
	}
}
