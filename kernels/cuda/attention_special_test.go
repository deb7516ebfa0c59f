package cuda_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/kernels/cuda"
	"fusec/kernels/ref/cases"
	"fusec/lowering/cuda/cudatest"
)

// hostile puts infinities, NaN and numbers whose products overflow among queries, keys and values: a few, for one spoils
// a row.
func hostile(r *rand.Rand, args []*graph.Tensor) {
	for _, x := range args {
		if !x.Type.DType.IsReal() {
			continue
		}
		n := x.Type.Shape.Elems()
		for range min(n, 3) {
			most := 1e15
			if x.Type.DType == graph.F16 {
				most = 65504
			}
			x.SetFloat(r.IntN(n), []float64{math.Inf(1), math.Inf(-1), math.NaN(), most, -most}[r.IntN(5)])
		}
	}
}

// TestAttentionSpecial has scores, values and gradients that are not finite, or huge, in every kernel of attention.
func TestAttentionSpecial(t *testing.T) {
	for _, of := range []struct {
		chip  cuda.Chip
		types []graph.DType
	}{
		{cuda.ChipOf(70), []graph.DType{graph.F32, graph.F64}},
		{cuda.ChipOf(80), []graph.DType{graph.F32, graph.BF16, graph.F16}},
	} {
		r := rand.New(rand.NewPCG(5, uint64(of.chip.SMs)))
		var checks []cudatest.Check
		for i := range 4 * len(of.types) {
			d := of.types[i%len(of.types)]
			op, args := cases.RandomAttention(r, d, attentionSizes)
			hostile(r, args[:3])
			checks = append(checks, attentionChecks(t, r, fmt.Sprint(d, " ", i), op, args, cuda.F32)...)
		}
		cudatest.Run(t, cudatest.OpenFor(t, of.chip), checks...)
	}
}
