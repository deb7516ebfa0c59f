package training

import "testing"

func TestBlockOf(t *testing.T) {
	for tokens, want := range map[int]int{1: 1, 5: 5, 64: 64, 65: 33, 128: 64, 129: 43, 1000: 63} {
		if got := blockOf(tokens); got != want {
			t.Errorf("a prompt of %d tokens is taken in blocks of %d, not %d", tokens, got, want)
		}
	}
}
