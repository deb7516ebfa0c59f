package arena

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
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

// TestPlaceIsGreedy compares Place, on enough values for many blocks, with the rule as its source has it: every value in
// turn looks at all that are placed.
func TestPlaceIsGreedy(t *testing.T) {
	for seed := range uint64(20) {
		values := lifetimes(rand.New(rand.NewPCG(seed, 2)), 1000)
		want := slices.Clone(values)
		bytes, wantBytes := Place(values), placeSimply(want)
		if bytes != wantBytes {
			t.Errorf("seed %d: an arena of %d bytes, want %d", seed, bytes, wantBytes)
		}
		for i, v := range values {
			if v.Offset != want[i].Offset {
				t.Fatalf("seed %d: %v at %d, want %d", seed, v, v.Offset, want[i].Offset)
			}
		}
	}
}

// placeSimply is Place in the square of its time.
func placeSimply(values []Value) (bytes int64) {
	var done []*Value // by offset
	order := make([]*Value, len(values))
	for i := range values {
		order[i] = &values[i]
	}
	slices.SortStableFunc(order, func(a, b *Value) int { return cmp.Compare(b.Bytes, a.Bytes) })
	for _, v := range order {
		for _, q := range done {
			if q.First > v.Last || q.Last < v.First {
				continue
			}
			if q.Offset >= v.Offset+Align(v.Bytes) {
				break
			}
			v.Offset = max(v.Offset, q.Offset+Align(q.Bytes))
		}
		bytes = max(bytes, v.Offset+Align(v.Bytes))
		done = append(done, v)
		slices.SortStableFunc(done, func(a, b *Value) int { return cmp.Compare(a.Offset, b.Offset) })
	}
	return bytes
}

// lifetimes is values as a training step has them: activations that the backward pass reads in reverse, and values that
// the next steps read, of few sizes, some of them empty.
func lifetimes(r *rand.Rand, n int) []Value {
	values := make([]Value, n)
	for i := range values {
		v := Value{Bytes: int64(r.IntN(6)) * 100, First: i, Last: i + 1 + r.IntN(3)}
		if i < n/2 && r.IntN(2) == 0 {
			v.Last = n - i
		}
		values[i] = v
	}
	return values
}

func BenchmarkPlace(b *testing.B) {
	for _, n := range []int{1000, 10_000, 100_000} {
		values := lifetimes(rand.New(rand.NewPCG(1, 2)), n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				Place(values)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/value")
		})
	}
}
