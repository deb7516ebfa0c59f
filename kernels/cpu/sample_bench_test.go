package cpu

import (
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
)

// BenchmarkSample draws from a row of as many logits as vocabularies have.
func BenchmarkSample(b *testing.B) {
	for _, c := range []struct {
		name        string
		temperature float64
		topK        int
		topP        float64
	}{{"greatest", 0, 0, 1}, {"all", 0.8, 0, 1}, {"topK", 0.8, 20, 1}, {"topP", 0.8, 0, 0.9}} {
		b.Run(c.name, func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 1))
			x := graph.NewTensor(graph.TypeOf(graph.F32, 1, 32000))
			for i := range 32000 {
				x.SetFloat(i, 2*r.NormFloat64())
			}
			args := []*graph.Tensor{x, graph.Scalar(graph.F32, c.temperature), graph.Scalar(graph.I64, float64(c.topK)),
				graph.Scalar(graph.F32, c.topP), graph.Scalar(graph.I64, 1), graph.Scalar(graph.I64, 1)}
			s, err := stand(graph.Sample{}, args, pool.New(1))
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if err := s.run(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
