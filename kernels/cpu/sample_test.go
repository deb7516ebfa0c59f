package cpu

import (
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/kernels/ref/cases"
)

// sampleArgs draws logits, with ties, infinities and NaN if odd is set, and options.
func sampleArgs(r *rand.Rand, d graph.DType, odd bool, dims ...int) []*graph.Tensor {
	if odd {
		return cases.Sampling(r, scoresFor(r, d, dims...))
	}
	return cases.Sampling(r, drawTensor(r, d, -9, 9, dims...))
}

func TestSample(t *testing.T) {
	r := rand.New(rand.NewPCG(20, 9))
	for _, dims := range [][]int{{1}, {7}, {5, 1}, {3, 9}, {2, 3, 33}, {40, 300}, {2, 5000}, {0, 3}} {
		for i := range 12 {
			d := []graph.DType{graph.F32, graph.F64}[i%2]
			checkOp(t, graph.Sample{}, sampleArgs(r, d, i%3 == 0, dims...)...)
		}
	}
	// Few logits differ: what is cut is decided by ties.
	for i := range 40 {
		args := sampleArgs(r, graph.F32, false, 3, 70)
		for k := range 210 {
			args[0].SetFloat(k, float64(r.IntN(1+i%5)))
		}
		checkOp(t, graph.Sample{}, args...)
	}
}
