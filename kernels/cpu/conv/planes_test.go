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

var (
	planesToPixels = graph.IntsOf(0, 2, 3, 1) // of a layout of NCHW
	filtersOfNHWC  = graph.IntsOf(3, 2, 0, 1)
)

func testPlanes[T gemm.Float](t *testing.T) {
	r := rand.New(rand.NewPCG(81, 82))
	for n := range 40 {
		s := drawSpec(r)
		s.op.Groups, s.n, s.c, s.o, s.w = 1, min(s.n, 2), 1+s.c%9, 1+s.o%19, min(s.w, 70)
		if n%4 == 0 { // pixels that are read in place
			s.kh, s.kw, s.op.Stride, s.op.Pad = 1, 1, graph.IntsOf(1, 1), graph.IntsOf(0, 0, 0, 0)
		}
		if n%10 == 0 { // longer than a run of steps
			s.c, s.h, s.w = s.c+400, min(s.h, 5), min(s.w, 9)
		}
		if s.positions(0) < 1 || s.positions(1) < 1 {
			continue
		}
		wide := graph.Contiguous(graph.ShapeOf(s.n, s.c, s.h, s.w+n%3))
		xl := wide.Slice(3, 0, s.w, 1)
		oh, ow := s.positions(0), s.positions(1)
		yl := graph.Contiguous(graph.ShapeOf(s.n, s.o, oh, ow))
		wl := graph.Contiguous(graph.ShapeOf(s.kh, s.kw, s.c, s.o))
		cfg := PlanesConfig{Op: s.op, X: xl, W: wl.Transpose(filtersOfNHWC), Image: yl.Stride[0], Plane: oh * ow}
		x, w := random[T](r, max(Extent(wide), 1)), random[T](r, max(Extent(wl), 1))
		count := yl.Shape.Elems()
		shift, residual := random[T](r, s.o), random[T](r, count)
		want, terms := make([]float64, count), make([]float64, count)
		s.visit(xl.Transpose(planesToPixels), yl.Transpose(planesToPixels), func(i, k, o int) {
			v := float64(x[i]) * float64(w[k])
			want[o] += v
			terms[o] += math.Abs(v)
		})
		finish := &PlanesFinish[T]{Shift: shift, Residual: residual, Image: cfg.Image, Plane: cfg.Plane, Low: -1, High: 2}
		finished := make([]float64, count)
		for i := range want {
			channel := i / (oh * ow) % s.o
			finished[i] = min(max(want[i]+float64(shift[channel])+float64(residual[i]), -1), 2)
			terms[i] += math.Abs(float64(shift[channel])) + math.Abs(float64(residual[i]))
		}
		for m, micro := range gemm.Micros[T]() {
			for workers := 1; workers <= 3; workers++ {
				p := pool.New(workers)
				k, err := newPlanes[T](cfg, p, nil, micro)
				if err != nil {
					t.Fatal(err)
				}
				if k == nil {
					p.Close()
					continue
				}
				if err := k.Pack(w); err != nil {
					t.Fatal(err)
				}
				y := random[T](r, count)
				covered := make([]int, count)
				if err := k.Run(x, y, nil, tiles(func(_, _, row, col, rows, cols int) {
					for i := range rows {
						for j := range cols {
							covered[(row+i)*oh*ow+col+j]++
						}
					}
				})); err != nil {
					t.Fatal(err)
				}
				name := fmt.Sprintf("%v, kernel %d, %d workers", s, m, workers)
				near(t, name, y, want, terms)
				for i, n := range covered {
					if n != 1 {
						t.Fatalf("%s: element %d is in %d tiles", name, i, n)
					}
				}
				if err := k.Run(x, y, finish, nil); err != nil {
					t.Fatal(err)
				}
				near(t, name+", finished", y, finished, terms)
				p.Close()
			}
		}
	}
}

// tiles is an epilogue of a function. The workers may call it at the same time, for different elements.
type tiles func(worker, band, row, col, rows, cols int)

func (f tiles) Tile(worker, band, row, col, rows, cols int) { f(worker, band, row, col, rows, cols) }

