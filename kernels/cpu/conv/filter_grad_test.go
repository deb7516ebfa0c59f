package conv

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
)

// drawSpec draws a convolution with small and odd sizes, windows in the padding and strides above the filter's size.
func drawSpec(r *rand.Rand) spec {
	pick := func(n int) int { return 1 + r.IntN(n) }
	for {
		groups := 1
		if r.IntN(3) == 0 {
			groups = pick(3)
		}
		s := spec{n: r.IntN(4), h: pick(17), w: pick(40), c: groups * pick(40), o: groups * pick(40), kh: pick(4), kw: pick(4),
			op: graph.Conv2D{Stride: graph.IntsOf(pick(3), pick(3)), Dilation: graph.IntsOf(pick(3), pick(2)),
				Pad: graph.IntsOf(r.IntN(5), r.IntN(5), r.IntN(5), r.IntN(5)), Groups: groups}}
		if s.kh == s.kw && r.IntN(3) == 0 {
			s.op.Dilation = graph.IntsOf(1, 1)
		}
		if r.IntN(8) == 0 {
			s.w = 200 + pick(200)
		}
		if s.positions(0) > 0 && s.positions(1) > 0 {
			return s
		}
	}
}

// positions is the number of positions of the filters along an axis, or not positive if they do not fit.
func (s spec) positions(i int) int {
	size, taps := []int{s.h, s.w}[i], []int{s.kh, s.kw}[i]
	span := size + s.op.Pad.At(i) + s.op.Pad.At(2+i) - s.op.Dilation.At(i)*(taps-1) - 1
	if span < 0 {
		return 0
	}
	return span/s.op.Stride.At(i) + 1
}

// layouts is the layouts of images and results, contiguous or with gaps.
func (s spec) layouts(r *rand.Rand) (x, y graph.Layout) {
	gaps := func(shape graph.Shape) graph.Layout {
		l := graph.Contiguous(shape)
		if r.IntN(2) == 0 {
			l.Offset = r.IntN(4)
			l.Stride[2] += r.IntN(4)
			l.Stride[1] = l.Stride[2]*shape.At(2) + r.IntN(4)
			l.Stride[0] = l.Stride[1]*shape.At(1) + r.IntN(4)
		}
		return l
	}
	return gaps(graph.ShapeOf(s.n, s.h, s.w, s.c)), gaps(graph.ShapeOf(s.n, s.positions(0), s.positions(1), s.o))
}

// visit calls f for each product of the convolution with the elements of x, of the contiguous filters, and of y.
func (s spec) visit(x, y graph.Layout, f func(x, w, y int)) {
	at := func(l graph.Layout, n, h, w, c int) int {
		return l.Offset + n*l.Stride[0] + h*l.Stride[1] + w*l.Stride[2] + c*l.Stride[3]
	}
	ch, per := s.c/s.op.Groups, s.o/s.op.Groups
	for i := range y.Shape.Elems() {
		o := i % s.o
		ox, oy, n := i/s.o%y.Shape.At(2), i/s.o/y.Shape.At(2)%y.Shape.At(1), i/s.o/y.Shape.At(2)/y.Shape.At(1)
		for tap := range s.kh * s.kw {
			iy := oy*s.op.Stride.At(0) - s.op.Pad.At(0) + tap/s.kw*s.op.Dilation.At(0)
			ix := ox*s.op.Stride.At(1) - s.op.Pad.At(1) + tap%s.kw*s.op.Dilation.At(1)
			if iy < 0 || iy >= s.h || ix < 0 || ix >= s.w {
				continue
			}
			for c := range ch {
				f(at(x, n, iy, ix, o/per*ch+c), (tap*ch+c)*s.o+o, at(y, n, oy, ox, o))
			}
		}
	}
}

// near fails unless got is close to want, with the given sums of the terms' absolute values.
func near[T gemm.Float](t *testing.T, name string, got []T, want, terms []float64) {
	t.Helper()
	for i, v := range got {
		if !(math.Abs(float64(v)-want[i]) <= tolerance[T]()*terms[i]) {
			t.Fatalf("%s: element %d is %v, want %v", name, i, v, want[i])
		}
	}
}

func testFilterGrad[T gemm.Float](t *testing.T) {
	r := rand.New(rand.NewPCG(31, 32))
	for range 30 {
		s := drawSpec(r)
		xl, yl := s.layouts(r)
		x, dy := random[T](r, Extent(xl)), random[T](r, Extent(yl))
		n := s.kh * s.kw * s.c / s.op.Groups * s.o
		want, terms := make([]float64, n), make([]float64, n)
		s.visit(xl, yl, func(i, w, o int) {
			v := float64(x[i]) * float64(dy[o])
			want[w] += v
			terms[w] += math.Abs(v)
		})
		for m, micro := range gemm.Micros[T]() {
			var first []T
			for workers := 1; workers <= 3; workers++ {
				p := pool.New(workers)
				defer p.Close()
				k, err := newFilterGrad(s.op, xl, yl, s.kh, s.kw, p, nil, micro)
				if err != nil {
					t.Fatal(err)
				}
				dw := random[T](r, n)
				if err := k.Run(x, dy, dw); err != nil {
					t.Fatal(err)
				}
				if first == nil {
					first = dw
					near(t, fmt.Sprintf("%v, kernel %d", s, m), dw, want, terms)
				}
				for i := range dw {
					if dw[i] != first[i] {
						t.Fatalf("%v, kernel %d: element %d differs with %d workers", s, m, i, workers)
					}
				}
			}
		}
	}
}

func TestFilterGrad(t *testing.T) {
	t.Run("float32", testFilterGrad[float32])
	t.Run("float64", testFilterGrad[float64])
}

// gradLayers are those of a residual network in training.
var gradLayers = []spec{
	square(8, 3, 64, 224, 7, 2, 3, 1),
	square(8, 64, 64, 56, 3, 1, 1, 1),
	square(8, 64, 128, 56, 3, 2, 1, 1),
	square(8, 128, 128, 28, 3, 1, 1, 1),
	square(8, 256, 256, 14, 3, 1, 1, 1),
	square(8, 512, 512, 7, 3, 1, 1, 1),
	square(8, 64, 128, 56, 1, 2, 0, 1),
	square(32, 16, 32, 28, 5, 1, 0, 1),
}

func BenchmarkFilterGrad(b *testing.B) {
	for _, s := range gradLayers {
		b.Run(s.String(), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 2))
			xl, yl := graph.Contiguous(graph.ShapeOf(s.n, s.h, s.w, s.c)),
				graph.Contiguous(graph.ShapeOf(s.n, s.positions(0), s.positions(1), s.o))
			x, dy, dw := random[float32](r, Extent(xl)), random[float32](r, Extent(yl)), make([]float32, s.kh*s.kw*s.c*s.o)
			p := pool.New(2)
			defer p.Close()
			k, err := NewFilterGrad[float32](s.op, xl, yl, s.kh, s.kw, p, nil)
			if err != nil {
				b.Fatal(err)
			}
			benchGrad(b, 2*float64(len(dy))*float64(len(dw)/s.o), func() error { return k.Run(x, dy, dw) })
		})
	}
}

// benchGrad reports the shortest time and the rate in it.
func benchGrad(b *testing.B, flops float64, run func() error) {
	best := time.Hour
	for b.Loop() {
		start := time.Now()
		if err := run(); err != nil {
			b.Fatal(err)
		}
		best = min(best, time.Since(start))
	}
	b.ReportMetric(flops/best.Seconds()/1e9, "best-GFLOP/s")
	b.ReportMetric(best.Seconds()*1e3, "best-ms")
}
