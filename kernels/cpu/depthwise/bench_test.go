package depthwise

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"fusec/kernels/cpu/pool"
)

// benchGeometries are convolutions 3×3 with padding 1: images, channels, side, stride.
var benchGeometries = [][4]int{{1, 128, 56, 1}, {1, 32, 112, 1}, {1, 64, 112, 2}, {1, 512, 14, 1}, {1, 1024, 7, 1}, {8, 64, 112, 2}}

func benchGeometry(s [4]int) (g Geometry, x, y Image) {
	side := (s[2]+2-3)/s[3] + 1
	g = Geometry{Images: s[0], Channels: s[1], Size: [2]int{s[2], s[2]}, Windows: [2]int{side, side}, Kernel: [2]int{3, 3},
		Stride: [2]int{s[3], s[3]}, Dilation: [2]int{1, 1}, Before: [2]int{1, 1}}
	return g, Packed(g.Size, s[1]), Packed(g.Windows, s[1])
}

// bench runs f on a pool of two workers and reports the shortest time and the bytes that it moves in it.
func bench(b *testing.B, bytes int, f func(p *pool.Pool)) {
	p := pool.New(2)
	defer p.Close()
	f(p)
	var best time.Duration
	for b.Loop() {
		start := time.Now()
		f(p)
		if d := time.Since(start); best == 0 || d < best {
			best = d
		}
	}
	b.ReportMetric(float64(best)/1e3, "best-µs")
	b.ReportMetric(float64(bytes)/best.Seconds()/1e9, "best-GB/s")
}

func BenchmarkDepthwise(b *testing.B) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, s := range benchGeometries {
		g, xm, ym := benchGeometry(s)
		xn, yn := g.Images*xm.Image, g.Images*ym.Image
		x, w, y, shift := drawn[float32](r, xn), drawn[float32](r, 9*s[1]), make([]float32, yn), drawn[float32](r, s[1])
		dx, dw := make([]float32, xn), make([]float32, 9*s[1])
		f, plain := Unfinished[float32](), Unfinished[float32]()
		f.Shift, f.Low = shift, 0
		name := fmt.Sprintf("%d×%d×%d²/%d", s[0], s[1], s[2], s[3])
		forward := NewConv[float32](g, 1, xm, ym, 2)
		b.Run("conv/"+name, func(b *testing.B) {
			forward.Bind(x, w, y, f)
			do := task(func(worker, item int) { forward.Do(worker, item, nil, &f) })
			bench(b, 4*(xn+yn), func(p *pool.Pool) { p.Run(forward.Items(), do) })
		})
		backward := NewConvTransposed[float32](g, 1, ym, xm, 2)
		b.Run("transposed/"+name, func(b *testing.B) {
			backward.Bind(y, w, dx, plain)
			do := task(func(worker, item int) { backward.Do(worker, item, nil, &plain) })
			bench(b, 4*(xn+yn), func(p *pool.Pool) { p.Run(backward.Items(), do) })
		})
		filters := NewFilterGrad[float32](g, 1, xm, ym, 2)
		b.Run("filters/"+name, func(b *testing.B) {
			filters.Bind(x, y, dw, make([]float32, filters.Shared()))
			do, sum := task(func(worker, item int) { filters.Do(worker, item, nil) }), task(func(_, item int) { filters.Sum(item) })
			bench(b, 4*(xn+yn), func(p *pool.Pool) { p.Run(filters.Items(), do); p.Run(filters.Sums(), sum) })
		})
		mean := NewMean[float32](g, false, xm, ym, 2)
		b.Run("mean/"+name, func(b *testing.B) {
			scratch := [2][]float32{make([]float32, mean.Scratch()), make([]float32, mean.Scratch())}
			mean.Bind(x, nil, y, plain)
			do := task(func(worker, item int) { mean.Do(worker, item, scratch[worker], &plain) })
			bench(b, 4*(xn+yn), func(p *pool.Pool) { p.Run(mean.Items(), do) })
		})
		maximum := NewMaximum[float32](g, xm, ym, 2)
		b.Run("max/"+name, func(b *testing.B) {
			maximum.Bind(x, y)
			bench(b, 4*(xn+yn), func(p *pool.Pool) { p.Run(maximum.Items(), maximum) })
		})
		award := NewMaximumGrad[float32](g, xm, ym, 2)
		b.Run("max-grad/"+name, func(b *testing.B) {
			award.Bind(x, y, dx)
			bench(b, 4*(2*xn+yn), func(p *pool.Pool) { p.Run(award.Items(), award) })
		})
	}
}
