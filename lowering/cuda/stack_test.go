package cuda_test

import (
	"testing"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda"
)

// TestStreamsWeights: on Hopper, weights of 16 bits lie in panels for more than 4 rows only where the copy engine cannot read them
// as they lie.
func TestStreamsWeights(t *testing.T) {
	for _, c := range []struct {
		rows, k, n int
		weights    graph.DType
		p          kernels.Precision
		streams    bool
	}{
		{4, 64, 64, graph.F32, kernels.BF16, true},
		{5, 64, 64, graph.F32, kernels.BF16, false},
		{16, 63, 64, graph.F32, kernels.BF16, true},
		{16, 64, 60, graph.F32, kernels.BF16, true},
		{17, 64, 60, graph.F32, kernels.BF16, false},
		{16, 64, 64, graph.I8, kernels.F16, true},
		{17, 64, 64, graph.I8, kernels.F16, false},
		{1, 64, 64, graph.I8, kernels.F32, false},
	} {
		to, err := cuda.New(cuda.Precision(c.p)).StreamsWeights(c.rows, graph.TypeOf(c.weights, c.k, c.n), graph.BF16, 0)
		if (err == nil) != c.streams || c.streams && to != c.p.Half() {
			t.Errorf("%+v: %v, %v", c, to, err)
		}
	}
}
