package cuda_test

import (
	"fmt"
	"math"
	"testing"

	"fusec/graph"
	"fusec/kernels/ref"
	"fusec/lowering/cuda/cudatest"
)

// TestGeluErf holds the form of GELU that f32 is computed by to the error that its comment states, in the tail as well;
// beyond it, infinities and NaN included, it goes to its limits.
func TestGeluErf(t *testing.T) {
	inf := float32(math.Inf(1))
	x := []float32{0, 1e-30, 1e-5, 40, 1e30, math.MaxFloat32, inf, float32(math.NaN())}
	for i := range 40_000 {
		x = append(x, float32(i+1)/2_500) // to 16
	}
	for _, v := range x[:len(x):len(x)] {
		x = append(x, -v)
	}
	near := func(got *graph.Tensor, want ref.Value) error {
		for i, v := range got.Data.([]float32) {
			x, y := float64(x[i]), want.F[i]
			bound := 4e-7 * math.Abs(x)
			switch {
			case x >= -2:
				bound = min(bound, 1.5e-6*math.Abs(y))
			case x >= -7:
				bound = min(bound, 1e-5*math.Abs(y))
			default:
				bound = 1e-11
			}
			if same := float64(v) == y || v != v && y != y; !same && !(math.Abs(float64(v)-y) <= bound) {
				return fmt.Errorf("of %v it is %v, want %v ± %.1e", x, v, y, bound)
			}
		}
		return nil
	}
	cudatest.Run(t, cudatest.Open(t), cudatest.Check{
		Name: "gelu_erf", Op: graph.Unary{Fn: graph.GeluErf}, Compare: near,
		Args: []*graph.Tensor{{Type: graph.TypeOf(graph.F32, len(x)), Data: x}},
	})
}
