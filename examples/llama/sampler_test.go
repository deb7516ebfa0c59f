package llama

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// TestSampler draws often and compares the shares with softmax(logits ÷ temperature) of the likeliest.
func TestSampler(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		name        string
		row         []float32
		temperature float64
		topK        int
		topP        float64
		of          []int // those that may be drawn
	}{
		{"all", []float32{1, 3, 2, -1, 2.5}, 0.7, 0, 1, []int{0, 1, 2, 3, 4}},
		{"three", []float32{1, 3, 2, -1, 2.5}, 0.7, 3, 0, []int{1, 2, 4}},
		{"most of it", []float32{1, 3, 2, -1, 2.5}, 1, 0, 0.5, []int{1, 4}},
		{"most of two", []float32{1, 3, 2, -1, 2.5}, 1, 2, 0.99, []int{1, 4}},
		{"the greatest", []float32{1, 3, 2, 3}, 0, 0, 1, []int{1}},
		{"one", []float32{1, 3, 2, 3}, 2, 1, 1, []int{1}},
		{"little of it", []float32{1, 3, 2, 3}, 2, 0, 1e-9, []int{1}},
		{"equal", []float32{1, 1, 1, 1, 1}, 1, 3, 1, []int{0, 1, 2}},
		{"none", []float32{nan, 1, -inf, 2}, 1, 0, 1, []int{1, 3}},
		{"infinite", []float32{1, inf, 2, inf}, 1, 0, 1, []int{1, 3}},
		{"nothing", []float32{nan, nan}, 1, 0, 1, []int{0}},
	} {
		s, err := NewSampler(c.temperature, c.topK, c.topP, 1)
		if err != nil {
			t.Fatal(err)
		}
		const draws = 20000
		count := make([]float64, len(c.row))
		for range draws {
			count[s.Pick(c.row)]++
		}
		total, most := 0.0, float64(c.row[c.of[0]])
		for _, i := range c.of {
			most = max(most, float64(c.row[i]))
		}
		weight := func(i int) float64 {
			if len(c.of) == 1 || math.IsInf(most, 1) {
				return 1
			}
			return math.Exp((float64(c.row[i]) - most) / c.temperature)
		}
		for _, i := range c.of {
			total += weight(i)
		}
		for i := range c.row {
			want := 0.0
			if slices.Contains(c.of, i) {
				want = weight(i) / total
			}
			if got := count[i] / draws; math.Abs(got-want) > 0.02 {
				t.Errorf("%s: token %d is drawn with probability %v, want %v", c.name, i, got, want)
			}
		}
		if n := testing.AllocsPerRun(10, func() { s.Pick(c.row) }); n > 0 {
			t.Errorf("%s: a draw allocates %v times", c.name, n)
		}
	}
	for _, bad := range []struct {
		temperature float64
		topK        int
		topP        float64
		want        string
	}{{-1, 0, 1, "a temperature of -1"}, {math.NaN(), 0, 1, "a temperature of NaN"}, {1, -1, 1, "the best -1 tokens"},
		{1, 0, 1.5, "a probability of 1.5"}, {1, 0, math.NaN(), "a probability of NaN"}} {
		if _, err := NewSampler(bad.temperature, bad.topK, bad.topP, 1); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("error %v, want one with %q", err, bad.want)
		}
	}
}

// TestFirsts takes the first of lists with many equal weights.
func TestFirsts(t *testing.T) {
	for n := 1; n < 60; n++ {
		var list []choice
		for i := range n {
			list = append(list, choice{float64(i * i % 7), int32(i)})
		}
		sorted := slices.Clone(list)
		slices.SortFunc(sorted, before)
		for k := 1; k <= n; k++ {
			got := slices.Clone(firsts(slices.Clone(list), k))
			slices.SortFunc(got, before)
			if !slices.Equal(got, sorted[:k]) {
				t.Fatalf("the first %d of %d: %v, want %v", k, n, got, sorted[:k])
			}
		}
	}
}
