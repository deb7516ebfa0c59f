package loader

import (
	"math"
	"slices"
	"testing"
)

func order(n int64, seed, epoch uint64) []int64 {
	p := newPermutation(n, seed, epoch)
	list := make([]int64, n)
	for i := range list {
		list[i] = p.at(int64(i))
	}
	return list
}

func TestPermutationHasEachNumberOnce(t *testing.T) {
	for _, n := range []int64{1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1000, 4096, 4097} {
		for seed := range uint64(3) {
			list := slices.Sorted(slices.Values(order(n, seed, seed*7)))
			for i, v := range list {
				if v != int64(i) {
					t.Fatalf("n=%d seed=%d: %d stands where %d is wanted", n, seed, v, i)
				}
			}
		}
	}
}

// TestPermutationIsFixed: an order must not change from one version to the next, or old checkpoints would go on with
// other batches.
func TestPermutationIsFixed(t *testing.T) {
	if got, want := order(10, 42, 1), []int64{3, 6, 4, 9, 2, 5, 7, 1, 0, 8}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	const n = 1 << 40
	p := newPermutation(n, 1<<63, 1<<33)
	for i, want := range map[int64]int64{0: 463348394591, n - 1: 242729111768} {
		if got := p.at(i); got != want {
			t.Errorf("place %d of %d is %d, want %d", i, int64(n), got, want)
		}
	}
}

func TestPermutationsDiffer(t *testing.T) {
	a := order(1000, 1, 0)
	for _, b := range [][]int64{order(1000, 2, 0), order(1000, 1, 1), order(1000, 1, 1<<32), order(1000, 1<<32, 0)} {
		same := 0
		for i := range a {
			if a[i] == b[i] {
				same++
			}
		}
		if same > 10 { // 1 is expected
			t.Errorf("%d of 1000 places are the same", same)
		}
	}
}

// TestPermutationIsUniform counts how often each number is at each position, over many epochs, and compares with a
// uniform distribution by χ²: (n−1)² degrees of freedom, so that it is within six deviations √(2·(n−1)²) of that.
func TestPermutationIsUniform(t *testing.T) {
	const epochs = 4000
	for n := int64(2); n <= 17; n++ {
		counts := make([]float64, n*n)
		for e := range uint64(epochs) {
			for i, v := range order(n, 5, e) {
				counts[int64(i)*n+v]++
			}
		}
		want := float64(epochs) / float64(n)
		chi := 0.0
		for _, c := range counts {
			chi += (c - want) * (c - want) / want
		}
		free := float64((n - 1) * (n - 1))
		if far := math.Abs(chi-free) / math.Sqrt(2*free); far > 6 {
			t.Errorf("n=%d: χ² is %.1f at %.0f degrees of freedom", n, chi, free)
		}
	}
}

func BenchmarkPermutation(b *testing.B) {
	p := newPermutation(1_000_003, 1, 1)
	for i := range b.N {
		p.at(int64(i % 1_000_003))
	}
}
