package graph_test

import (
	"math"
	"math/bits"
	"slices"
	"testing"

	"fusec/graph"
)

// The known answers are those of the kat_vectors file of the Random123 library, philox4x32 with 10 rounds.
func TestPhiloxKnownAnswers(t *testing.T) {
	const f = 0xffffffff
	for _, c := range []struct {
		ctr  [4]uint32
		key  [2]uint32
		want [4]uint32
	}{
		{want: [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{f, f, f, f}, [2]uint32{f, f}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		if got := graph.Philox4x32(c.ctr, c.key); got != c.want {
			t.Errorf("Philox4x32(%x, %x) = %x, want %x", c.ctr, c.key, got, c.want)
		}
	}
	if got, want := graph.Philox(0x299f31d0_a4093822, 1<<33+5),
		graph.Philox4x32([4]uint32{5, 2}, [2]uint32{0xa4093822, 0x299f31d0}); got != want {
		t.Errorf("Philox = %x, want %x", got, want)
	}
}

// The known answers of seven rounds are those of kat_vectors, philox4x32 with 7 rounds, for keys and counters of 64 bits.
func TestPhilox7KnownAnswers(t *testing.T) {
	if got, want := graph.Philox7(0, 0), [4]uint32{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}; got != want {
		t.Errorf("Philox7(0, 0) = %x, want %x", got, want)
	}
}

func TestRandomMoments(t *testing.T) {
	const n = 20000
	for _, c := range []struct {
		name       string
		draw       func(i uint64) float64
		mean, vari float64
		lo, hi     float64
	}{
		{"uniform", func(i uint64) float64 { return graph.RandomAt(graph.Uniform, -1, 3, 7, i) }, 1, 16. / 12, -1, 3},
		{"normal", func(i uint64) float64 { return graph.RandomAt(graph.Normal, 2, 3, 7, i) }, 2, 9, 2 - 18, 2 + 18},
		{"bernoulli", func(i uint64) float64 { return graph.RandomAt(graph.Bernoulli, 0.3, 0, 7, i) }, 0.3, 0.21, 0, 1},
		{"certain", func(i uint64) float64 { return graph.RandomAt(graph.Bernoulli, 1, 0, 7, i) }, 1, 0, 1, 1},
		{"impossible", func(i uint64) float64 { return graph.RandomAt(graph.Bernoulli, 0, 0, 7, i) }, 0, 0, 0, 0},
		{"dropout", func(i uint64) float64 {
			if graph.DropoutKeep(7, i, 0.25) {
				return 1
			}
			return 0
		}, 0.75, 0.1875, 0, 1},
	} {
		var sum, sq float64
		for i := range uint64(n) {
			v := c.draw(i)
			if v < c.lo || v > c.hi {
				t.Errorf("%s: %v is outside [%v,%v]", c.name, v, c.lo, c.hi)
			}
			sum += v
			sq += v * v
		}
		mean := sum / n
		vari := sq/n - mean*mean
		if math.Abs(mean-c.mean) > 4*math.Sqrt(c.vari/n)+1e-12 || math.Abs(vari-c.vari) > 0.05*c.vari+1e-9 {
			t.Errorf("%s: mean %v and variance %v, want %v and %v", c.name, mean, vari, c.mean, c.vari)
		}
	}
	if graph.DropoutKeep(1, 3, 0) != true {
		t.Error("probability 0 dropped an element")
	}
}

// TestDropoutIndependence holds that whether an element is kept tells nothing of the elements further on, of a row
// further on, or of another seed's: the correlation over n elements of independent draws has the deviation 1/√n. It
// also counts how often each of the 16 outcomes of four elements comes, by χ² with 15 degrees of freedom.
func TestDropoutIndependence(t *testing.T) {
	const n = 1 << 17
	for _, p := range []float64{0.1, 0.5, 0.9} {
		for _, seed := range []uint64{0, 1, 1 << 40} {
			draws := func(seed uint64) []float64 { // of mean 0 and deviation 1
				d := make([]float64, n)
				for i := range d {
					d[i] = -math.Sqrt((1 - p) / p)
					if graph.DropoutKeep(seed, uint64(i), p) {
						d[i] = math.Sqrt(p / (1 - p))
					}
				}
				return d
			}
			correlation := func(x, y []float64) (sum float64) {
				for i, v := range y {
					sum += v * x[i]
				}
				return sum / float64(len(y))
			}
			d := draws(seed)
			ones := slices.Repeat([]float64{1}, n)
			if c := correlation(d, ones); math.Abs(c) > 4.5/math.Sqrt(n) {
				t.Errorf("p %v, seed %d: the mean is %v deviations off", p, seed, c*math.Sqrt(n))
			}
			for _, lag := range []int{1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 31, 32, 33, 63, 64, 96, 100, 128, 1000, 1024, 4096} {
				if c := correlation(d, d[lag:]); math.Abs(c) > 4.5/math.Sqrt(float64(n-lag)) {
					t.Errorf("p %v, seed %d: elements %d apart have the correlation %v", p, seed, lag, c)
				}
			}
			for _, other := range []uint64{seed + 1, seed + 2, seed ^ 1<<32, seed ^ 1<<63} {
				if c := correlation(d, draws(other)); math.Abs(c) > 4.5/math.Sqrt(n) {
					t.Errorf("p %v: seeds %d and %d have the correlation %v", p, seed, other, c)
				}
			}
			var count [16]float64
			for i := 0; i < n; i += 4 {
				at := 0
				for _, v := range d[i : i+4] {
					at *= 2
					if v > 0 {
						at++
					}
				}
				count[at]++
			}
			var chi float64
			for at, c := range count {
				kept := float64(bits.OnesCount(uint(at)))
				want := n / 4 * math.Pow(1-p, kept) * math.Pow(p, 4-kept)
				chi += (c - want) * (c - want) / want
			}
			if chi > 45 { // of independent draws less than once in 13,000 times
				t.Errorf("p %v, seed %d: χ² of four elements together is %v", p, seed, chi)
			}
		}
	}
}

// TestDropoutRule holds that a probability is rounded as little as is promised, with no more bits than that takes, and that
// elements are kept by the numbers that the rule's definition gives them.
func TestDropoutRule(t *testing.T) {
	for _, c := range []struct {
		p    float64
		want graph.DropoutRule
	}{
		{0, graph.DropoutRule{Bits: 1}},
		{0.5, graph.DropoutRule{Bits: 1, Threshold: 1}},
		{0.25, graph.DropoutRule{Bits: 2, Threshold: 1}},
		{0.375, graph.DropoutRule{Bits: 4, Threshold: 6}},
		{0.1, graph.DropoutRule{Bits: 8, Threshold: 26}},
		{0.9, graph.DropoutRule{Bits: 8, Threshold: 230}},
		{0.01, graph.DropoutRule{Bits: 12, Threshold: 41}},
		{0.999, graph.DropoutRule{Bits: 16, Threshold: 65470}},
		{1e-6, graph.DropoutRule{Bits: 24, Threshold: 17}},
		{1e-12, graph.DropoutRule{Bits: 32}},
		{1 - 0x1p-53, graph.DropoutRule{Bits: 32, Threshold: math.MaxUint32}},
	} {
		r := graph.DropoutRuleOf(c.p)
		if r != c.want {
			t.Errorf("the rule for %v is %+v, want %+v", c.p, r, c.want)
		}
		if off := math.Abs(1 - c.p - r.Kept()); r.Bits < 32 && off > min(c.p, 1-c.p)/50 {
			t.Errorf("of %v, %v are kept", c.p, r.Kept())
		}
		for i := range uint64(200) {
			number, at := uint32(0), i%32/2%4*8+i%32/8*2+i%2
			for bit := range r.Bits {
				word := i/32*uint64(r.Bits) + uint64(bit)
				random := graph.Philox7(9, word/4)[word%4] >> at
				if r.Threshold>>bit&1 == 0 {
					random = ^random
				}
				number |= (random & 1) << bit
			}
			if want := number >= r.Threshold; r.Keeps(9, i) != want || graph.DropoutKeep(9, i, c.p) != want {
				t.Errorf("p %v: element %d is kept: %t, want %t", c.p, i, r.Keeps(9, i), want)
			}
		}
	}
}

// TestDropoutShare holds that of many elements as many are kept as the rule says, where few or most are, by words.
func TestDropoutShare(t *testing.T) {
	for _, p := range []float64{0.001, 0.02, 0.1, 0.25, 0.3, 0.5, 0.75, 0.98, 0.9999} {
		r, kept := graph.DropoutRuleOf(p), 0
		const groups = 1 << 16
		for i := range uint64(groups) {
			kept += bits.OnesCount32(r.KeptWord(77, i))
		}
		const n = 32 * groups
		if off := math.Abs(float64(kept)-n*r.Kept()) / math.Sqrt(n*r.Kept()*(1-r.Kept())); off > 4.5 {
			t.Errorf("p %v: %d of %d are kept, %v deviations off", p, kept, n, off)
		}
	}
}

// TestDropoutBit holds that the elements of a group have a bit each.
func TestDropoutBit(t *testing.T) {
	var all uint32
	for i := range uint64(32) {
		all |= 1 << graph.DropoutBit(i)
		if graph.DropoutBit(i+32) != graph.DropoutBit(i) {
			t.Errorf("element %d", i)
		}
	}
	if all != math.MaxUint32 {
		t.Errorf("bits %x", all)
	}
}
