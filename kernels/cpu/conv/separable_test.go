package conv

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
)

// A blockSpec is a depthwise convolution of 3×3 between convolutions of 1×1, of channels c, e (0: no first one) and o.
type blockSpec struct{ n, side, c, e, o, stride int }

func (s blockSpec) String() string {
	return fmt.Sprintf("%dx%d²/%d-%d-%d", s.n, s.side, s.c, s.e, s.o)
}

// separable makes a plan of a block, and its weights.
func (s blockSpec) separable(b testing.TB, p *pool.Pool) (*Separable[float32], *SeparableWeights[float32]) {
	r := rand.New(rand.NewPCG(1, 2))
	filters := func(c, o int) *Filters[float32] {
		f, err := NewFilters[float32](1, graph.Contiguous(graph.ShapeOf(1, 1, c, o)), p)
		if err == nil {
			err = f.Update(random[float32](r, c*o))
		}
		if err != nil {
			b.Fatal(err)
		}
		return f
	}
	cfg := SeparableConfig[float32]{X: graph.Contiguous(graph.ShapeOf(s.n, s.side, s.side, s.c)), Kernel: [2]int{3, 3}, RowStride: s.o,
		Op: graph.SeparableConv2D{Stride: graph.IntsOf(s.stride, s.stride), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1),
			Low: 0, High: 6}}
	e := s.c
	if s.e > 0 {
		e = s.e
		cfg.Expand = filters(s.c, s.e)
	}
	cfg.Pointwise = filters(e, s.o)
	k, err := NewSeparable(cfg, p, nil)
	if err != nil {
		b.Fatal(err)
	}
	return k, &SeparableWeights[float32]{random[float32](r, 9*e), random[float32](r, e), random[float32](r, e)}
}

// blocks are those of MobileNet-v2.
var blocks = []blockSpec{
	{1, 112, 32, 0, 16, 1}, {1, 112, 16, 96, 24, 2}, {1, 56, 24, 144, 24, 1}, {1, 56, 24, 144, 32, 2}, {1, 28, 32, 192, 32, 1},
	{1, 14, 64, 384, 64, 1}, {8, 14, 96, 576, 96, 1},
}

func BenchmarkSeparable(b *testing.B) {
	for _, s := range blocks {
		for _, workers := range []int{1, 2} {
			b.Run(fmt.Sprintf("%v/workers=%d", s, workers), func(b *testing.B) {
				p := pool.New(workers)
				defer p.Close()
				k, w := s.separable(b, p)
				x, y := make([]float32, Extent(k.cfg.X)), make([]float32, k.Rows()*s.o)
				pixels := float64(k.Rows())
				flops := 2 * pixels * float64(k.channels) * float64(9+s.o)
				if s.e > 0 {
					flops += 2 * float64(s.n*s.side*s.side) * float64(s.c*s.e)
				}
				benchGrad(b, flops, func() error { return k.Run(x, w, y, nil, nil) })
			})
		}
	}
}

// TestSeparableErrors gives configurations and operands that do not fit.
func TestSeparableErrors(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	k, w := blockSpec{1, 7, 4, 8, 3, 1}.separable(t, p)
	x, y := make([]float32, Extent(k.cfg.X)), make([]float32, k.Rows()*3)
	if err := k.Run(x, w, y, nil, nil); err != nil {
		t.Fatal(err)
	}
	short := func(name string, err error) {
		t.Helper()
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	short("x", k.Run(x[1:], w, y, nil, nil))
	short("y", k.Run(x, w, y[1:], nil, nil))
	short("depthwise", k.Run(x, &SeparableWeights[float32]{w.Depthwise[1:], w.Bias, w.ExpandBias}, y, nil, nil))
	short("bias", k.Run(x, &SeparableWeights[float32]{w.Depthwise, w.Bias[1:], w.ExpandBias}, y, nil, nil))
	short("the bias of expand", k.Run(x, &SeparableWeights[float32]{w.Depthwise, w.Bias, nil}, y, nil, nil))
	short("shift", k.Run(x, w, y, &Finish[float32]{Shift: make([]float32, 2)}, nil))
	for name, change := range map[string]func(c *SeparableConfig[float32]){
		"rank":             func(c *SeparableConfig[float32]) { c.X = graph.Contiguous(graph.ShapeOf(7, 7, 4)) },
		"no last filters":  func(c *SeparableConfig[float32]) { c.Pointwise = nil },
		"channels":         func(c *SeparableConfig[float32]) { c.X = graph.Contiguous(graph.ShapeOf(1, 7, 7, 5)) },
		"no first filters": func(c *SeparableConfig[float32]) { c.Expand = nil },
		"large filters":    func(c *SeparableConfig[float32]) { c.Kernel[0] = 10 },
		"no stride":        func(c *SeparableConfig[float32]) { c.Op.Stride = graph.IntsOf(0, 1) },
		"rows":             func(c *SeparableConfig[float32]) { c.RowStride = 2 },
		"strides":          func(c *SeparableConfig[float32]) { c.X.Stride[0] = -1 },
		"filters of 2×1": func(c *SeparableConfig[float32]) {
			var err error
			if c.Expand, err = NewFilters[float32](1, graph.Contiguous(graph.ShapeOf(2, 1, 4, 8)), p); err != nil {
				t.Fatal(err)
			}
		},
	} {
		cfg := k.cfg
		change(&cfg)
		_, err := NewSeparable(cfg, p, gemm.NewWorkspace())
		short(name, err)
	}
	_, err := NewSeparable(k.cfg, nil, nil)
	short("pool", err)
}
