package graph_test

import (
	"math"
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
	if got, want := graph.Philox(0x299f31d0_a4093822, 1<<33+5), graph.Philox4x32([4]uint32{5, 2}, [2]uint32{0xa4093822, 0x299f31d0}); got != want {
		t.Errorf("Philox = %x, want %x", got, want)
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
