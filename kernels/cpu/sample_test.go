package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
)

// sampleArgs draws logits for some rows, with ties, infinities and NaN if odd is set, and options for all rows or for each.
func sampleArgs(r *rand.Rand, d graph.DType, odd bool, dims ...int) []*graph.Tensor {
	n := dims[len(dims)-1]
	x := drawTensor(r, d, -9, 9, dims...)
	if odd {
		x = scoresFor(r, d, dims...)
	}
	args := []*graph.Tensor{x}
	for _, values := range [][]float64{{0, 0.3, 1, 5, math.Inf(1)}, {0, 1, 2, float64(n / 2), float64(n)}, {0, 1e-9, 0.3, 0.9, 1}, nil, nil} {
		t := graph.TypeOf(graph.I64)
		if len(args) == graph.SampleTemperature || len(args) == graph.SampleTopP {
			t.DType = graph.F32
		}
		if r.IntN(2) == 0 {
			t.Shape = graph.ShapeOf(dims[:len(dims)-1]...)
		}
		o := graph.NewTensor(t)
		for i := range t.Shape.Elems() {
			if values == nil {
				o.SetInt(i, int64(r.Uint64()))
			} else {
				o.SetFloat(i, values[r.IntN(len(values))])
			}
		}
		args = append(args, o)
	}
	return args
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
