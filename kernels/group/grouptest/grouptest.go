// Package grouptest is what every transport of package group has to pass.
package grouptest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"

	"fusec/graph"
	"fusec/kernels/group"
)

// Conforms makes collective operations of all kinds and many sizes and compares them with what they are by definition. All
// participants call it.
func Conforms(g *group.Group) error {
	n := g.Size()
	teams := []*group.Team{g.All()}
	var even []int
	for r := 0; r < n; r += 2 {
		even = append(even, r)
	}
	if g.Rank()%2 == 0 {
		team, err := g.Team(even)
		if err != nil {
			return err
		}
		teams = append(teams, team)
	}
	for _, size := range []int{0, 1, 3, 64, 1000, 1 << 18} {
		for i, team := range teams {
			ranks := even
			if i == 0 {
				ranks = nil
				for r := range n {
					ranks = append(ranks, r)
				}
			}
			if err := conforms(team, ranks, size); err != nil {
				return fmt.Errorf("participant %d of %d, %d elements, team %d: %w", g.Rank(), n, size, i, err)
			}
		}
	}
	for _, team := range teams {
		if err := Collectives(team.Size(), team.Place(), team.Collective); err != nil {
			return err
		}
	}
	return nil
}

// made are the values that participants of this process have.
var made sync.Map

// values are a participant's, which all know and nobody changes.
func values(rank, size int) *graph.Tensor {
	key := [2]int{rank, size}
	if t, ok := made.Load(key); ok {
		return t.(*graph.Tensor)
	}
	r := rand.New(rand.NewPCG(uint64(rank), uint64(size)))
	t := graph.NewTensor(graph.TypeOf(graph.F32, size))
	for i := range size {
		t.SetFloat(i, r.NormFloat64())
	}
	made.Store(key, t)
	return t
}

func conforms(team *group.Team, ranks []int, size int) error {
	n, own := team.Size(), ranks[team.Place()]
	var terms [][]byte
	for _, r := range ranks {
		terms = append(terms, values(r, size).Bytes())
	}
	x := values(own, size).Bytes()
	joined := make([]byte, n*len(x))
	if err := team.Gather(x, joined); err != nil {
		return err
	}
	if !bytes.Equal(joined, bytes.Join(terms, nil)) {
		return fmt.Errorf("gather joins something else")
	}
	for _, f := range []graph.ReduceFn{graph.Sum, graph.Mean, graph.MaxOf, graph.MinOf} {
		want, got := graph.NewTensor(graph.TypeOf(graph.F32, size)).Bytes(), graph.NewTensor(graph.TypeOf(graph.F32, size)).Bytes()
		if err := group.Combine(f, graph.F32, terms, want); err != nil {
			return err
		}
		if err := team.Reduce(f, graph.F32, x, got); err != nil {
			return err
		}
		if !bytes.Equal(got, want) { // the same bits: terms are added in the order of the participants
			return fmt.Errorf("%v is something else", f)
		}
	}
	send, receive := make([][]byte, n), make([][]byte, n)
	for i := range n {
		send[i] = values(1000*own+ranks[i], size+i).Bytes() // of a length that depends on the receiver
		receive[i] = make([]byte, 4*(size+team.Place()))
	}
	if err := team.Swap(send, receive); err != nil {
		return err
	}
	for i := range n {
		if !bytes.Equal(receive[i], values(1000*ranks[i]+own, size+team.Place()).Bytes()) {
			return fmt.Errorf("swap receives something else of %d", ranks[i])
		}
	}
	for root := range n {
		y := bytes.Clone(x)
		if err := team.Broadcast(y, root); err != nil {
			return err
		}
		if !bytes.Equal(y, terms[root]) {
			return fmt.Errorf("broadcast of %d gives something else", root)
		}
	}
	return nil
}
