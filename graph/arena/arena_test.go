package arena

import (
	"math/rand/v2"
	"testing"
)

func TestAlign(t *testing.T) {
	for n, want := range map[int64]int64{0: 0, 1: 64, 63: 64, 64: 64, 65: 128} {
		if got := Align(n); got != want {
			t.Errorf("%d bytes take %d, want %d", n, got, want)
		}
	}
}

func TestPeak(t *testing.T) {
	tests := []struct {
		values []Value
		steps  int
		bytes  int64
		at     int
	}{
		{nil, 0, 0, 0},
		{[]Value{{Bytes: 64}}, 1, 64, 0},
		{[]Value{{Bytes: 64, Last: 1}, {Bytes: 65, First: 1, Last: 2}, {Bytes: 128, First: 2, Last: 2}}, 3, 256, 2},
		{[]Value{{Bytes: 64, Last: 1}, {Bytes: 64, First: 2, Last: 3}}, 4, 64, 0},
	}
	for _, tt := range tests {
		if bytes, at := Peak(tt.values, tt.steps); bytes != tt.bytes || at != tt.at {
			t.Errorf("%v: %d bytes at %d, want %d at %d", tt.values, bytes, at, tt.bytes, tt.at)
		}
	}
}

// TestPlace places random lifetimes: no two that meet share memory, the arena holds what is in use at once, and it is
// no larger than all values side by side.
func TestPlace(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		const steps = 40
		values := make([]Value, r.IntN(40))
		var sum int64
		for i := range values {
			first := r.IntN(steps)
			values[i] = Value{Bytes: r.Int64N(1000), First: first, Last: min(first+r.IntN(8), steps-1)}
			sum += Align(values[i].Bytes)
		}
		bytes := Place(values)
		peak, _ := Peak(values, steps)
		if bytes < peak || bytes > sum {
			t.Fatalf("seed %d: an arena of %d bytes for %d at once and %d in all", seed, bytes, peak, sum)
		}
		for i, a := range values {
			if a.Offset%alignment != 0 || a.Offset < 0 || a.Offset+a.Bytes > bytes {
				t.Fatalf("seed %d: value %d of %d bytes at %d of %d", seed, i, a.Bytes, a.Offset, bytes)
			}
			for _, b := range values[:i] {
				meet := a.First <= b.Last && b.First <= a.Last
				if meet && a.Offset < b.Offset+b.Bytes && b.Offset < a.Offset+a.Bytes {
					t.Fatalf("seed %d: %v and %v share memory", seed, a, b)
				}
			}
		}
	}
}
