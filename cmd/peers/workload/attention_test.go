package workload

import (
	"math"
	"testing"
)

// period is how many rows of a workload's tensors differ: 512 numbers a row, of a sequence that repeats after 1000.
const period = 125

// attend is the attention of n tokens. Keys that are the same are taken together, so that the answers of long sequences
// take no time: a query weighs each of the few different keys by how many of them it may attend.
func attend(q, k, v []float64, n int, causal bool) []float64 {
	const width = AttentionHeads * AttentionDim
	out := make([]float64, n*width)
	for h := range AttentionHeads {
		row := func(x []float64, i int) []float64 { return x[i*width+h*AttentionDim:][:AttentionDim] }
		// The scores of the rows that differ.
		var scores [period][period]float64
		for i := range min(period, n) {
			for j := range min(period, n) {
				for c, x := range row(q, i) {
					scores[i][j] += x * row(k, j)[c] * AttentionScale
				}
			}
		}
		for i := range n {
			keys := n
			if causal {
				keys = i + 1
			}
			s := scores[i%period]
			top, sum := math.Inf(-1), 0.0
			for j := range min(period, keys) {
				top = max(top, s[j])
			}
			y := row(out, i)
			for j := range min(period, keys) {
				p := float64((keys-j+period-1)/period) * math.Exp(s[j]-top)
				sum += p
				for c, x := range row(v, j) {
					y[c] += p * x
				}
			}
			for c := range y {
				y[c] /= sum
			}
		}
	}
	return out
}

// TestAttend compares sampled rows of the attention by distinct keys with the definition.
func TestAttend(t *testing.T) {
	const width = AttentionHeads * AttentionDim
	for _, name := range []string{"attention-512", "attention-512-causal"} {
		w, _ := ByName(name)
		x := f64(w)
		y := reference(w)
		for _, i := range []int{0, 1, 130, 511} {
			keys := 512
			if name != "attention-512" {
				keys = i + 1
			}
			for h := range AttentionHeads {
				row := func(x []float64, i int) []float64 { return x[i*width+h*AttentionDim:][:AttentionDim] }
				var sum float64
				want := make([]float64, AttentionDim)
				for j := range keys {
					s := 0.0
					for c, a := range row(x["q"], i) {
						s += a * row(x["k"], j)[c]
					}
					p := math.Exp(s * AttentionScale)
					sum += p
					for c, a := range row(x["v"], j) {
						want[c] += p * a
					}
				}
				for c, got := range row(y, i) {
					if d := got - want[c]/sum; math.Abs(d) > 1e-12 {
						t.Fatalf("%s: row %d, head %d, element %d is %v, want %v", name, i, h, c, got, want[c]/sum)
					}
				}
			}
		}
	}
}
