package gemm

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"fusec/kernels/cpu/pool"
)

// benchShapes are m, n, k.
var benchShapes = [][3]int{
	{256, 256, 256}, {512, 512, 512}, {1024, 1024, 1024}, {2048, 2048, 2048}, {512, 3072, 768},
}

// filled returns n small numbers that differ.
func filled[T Float](n int) []T {
	s := make([]T, n)
	for i := range s {
		s[i] = T(i%17)*0.01 + T(i%5)*0.03 - 0.1
	}
	return s
}

// best keeps the shortest of several times.
type best time.Duration

func (t *best) time(f func()) {
	start := time.Now()
	f()
	if d := best(time.Since(start)); *t == 0 || d < *t {
		*t = d
	}
}

// benchPlan reports the mean rate and the best one, which other load on the
// machine disturbs less.
func benchPlan[T Float](b *testing.B, cfg Config[T], workers int) {
	p := pool.New(workers)
	defer p.Close()
	plan, err := New(cfg, p, nil)
	if err != nil {
		b.Fatal(err)
	}
	x, y, z := filled[T](plan.lenA), filled[T](plan.lenB), make([]T, plan.lenC)
	run := func() {
		if err := plan.Run(x, y, z, nil); err != nil {
			b.Fatal(err)
		}
	}
	run()
	var t best
	for b.Loop() {
		t.time(run)
	}
	flops := 2 * float64(cfg.Batch) * float64(cfg.M) * float64(cfg.N) * float64(cfg.K)
	b.ReportMetric(flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
	b.ReportMetric(flops/time.Duration(t).Seconds()/1e9, "best-GFLOP/s")
}

// plain is one row-major product.
func plain[T Float](m, n, k int) Config[T] {
	return Config[T]{M: m, N: n, K: k, Batch: 1, A: RowMajor(k), B: RowMajor(n), C: RowMajor(n)}
}

func benchShape[T Float](b *testing.B, m, n, k int) {
	for _, workers := range []int{1, 2} {
		b.Run(fmt.Sprintf("%dx%dx%d/workers=%d", m, k, n, workers), func(b *testing.B) {
			benchPlan(b, plain[T](m, n, k), workers)
		})
	}
}

func BenchmarkF32(b *testing.B) {
	for _, s := range benchShapes {
		benchShape[float32](b, s[0], s[1], s[2])
	}
}

// BenchmarkGradients multiplies Aᵀ·B, as gradients of weights do.
func BenchmarkGradients(b *testing.B) {
	for _, s := range [][3]int{{256, 1024, 512}, {1024, 256, 512}, {256, 256, 512}} {
		cfg := plain[float32](s[0], s[1], s[2])
		cfg.A = Layout{RowStride: 1, ColStride: s[0], Offsets: []int{0}}
		b.Run(fmt.Sprintf("%dx%dx%d", s[0], s[2], s[1]), func(b *testing.B) { benchPlan(b, cfg, 2) })
	}
}

func BenchmarkF64(b *testing.B) {
	for _, s := range benchShapes[:3] {
		benchShape[float64](b, s[0], s[1], s[2])
	}
}

// BenchmarkKernel runs the kernels on operands in the first-level cache.
func BenchmarkKernel(b *testing.B) {
	for _, k := range kernels32 {
		b.Run("f32/"+k.name, func(b *testing.B) { benchKernel(b, k) })
	}
	for _, k := range kernels64 {
		b.Run("f64/"+k.name, func(b *testing.B) { benchKernel(b, k) })
	}
}

func benchKernel[T Float](b *testing.B, k *kernel[T]) {
	const kc, repeat = 256, 1000
	x, y, z := filled[T](k.mr*kc), filled[T](k.nr*kc), make([]T, k.mr*k.nr)
	var t best
	for b.Loop() {
		t.time(func() {
			for range repeat {
				k.tile(1, kc, &x[0], &y[0], &z[0], k.nr, false)
			}
		})
	}
	b.ReportMetric(2*kc*repeat*float64(k.mr*k.nr)/time.Duration(t).Seconds()/1e9, "best-GFLOP/s")
}

// BenchmarkThin reports the rate at which the large matrix is read.
func BenchmarkThin(b *testing.B) {
	const rows, cols = 4096, 4096
	for _, c := range []struct {
		name string
		cfg  Config[float32]
	}{
		{"m=1", plain[float32](1, cols, rows)},
		{"n=1", plain[float32](rows, 1, cols)},
		{"m=4", plain[float32](4, cols, rows)},
		{"m=1/transposed", Config[float32]{M: 1, N: rows, K: cols, Batch: 1, A: RowMajor(cols), B: RowMajor(cols).Transposed(),
			C: RowMajor(rows)}},
	} {
		for _, workers := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/workers=%d", c.name, workers), func(b *testing.B) {
				benchPlan(b, c.cfg, workers)
				b.ReportMetric(4*rows*cols*float64(b.N)/b.Elapsed().Seconds()/1e9, "GB/s")
			})
		}
	}
}

