package conv

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
)

// layers are those of residual networks, and shapes close to them that fit the kernels less well.
var layers = []spec{
	square(1, 3, 64, 224, 7, 2, 3, 1),
	square(1, 64, 64, 56, 3, 1, 1, 1),
	square(1, 64, 128, 56, 3, 2, 1, 1),
	square(1, 128, 128, 28, 3, 1, 1, 1),
	square(1, 256, 256, 14, 3, 1, 1, 1),
	square(1, 512, 512, 7, 3, 1, 1, 1),
	square(8, 512, 512, 7, 3, 1, 1, 1),
	square(1, 256, 64, 56, 1, 1, 0, 1),
	square(1, 64, 256, 56, 1, 1, 0, 1),
	square(1, 256, 512, 56, 1, 2, 0, 1),
	square(1, 1024, 256, 14, 1, 1, 0, 1),
	square(1, 2048, 512, 7, 1, 1, 0, 1),
}

var cliffs = []spec{
	square(1, 64, 64, 58, 3, 1, 0, 1),
	square(1, 63, 63, 57, 3, 1, 1, 1),
	square(1, 65, 65, 55, 3, 1, 1, 1),
	square(1, 80, 80, 56, 3, 1, 1, 1),
	square(1, 48, 48, 56, 3, 1, 1, 1),
	square(1, 100, 100, 13, 3, 1, 1, 1),
	square(1, 64, 64, 56, 5, 1, 2, 1),
	square(1, 128, 128, 56, 3, 1, 1, 4),
	square(1, 64, 24, 56, 1, 1, 0, 1),
	square(1, 64, 3, 56, 3, 1, 1, 1),
	square(1, 128, 128, 56, 3, 1, 1, 32),
}

func benchmark(b *testing.B, list []spec) {
	for _, s := range list {
		for _, workers := range []int{1, 2} {
			b.Run(fmt.Sprintf("%v/workers=%d", s, workers), func(b *testing.B) {
				p := pool.New(workers)
				defer p.Close()
				rng := rand.New(rand.NewPCG(1, 2))
				cfg := s.config()
				x, w := random[float32](rng, Extent(cfg.X)), random[float32](rng, Extent(cfg.W))
				var err error
				if cfg.Filters, err = NewFilters[float32](cfg.Op.Groups, cfg.W, p); err != nil {
					b.Fatal(err)
				}
				if err := cfg.Filters.Update(w); err != nil {
					b.Fatal(err)
				}
				k, err := New(cfg, p, nil)
				if err != nil {
					b.Fatal(err)
				}
				y := make([]float32, k.Rows()*s.o)
				best := time.Hour
				for b.Loop() {
					start := time.Now()
					if err := k.Run(x, nil, y, nil, nil); err != nil {
						b.Fatal(err)
					}
					best = min(best, time.Since(start))
				}
				b.ReportMetric(flops(k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
				b.ReportMetric(flops(k)/best.Seconds()/1e9, "best-GFLOP/s")
			})
		}
	}
}

func BenchmarkLayers(b *testing.B) { benchmark(b, layers) }
func BenchmarkCliffs(b *testing.B) { benchmark(b, cliffs) }

// stems are the first layers of networks, whose images are pictures of 3 planes.
var stems = []spec{square(1, 3, 32, 224, 3, 2, 1, 1), square(1, 3, 64, 224, 7, 2, 3, 1), square(1, 3, 32, 160, 3, 1, 1, 1)}

func BenchmarkStems(b *testing.B) {
	for _, s := range stems {
		for _, planes := range []bool{false, true} {
			b.Run(fmt.Sprintf("%v/planes=%v", s, planes), func(b *testing.B) {
				p := pool.New(2)
				defer p.Close()
				rng := rand.New(rand.NewPCG(1, 2))
				cfg := s.config()
				if planes {
					cfg.X = graph.Contiguous(graph.ShapeOf(s.n, s.c, s.h, s.w)).Transpose(planesToPixels)
				}
				x, w := random[float32](rng, Extent(cfg.X)), random[float32](rng, Extent(cfg.W))
				var err error
				if cfg.Filters, err = NewFilters[float32](1, cfg.W, p); err == nil {
					err = cfg.Filters.Update(w)
				}
				if err != nil {
					b.Fatal(err)
				}
				k, err := New(cfg, p, nil)
				if err != nil {
					b.Fatal(err)
				}
				y := make([]float32, k.Rows()*s.o)
				benchGrad(b, flops(k), func() error { return k.Run(x, nil, y, nil, nil) })
			})
		}
	}
}

// BenchmarkIntegers compares convolutions of u8 by i8 with those of f32, in turn. Its metric is how many times as fast they are. A
// processor that has only f32's, such as one for Arm, has nothing to compare.
func BenchmarkIntegers(b *testing.B) {
	for _, s := range layers[1:] {
		b.Run(s.String(), func(b *testing.B) {
			p := pool.New(2)
			defer p.Close()
			cfg := s.config()
			x, w := make([]float32, Extent(cfg.X)), make([]float32, Extent(cfg.W))
			quads := cfg
			quads.X = graph.Contiguous(graph.ShapeOf(s.n, s.h, s.w, s.c/4))
			quads.W = graph.Contiguous(graph.ShapeOf(s.kh, s.kw, s.c/s.op.Groups/4, s.o))
			wide, err := NewFilters[float32](cfg.Op.Groups, cfg.W, p)
			if err != nil {
				b.Fatal(err)
			}
			narrow, err := NewQuadFilters(cfg.Op.Groups, quads.W, p)
			if err != nil {
				b.Skip("this processor has no kernel for convolutions of integers: ", err)
			}
			cfg.Filters, quads.Filters = wide, narrow
			k, err := New(cfg, p, nil)
			q, err2 := NewQuads(quads, p, nil)
			if err := errors.Join(err, err2, wide.Update(w), narrow.Update(w[:len(w)/4])); err != nil {
				b.Fatal(err)
			}
			y := make([]float32, k.Rows()*s.o)
			best := [2]time.Duration{time.Hour, time.Hour}
			for b.Loop() {
				for i, of := range []*Plan[float32]{k, q} {
					start := time.Now()
					if err := of.Run(x, nil, y, nil, nil); err != nil {
						b.Fatal(err)
					}
					best[i] = min(best[i], time.Since(start))
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(best[0].Seconds()/best[1].Seconds(), "times-f32")
			b.ReportMetric(flops(k)/best[1].Seconds()/1e9, "GFLOP/s")
		})
	}
}
