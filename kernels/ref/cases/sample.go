package cases

import (
	"math"
	"math/rand/v2"

	"fusec/graph"
)

// Sampling draws operands of [graph.Sample] for logits: the logits, and options for all rows or for each, edges among them.
func Sampling(r *rand.Rand, logits *graph.Tensor) []*graph.Tensor {
	s := logits.Type.Shape
	last := s.Rank() - 1
	half := float64(s.At(last) / 2)
	args := []*graph.Tensor{logits}
	temperatures, topK, topP := []float64{0, 0.3, 1, 5, math.Inf(1)}, []float64{0, 1, 2, 40, 64, 65, 300, half, 2 * half},
		[]float64{0, 1e-9, 0.3, 0.9, 1}
	for _, values := range [][]float64{temperatures, topK, topP, nil, nil} {
		t := graph.TypeOf(graph.I64)
		if len(args) == graph.SampleTemperature || len(args) == graph.SampleTopP {
			t.DType = graph.F32
		}
		if r.IntN(2) == 0 {
			t.Shape = s.Drop(graph.IntsOf(last))
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
