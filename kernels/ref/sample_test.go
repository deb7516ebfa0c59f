package ref

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"fusec/graph"
)

// TestSampleWeight compares weights with e^((x−most)/temperature).
func TestSampleWeight(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, temperature := range []float32{1, 0.3, 7, 1e-3, 1e6, 1e-45, inf} {
		scale, last := graph.SampleScale(temperature), uint64(math.MaxUint64)
		for x := float32(3); x > -60; x -= 0.37 {
			w := graph.SampleWeight(x, 3, scale)
			want := math.Exp((float64(x)-3)/float64(temperature)) * (1 << 40)
			if d := math.Abs(float64(w) - want); d > 1+2e-9*want || w > last {
				t.Fatalf("the weight of %v at %v is %d, want %v, after %d", x, temperature, w, want, last)
			}
			last = w
		}
	}
	for _, c := range []struct {
		x, most float32
		want    uint64
	}{{-inf, 0, 0}, {-inf, -inf, 1 << 40}, {inf, inf, 1 << 40}, {0, inf, 0}, {inf - inf, 0, 0},
		{math.MaxFloat32, math.MaxFloat32, 1 << 40},
		{-math.MaxFloat32, math.MaxFloat32, 0}} {
		for _, temperature := range []float32{1, 1e-45, inf} {
			w := graph.SampleWeight(c.x, c.most, graph.SampleScale(temperature))
			if finite := c.x-c.x == 0 && c.most-c.most == 0; w != c.want && !(finite && temperature == inf && w == 1<<40) {
				t.Errorf("the weight of %v beside %v at %v is %d", c.x, c.most, temperature, w)
			}
		}
	}
	order := []float32{-inf, -math.MaxFloat32, -1, -1e-45, 0, 1e-45, 1, math.MaxFloat32, inf}
	if graph.SampleKey(float32(math.NaN())) != 0 || graph.SampleKey(float32(math.Copysign(0, -1))) != graph.SampleKey(0) {
		t.Error("keys of NaN and −0")
	}
	for i, x := range order[1:] {
		if graph.SampleKey(x) <= graph.SampleKey(order[i]) || graph.SampleKey(order[i]) == 0 {
			t.Errorf("the keys of %v and %v", order[i], x)
		}
	}
	for _, c := range []struct {
		p           float32
		total, want uint64
	}{{0.5, 10, 5}, {0.5, 11, 6}, {1e-45, 1 << 40, 1}, {0.25, 1, 1}, {1 - 0x1p-24, 1 << 24, 1<<24 - 1}} {
		if got := graph.SampleShare(c.p, c.total); got != c.want {
			t.Errorf("a share of %v of %d is %d, want %d", c.p, c.total, got, c.want)
		}
	}
}