func TestPlanes(t *testing.T) {
	t.Run("float32", testPlanes[float32])
	t.Run("float64", testPlanes[float64])
}

// TestPlanesErrors gives configurations and operands that do not fit.
func TestPlanesErrors(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	s := square(1, 2, 3, 6, 3, 1, 1, 1)
	good := PlanesConfig{Op: s.op, X: graph.Contiguous(graph.ShapeOf(1, 2, 6, 6)), W: graph.Contiguous(graph.ShapeOf(3, 2, 3, 3)),
		Image: 108, Plane: 36}
	for name, change := range map[string]func(c *PlanesConfig){
		"rank":     func(c *PlanesConfig) { c.X = graph.Contiguous(graph.ShapeOf(6, 6)) },
		"channels": func(c *PlanesConfig) { c.X = graph.Contiguous(graph.ShapeOf(1, 3, 6, 6)) },
		"groups":   func(c *PlanesConfig) { c.Op.Groups = 2 },
		"strides":  func(c *PlanesConfig) { c.W.Stride[0] = -1 },
		"pixels":   func(c *PlanesConfig) { c.X.Stride[3] = 2 },
		"large":    func(c *PlanesConfig) { c.Op.Pad = graph.IntsOf(0, 0, 0, 0); c.Op.Dilation = graph.IntsOf(3, 3) },
	} {
		cfg := good
		change(&cfg)
		if k, err := NewPlanes[float32](cfg, p, nil); err == nil && k != nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := NewPlanes[float32](good, nil, nil); err == nil {
		t.Error("no pool: no error")
	}
	k, err := NewPlanes[float32](good, p, nil)
	if err != nil || k == nil {
		t.Skip("this processor has no kernel that reads images of NCHW as they lie: AVX2 and AVX-512 have")
	}
	x, y := make([]float32, 72), make([]float32, 108)
	for name, err := range map[string]error{
		"w":     k.Pack(make([]float32, 53)),
		"x":     k.Run(x[1:], y, nil, nil),
		"y":     k.Run(x, y[1:], nil, nil),
		"shift": k.Run(x, y, &PlanesFinish[float32]{Shift: x[:2]}, nil),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for _, images := range []int{0, 1} { // nothing to compute, and a sum of nothing
		empty := good
		empty.X, empty.W = graph.Contiguous(graph.ShapeOf(images, 0, 6, 6)), graph.Contiguous(graph.ShapeOf(3, 0, 3, 3))
		k, err := NewPlanes[float32](empty, p, nil)
		if err == nil {
			err = k.Pack(nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := k.Run(nil, y, nil, nil); (err == nil) != (images == 0) {
			t.Errorf("%d images without channels: %v", images, err)
		}
	}
}

// planeLayers are layers alone, in NCHW.
var planeLayers = []spec{square(1, 3, 64, 224, 7, 2, 3, 1), square(1, 256, 64, 56, 1, 1, 0, 1), square(1, 64, 64, 56, 3, 1, 1, 1),
	square(1, 3, 32, 224, 3, 2, 1, 1)}

func BenchmarkPlanes(b *testing.B) {
	for _, s := range planeLayers {
		b.Run(s.String(), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 2))
			p := pool.New(2)
			defer p.Close()
			oh, ow := s.positions(0), s.positions(1)
			cfg := PlanesConfig{Op: s.op, X: graph.Contiguous(graph.ShapeOf(s.n, s.c, s.h, s.w)),
				W: graph.Contiguous(graph.ShapeOf(s.o, s.c, s.kh, s.kw)), Image: s.o * oh * ow, Plane: oh * ow}
			x, w, y := random[float32](r, Extent(cfg.X)), random[float32](r, Extent(cfg.W)), make([]float32, s.n*s.o*oh*ow)
			k, err := NewPlanes[float32](cfg, p, nil)
			if err != nil || k == nil {
				b.Skip("this processor has no kernel that reads images of NCHW as they lie: ", err)
			}
			if err := k.Pack(w); err != nil {
				b.Fatal(err)
			}
			benchGrad(b, 2*float64(len(y))*float64(len(w)/s.o), func() error { return k.Run(x, y, nil, nil) })
		})
	}
}