// BenchmarkBatch is the products of an attention layer: 32 heads.
func BenchmarkBatch(b *testing.B) {
	const batch, rows, depth = 32, 128, 32
	scores := Config[float32]{M: rows, N: rows, K: depth, Batch: batch,
		A: matrices(batch, rows, depth), B: matrices(batch, rows, depth).Transposed(), C: matrices(batch, rows, rows)}
	values := Config[float32]{M: rows, N: depth, K: rows, Batch: batch,
		A: matrices(batch, rows, rows), B: matrices(batch, rows, depth), C: matrices(batch, rows, depth)}
	for _, workers := range []int{1, 2} {
		b.Run(fmt.Sprintf("scores/workers=%d", workers), func(b *testing.B) { benchPlan(b, scores, workers) })
		b.Run(fmt.Sprintf("values/workers=%d", workers), func(b *testing.B) { benchPlan(b, values, workers) })
	}
}

// matrices is a batch of row-major matrices, one after another.
func matrices(batch, rows, cols int) Layout {
	l := RowMajor(cols)
	for b := range batch {
		l.Offsets = append(l.Offsets, b*rows*cols)
	}
	return l
}

// A reading reads a slice, a piece per item.
type reading struct {
	x, sums []float32
	kern    *kernel[float32]
}

const readings = 256

func (r *reading) Do(_, item int) {
	x := r.x[len(r.x)/readings*item:][:len(r.x)/readings]
	r.sums[item] = r.kern.dot(len(x), &x[0], &x[0])
}

// BenchmarkFewRows multiplies a few rows by 4096×4096 weights, and reads the weights, in turn. It reports the medians of what
// part of the rate of reading the product reaches, and of how many times as fast it is as without panels that are asked for
// ahead and blocks of few rows. One row reads the weights as they lie, more read packed ones.
func BenchmarkFewRows(b *testing.B) {
	const k, n = 4096, 4096
	w := Aligned[float32](k * n)
	copy(w, filled[float32](k*n))
	for _, m := range []int{1, 2, 4, 6, 8, 12, 16, 32, 64} {
		b.Run(fmt.Sprint(m), func(b *testing.B) {
			p := pool.New(0)
			defer p.Close()
			wide := Layout{RowStride: n, ColStride: 1}
			cfg := Config[float32]{M: m, N: n, K: k, Batch: 1, A: Layout{RowStride: k, ColStride: 1}, B: wide, C: wide}
			if m > 1 {
				var err error
				if cfg.Prepacked, err = Prepack(k, n, cfg.B, w, p); err != nil {
					b.Fatal(err)
				}
			}
			fast := kernels[float32]()[0]
			plain := *fast
			plain.few, plain.tileAhead, plain.axpy4Ahead = nil, nil, nil
			var plans []*Plan[float32]
			for _, kern := range []*kernel[float32]{fast, &plain} {
				plan, err := newPlan(cfg, p, nil, kern)
				if err != nil {
					b.Fatal(err)
				}
				plans = append(plans, plan)
			}
			x, y := filled[float32](m*k), make([]float32, m*n)
			read := &reading{x: w, sums: make([]float32, readings), kern: fast}
			var rates, gains []float64
			timed := func(f func()) float64 {
				start := time.Now()
				f()
				return time.Since(start).Seconds()
			}
			for b.Loop() {
				reads := timed(func() { p.Run(readings, read) })
				var times [2]float64
				for i, plan := range plans {
					times[i] = timed(func() {
						if err := plan.Run(x, w, y, nil); err != nil {
							b.Fatal(err)
						}
					})
				}
				rates, gains = append(rates, reads/times[0]), append(gains, times[1]/times[0])
			}
			slices.Sort(rates)
			slices.Sort(gains)
			b.ReportMetric(rates[len(rates)/2], "of-read-rate")
			b.ReportMetric(gains[len(gains)/2], "times-as-fast")
		})
	}
}
