package llama

import (
	"errors"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
)

// TestBatch has sequences join and leave at random, and compares what each is given with what a model of its own gives. Where
// the last bits of sums differ, so may integers of 8 bits.
func TestBatch(t *testing.T) {
	for _, dir := range checkpoints(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) { checkBatch(t, opened(t, dir), graph.F32, 1e-4) })
	}
	t.Run("caches of 8 bits", func(t *testing.T) { checkBatch(t, opened(t, "testdata/tiny"), graph.I8, 2e-2) })
}

func checkBatch(t *testing.T, c *Checkpoint, cache graph.DType, bound float64) {
	const most = 70
	limit := min(most, c.Config.Context)
	b, err := NewBatch(c, BatchOptions{Slots: 3, Tokens: limit, Pages: 14, Cache: cache})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	alone := modelOf(t, c, Options{Capacity: limit, Cache: cache})
	r := rand.New(rand.NewPCG(5, 6))
	same := func(what string, got []float32, tokens []int) {
		t.Helper()
		if err := alone.Truncate(0); err != nil {
			t.Fatal(err)
		}
		want, err := alone.Append(tokens)
		if err != nil {
			t.Fatal(err)
		}
		most, apart := 1.0, 0.0
		for i, w := range want {
			most, apart = max(most, math.Abs(float64(w))), max(apart, math.Abs(float64(got[i]-w)))
		}
		if len(got) != len(want) || !(apart <= bound*most) {
			t.Errorf("%s of %d tokens: logits are %g apart, of up to %g", what, len(tokens), apart, most)
		}
	}
	type running struct {
		s      *Sequence
		tokens []int
	}
	var list []*running
	full, longest := 0, 0
	for range 60 {
		switch {
		case r.IntN(3) == 0 || len(list) == 0:
			prompt := make([]int, 1+r.IntN(limit-3))
			for i := range prompt {
				prompt[i] = r.IntN(c.Config.Vocabulary)
			}
			s, logits, err := b.Join(prompt)
			if errors.Is(err, ErrNoRoom) {
				full++
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			same("a prompt", logits, prompt)
			list = append(list, &running{s, prompt})
		case r.IntN(6) == 0:
			i := r.IntN(len(list))
			list[i].s.Leave()
			list[i].s.Leave() // does nothing
			if list[i].s.Feed(1) == nil {
				t.Error("a sequence that has left is fed")
			}
			list = slices.Delete(list, i, i+1)
		}
		var fed []*running
		for _, x := range list {
			if x.s.Len() == limit || r.IntN(4) == 0 { // waits
				continue
			}
			token := r.IntN(c.Config.Vocabulary)
			if err := x.s.Feed(token); errors.Is(err, ErrNoRoom) {
				full++
				continue
			} else if err != nil {
				t.Fatal(err)
			}
			x.tokens = append(slices.Clip(x.tokens), token)
			fed = append(fed, x)
		}
		if len(fed) == 0 {
			continue
		}
		if err := b.Step(); err != nil {
			t.Fatal(err)
		}
		for _, x := range fed {
			same("a sequence", x.s.Logits(), x.tokens)
			longest = max(longest, x.s.Len())
		}
	}
	if full == 0 || longest < limit-10 {
		t.Errorf("%d times there was no room, and the longest sequence had %d tokens: the test sees too little", full, longest)
	}
}

func TestBatchErrors(t *testing.T) {
	c := opened(t, "testdata/tiny")
	for _, o := range []BatchOptions{{}, {Slots: 1, Tokens: -1}, {Slots: 1, Pages: 3}, {Slots: 1 << 20}} {
		if _, err := NewBatch(c, o); err == nil {
			t.Errorf("a batch with %+v", o)
		}
	}
	b, err := NewBatch(c, BatchOptions{Slots: 1, Tokens: 20})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for want, prompt := range map[string][]int{"no tokens": nil, "room for 20": make([]int, 21), "outside": {1, 5000}} {
		if _, _, err := b.Join(prompt); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	if b.Step() == nil {
		t.Error("a step of nothing")
	}
	s, _, err := b.Join(make([]int, 20))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Feed(1); err == nil || !strings.Contains(err.Error(), "is full") {
		t.Errorf("error %v", err)
	}
	if _, _, err := b.Join([]int{1}); err != ErrNoRoom {
		t.Errorf("a second sequence in one slot: %v", err)
	}
	s.Leave()
	if s, _, err = b.Join([]int{1, 2}); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(10, func() {
		if err := errors.Join(s.Feed(3), b.Step()); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("a step allocates %v times", n)
	}
}

// Two requests share a batch. The second joins when the first has two tokens more.
func ExampleBatch() {
	c, err := Open("testdata/tiny")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	b, err := NewBatch(c, BatchOptions{Slots: 2})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	greedy, err := NewSampler(0, 0, 1, 0)
	if err != nil {
		log.Fatal(err)
	}
	join := func(prompt string) (*Sequence, int) {
		tokens, err := c.Tokenizer.Encode(prompt)
		if err != nil {
			log.Fatal(err)
		}
		s, logits, err := b.Join(tokens)
		if err != nil {
			log.Fatal(err)
		}
		return s, greedy.Pick(logits)
	}
	next := map[*Sequence]int{}
	first, token := join("Catherine")
	next[first] = token
	var second *Sequence
	for step := range 5 {
		if step == 2 {
			second, token = join("the house")
			next[second] = token
		}
		for s, token := range next {
			if err := s.Feed(token); err != nil {
				log.Fatal(err)
			}
		}
		if err := b.Step(); err != nil {
			log.Fatal(err)
		}
		for s := range next {
			next[s] = greedy.Pick(s.Logits())
		}
	}
	fmt.Println(first.Len()-second.Len() > 0, len(next))
	// Output: true 2
}
