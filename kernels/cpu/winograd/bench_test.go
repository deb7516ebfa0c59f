package winograd

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
)

// layers are those of residual networks and of a U-Net: images, height and width, channels, filters.
var layers = [][4]int{{1, 56, 64, 64}, {1, 28, 128, 128}, {1, 14, 256, 256}, {1, 7, 512, 512}, {8, 7, 512, 512}, {1, 128, 32, 32},
	{1, 64, 64, 64}, {1, 32, 128, 128}, {1, 16, 256, 256}, {1, 80, 64, 64}, {1, 40, 128, 128}, {8, 28, 128, 128}}

func BenchmarkLayers(b *testing.B) {
	for _, l := range layers {
		for _, tile := range []int{2, 4} {
			for _, workers := range []int{1, 2} {
				b.Run(fmt.Sprintf("%d×%d²×%d→%d/F%d/workers=%d", l[0], l[1], l[2], l[3], tile, workers), func(b *testing.B) {
					p := pool.New(workers)
					defer p.Close()
					rng := rand.New(rand.NewPCG(1, 2))
					x := graph.Contiguous(graph.ShapeOf(l[0], l[1], l[1], l[2]))
					f, err := NewFilters(tile, graph.Contiguous(graph.ShapeOf(3, 3, l[2], l[3])), false, p)
					if err != nil {
						b.Fatal(err)
					}
					if err := f.Update(random(rng, 9*l[2]*l[3])); err != nil {
						b.Fatal(err)
					}
					k, err := New(Config{X: x, Pad: graph.IntsOf(1, 1, 1, 1), Filters: f, RowStride: l[3]}, p, nil)
					if err != nil {
						b.Fatal(err)
					}
					in, y := random(rng, x.Shape.Elems()), gemm.Aligned[float32](k.Rows()*l[3])
					best := time.Hour
					for b.Loop() {
						start := time.Now()
						if err := k.Run(in, nil, y, nil); err != nil {
							b.Fatal(err)
						}
						best = min(best, time.Since(start))
					}
					b.ReportMetric(float64(best.Microseconds()), "best-µs")
				})
			}
		}
	}
}

func random(rng *rand.Rand, n int) []float32 {
	s := gemm.Aligned[float32](n)[:n]
	for i := range s {
		s[i] = float32(rng.NormFloat64())
	}
	return s
}