// TestSample draws often, and compares how often each element comes with softmax(logits ÷ temperature) of those that may:
// Pearson's χ² is with probability 1 − 10⁻⁶ less than the bound.
func TestSample(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		name        string
		row         []float64
		temperature float64
		topK        int64
		topP        float64
		of          []int // those that may be drawn
	}{
		{"all", []float64{1, 3, 2, -1, 2.5}, 0.7, 0, 1, []int{0, 1, 2, 3, 4}},
		{"more than all", []float64{1, 3, 2, -1, 2.5}, 0.7, 6, 1, []int{0, 1, 2, 3, 4}},
		{"as many", []float64{1, 3, 2, -1, 2.5}, 0.7, 5, 2, []int{0, 1, 2, 3, 4}},
		{"three", []float64{1, 3, 2, -1, 2.5}, 0.7, 3, 0, []int{1, 2, 4}},
		{"most of it", []float64{1, 3, 2, -1, 2.5}, 1, 0, 0.5, []int{1, 4}},
		{"most of two", []float64{1, 3, 2, -1, 2.5}, 1, 2, 0.99, []int{1, 4}},
		{"the greatest", []float64{1, 3, 2, 3}, 0, 0, 1, []int{1}},
		{"no temperature", []float64{1, 3, 2, 3}, nan, 2, 1, []int{1}},
		{"one", []float64{1, 3, 2, 3}, 2, 1, 1, []int{1}},
		{"little of it", []float64{1, 3, 2, 3}, 2, 0, 1e-45, []int{1}},
		{"all but little", []float64{1, 3, 2, 3}, 2, 0, 1 - 0x1p-24, []int{0, 1, 2, 3}},
		{"no part", []float64{1, 3, 2}, 2, 0, nan, []int{0, 1, 2}},
		{"equal", []float64{1, 1, 1, 1, 1}, 1, 3, 1, []int{0, 1, 2}},
		{"half of equal", []float64{1, 1, 1, 1, 1}, 1, 0, 0.5, []int{0, 1, 2}},
		{"half of four", []float64{0, 1, 1, 1, 1, 1}, 0.1, 4, 0.5, []int{1, 2}},
		{"no NaN", []float64{nan, 1, -inf, 2}, 1, 0, 1, []int{1, 3}},
		{"no NaN of three", []float64{nan, 1, -inf, 2}, 1, 3, 1, []int{1, 3}},
		{"infinite", []float64{1, inf, 2, inf}, 1, 0, 1, []int{1, 3}},
		{"none finite", []float64{-inf, nan, -inf}, 1, 0, 1, []int{0, 2}},
		{"nothing", []float64{nan, nan}, 1, 0, 1, []int{0}},
		{"one element", []float64{-7}, 1, 0, 0.5, []int{0}},
		{"uniform", []float64{1, 3, 2}, inf, 0, 1, []int{0, 1, 2}},
	} {
		const draws = 20000
		f := func(d graph.DType, v float64) Value {
			x := zeros(graph.TypeOf(d))
			if d == graph.I64 {
				x.I[0] = int64(v)
			} else {
				x.F[0] = v
			}
			return x
		}
		x := Value{Type: graph.TypeOf(graph.F32, draws, len(c.row)), F: slices.Repeat(c.row, draws)}
		args := []Value{x, f(graph.F32, c.temperature), f(graph.I64, float64(c.topK)), f(graph.F32, c.topP), f(graph.I64, 3),
			f(graph.I64, 9)}
		got := sample(args, graph.TypeOf(graph.I64, draws))
		count := make([]float64, len(c.row))
		for _, i := range got.I {
			count[i]++
		}
		total, most := 0.0, c.row[c.of[0]]
		for _, i := range c.of {
			most = max(most, c.row[i])
		}
		weight := func(i int) float64 {
			if len(c.of) == 1 || math.IsInf(most, 0) {
				return 1
			}
			return math.Exp((c.row[i] - most) / c.temperature)
		}
		for _, i := range c.of {
			total += weight(i)
		}
		square := 0.0
		for i := range c.row {
			if !slices.Contains(c.of, i) {
				if count[i] > 0 {
					t.Errorf("%s: element %d is drawn", c.name, i)
				}
				continue
			}
			want := draws * weight(i) / total
			square += (count[i] - want) * (count[i] - want) / want
		}
		if freedom := float64(len(c.of) - 1); square > freedom+5*math.Sqrt(2*freedom)+25 {
			t.Errorf("%s: χ² is %v; drawn %v", c.name, square, count)
		}
	}
}

// TestSampleSure moves logits by less than they are said to be off: draws that are sure stay.
func TestSampleSure(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 8))
	sure := 0
	for range 3000 {
		const off = 1e-3
		s := sampling{row: make([]float64, 1+r.IntN(9)), temperature: float32(r.IntN(3)), topK: int64(r.IntN(5)),
			topP: float32(1.3 * r.Float64()), word: r.Uint64()}
		for i := range s.row {
			s.row[i] = 4 * r.Float64()
		}
		at, ok := s.draw(off)
		if !ok {
			continue
		}
		sure++
		for i := range s.row {
			s.row[i] += off * (2*r.Float64() - 1)
		}
		if again, _ := s.draw(0); again != at {
			t.Fatalf("%+v: it draws %d, and before %d", s, again, at)
		}
	}
	if sure < 2000 {
		t.Errorf("%d draws of 3000 are sure", sure)
	}
}
