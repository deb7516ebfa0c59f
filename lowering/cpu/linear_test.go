package cpu_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"fusec/graph"
	"fusec/lowering"
	"fusec/lowering/cpu"
)

// linear is a product with nothing after it, or with bias and GELU.
func linear(m, k, n int, epilogue bool) *graph.Graph {
	b := graph.NewBuilder("linear")
	x, w := b.Input("x", graph.TypeOf(graph.F32, m, k)), b.Param("w", graph.TypeOf(graph.F32, k, n))
	y := b.MatMul(x, w, false, false)
	if epilogue {
		y = b.Unary(graph.GeluTanh, b.Binary(graph.Add, y, b.Broadcast(b.Param("b", graph.TypeOf(graph.F32, n)), y.Type.Shape)))
	}
	b.Output("y", y)
	g, err := b.Graph()
	if err != nil {
		panic(err)
	}
	return g
}

// BenchmarkLinear runs the bare product and the one with bias and GELU in turn, and reports the median of their ratio.
func BenchmarkLinear(b *testing.B) {
	for _, workers := range []int{1, 2} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			executable := func(epilogue bool) lowering.Executable {
				g := linear(512, 768, 3072, epilogue)
				e, _ := compiledOf(b, g, values(g), true, cpu.Workers(workers))
				return e
			}
			bare, full := executable(false), executable(true)
			defer bare.Close()
			defer full.Close()
			run := func(e lowering.Executable) float64 {
				start := time.Now()
				if err := e.Run(); err != nil {
					b.Fatal(err)
				}
				return time.Since(start).Seconds()
			}
			run(bare) // packs the weights
			run(full)
			var ratios []float64
			for b.Loop() {
				t := run(bare)
				ratios = append(ratios, run(full)/t)
			}
			slices.Sort(ratios)
			b.ReportMetric(ratios[len(ratios)/2], "gelu/bare")
		})
	}
}
