package conv

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
)

// element is where element i of a layout lies.
func element(l graph.Layout, i int) int {
	at := l.Offset
	for axis := l.Shape.Rank() - 1; axis >= 0; axis-- {
		at += i % l.Shape.At(axis) * l.Stride[axis]
		i /= l.Shape.At(axis)
	}
	return at
}

func testTransposed[T gemm.Float](t *testing.T) {
	r := rand.New(rand.NewPCG(41, 42))
	for i := range 40 {
		s := drawSpec(r)
		if i%4 == 3 { // filters as wide as the stride
			s.op = graph.Conv2D{Stride: graph.IntsOf(1+r.IntN(3), s.kw), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(0, 0, 0, 0),
				Groups: 1}
			s.h, s.w = max(s.h, s.kh), s.kw*(1+r.IntN(9))
			if i%16 == 3 {
				s.c = 1
			}
		}
		_, yl := s.layouts(r)
		xl := graph.Contiguous(graph.ShapeOf(s.n, s.h, s.w, s.c))
		rowStride := s.c + r.IntN(4)
		if i%8 == 3 {
			rowStride = s.c
		}
		wl := graph.Contiguous(graph.ShapeOf(s.kh, s.kw, s.c/s.op.Groups, s.o))
		wl.Offset = r.IntN(3)
		for i := range wl.Shape.Rank() {
			if wl.Shape.At(i) == 1 { // its stride means nothing
				wl.Stride[i] = r.IntN(9)
			}
		}
		if i%8 > 5 {
			wl.Stride[r.IntN(4)] = 0
		}
		dy, w := random[T](r, Extent(yl)), random[T](r, Extent(wl))
		want, terms := make([]float64, Extent(xl)), make([]float64, Extent(xl))
		finish := &Finish[T]{Shift: random[T](r, s.c), Low: -1, High: 1}
		switch r.IntN(3) {
		case 0:
			finish.Shift = nil
		case 1:
			finish = nil
		}
		s.visit(xl, yl, func(x, i, o int) {
			v := float64(w[element(wl, i)]) * float64(dy[o])
			want[x] += v
			terms[x] += math.Abs(v)
		})
		for i := range want {
			if finish != nil {
				if finish.Shift != nil {
					want[i] += float64(finish.Shift[i%s.c])
				}
				want[i] = min(max(want[i], -1), 1)
			}
			want[i]++ // the epilogue adds 1
			terms[i] += 2
		}
		for m, micro := range gemm.Micros[T]() {
			var first []T
			for workers := 1; workers <= 3; workers++ {
				p := pool.New(workers)
				defer p.Close()
				for _, packed := range []bool{false, true} {
					k, err := newTransposed(s.op, yl, wl, s.h, s.w, rowStride, packed, p, nil, micro)
					if err != nil {
						t.Fatal(err)
					}
					filters := w
					if packed {
						if err := k.Update(w); err != nil {
							t.Fatal(err)
						}
						filters = nil
					}
					y := random[T](r, s.n*s.h*s.w*rowStride)
					before := append([]T(nil), y...)
					if err := k.Run(dy, filters, y, finish, &adds1[T]{y: y, ld: rowStride}); err != nil {
						t.Fatal(err)
					}
					dx := make([]T, 0, len(want))
					for i, v := range y {
						if i%rowStride < s.c {
							dx = append(dx, v)
						} else if v != before[i] {
							t.Fatalf("%v: element %d, between the pixels, has been written", s, i)
						}
					}
					if first == nil {
						first = dx
						near(t, fmt.Sprintf("%v, kernel %d", s, m), dx, want, terms)
					}
					for i := range dx {
						if dx[i] != first[i] {
							t.Fatalf("%v, kernel %d: element %d differs with %d workers, packed %v", s, m, i, workers, packed)
						}
					}
				}
			}
		}
	}
}

func TestTransposed(t *testing.T) {
	t.Run("float32", testTransposed[float32])
	t.Run("float64", testTransposed[float64])
}

func BenchmarkTransposed(b *testing.B) {
	for _, s := range gradLayers[1:] {
		b.Run(s.String(), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 2))
			yl, wl := graph.Contiguous(graph.ShapeOf(s.n, s.positions(0), s.positions(1), s.o)),
				graph.Contiguous(graph.ShapeOf(s.kh, s.kw, s.c, s.o))
			dy, w, dx := random[float32](r, Extent(yl)), random[float32](r, Extent(wl)), make([]float32, s.n*s.h*s.w*s.c)
			p := pool.New(2)
			defer p.Close()
			k, err := NewTransposed[float32](s.op, yl, wl, s.h, s.w, s.c, false, p, nil)
			if err != nil {
				b.Fatal(err)
			}
			benchGrad(b, 2*float64(len(dy))*float64(len(w)/s.o), func() error { return k.Run(dy, w, dx, nil, nil) })
		})
	}
}
