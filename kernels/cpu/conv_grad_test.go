package cpu

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/ref/cases"
)

// drawnConv is a convolution of NHWC with small and odd sizes: of few groups, or with filters of one channel.
type drawnConv struct {
	op        graph.Conv2D
	x, w, y   graph.Shape
	transpose graph.Conv2DTranspose
	filters   graph.Conv2DFilterGrad
}

func drawConv(r *rand.Rand) drawnConv {
	pick := func(n int) int { return 1 + r.IntN(n) }
	for {
		groups := pick(3)
		ch, out := pick(20), pick(20)
		if r.IntN(2) == 0 {
			groups, ch, out = pick(50), 1, pick(3)
		}
		if r.IntN(12) == 0 { // no filters
			out = 0
		}
		c := drawnConv{op: graph.Conv2D{Stride: graph.IntsOf(pick(3), pick(3)), Dilation: graph.IntsOf(pick(2), pick(2)),
			Pad: graph.IntsOf(r.IntN(4), r.IntN(4), r.IntN(4), r.IntN(4)), Groups: groups, Layout: graph.NHWC},
			x: graph.ShapeOf(r.IntN(3), pick(12), pick(12), groups*ch), w: graph.ShapeOf(pick(4), pick(4), ch, groups*out)}
		y, err := graph.InfoOf(c.op).Infer(c.op, []graph.Type{{DType: graph.F32, Shape: c.x}, {DType: graph.F32, Shape: c.w}})
		if err != nil {
			continue // the filters do not fit
		}
		c.y = y[0].Shape
		c.transpose = graph.Conv2DTranspose{Stride: c.op.Stride, Dilation: c.op.Dilation, Pad: c.op.Pad, Groups: groups,
			H: c.x.At(1), W: c.x.At(2), Layout: graph.NHWC}
		c.filters = graph.Conv2DFilterGrad{Stride: c.op.Stride, Dilation: c.op.Dilation, Pad: c.op.Pad, Groups: groups,
			KH: c.w.At(0), KW: c.w.At(1), Layout: graph.NHWC}
		return c
	}
}

// TestConvNHWC computes convolutions and their gradients.
func TestConvNHWC(t *testing.T) {
	r := rand.New(rand.NewPCG(51, 52))
	for n := range 60 {
		c, d := drawConv(r), []graph.DType{graph.F32, graph.F64}[n%2]
		tensor := func(s graph.Shape) *graph.Tensor { return drawTensor(r, d, -2, 2, s.Slice()...) }
		x, w, y := tensor(c.x), tensor(c.w), tensor(c.y)
		checkOp(t, c.op, x, w)
		checkOp(t, c.transpose, y, w)
		checkOp(t, c.filters, x, y)
	}
}

// TestConvBodies computes what may follow a convolution and its transpose: what is applied in registers, and what is not.
func TestConvBodies(t *testing.T) {
	r := rand.New(rand.NewPCG(53, 54))
	type inputs = cases.Inputs
	perChannel := func(b *graph.Builder, in inputs, y *graph.Node) *graph.Node {
		s := y.Type.Shape
		return b.Broadcast(in(y.Type.DType, s.At(3)), s)
	}
	whole := func(in inputs, y *graph.Node) *graph.Node { return in(y.Type.DType, y.Type.Shape.Slice()...) }
	bodies := map[string]func(b *graph.Builder, in inputs, y *graph.Node){
		"bias": func(b *graph.Builder, in inputs, y *graph.Node) {
			b.Output("", b.Binary(graph.Add, perChannel(b, in, y), y))
		},
		"norm, residual, relu": func(b *graph.Builder, in inputs, y *graph.Node) {
			y = b.Binary(graph.Add, b.Binary(graph.Mul, y, perChannel(b, in, y)), perChannel(b, in, y))
			b.Output("", b.Unary(graph.Relu, b.Binary(graph.Add, y, whole(in, y))))
		},
		"residual, bias, clip": func(b *graph.Builder, in inputs, y *graph.Node) {
			y = b.Binary(graph.Add, b.Binary(graph.Add, y, whole(in, y)), perChannel(b, in, y))
			b.Output("", b.BinaryScalar(graph.Min, b.BinaryScalar(graph.Max, y, -0.5), 1))
		},
		"empty bounds": func(b *graph.Builder, _ inputs, y *graph.Node) {
			b.Output("", b.BinaryScalar(graph.Max, b.BinaryScalar(graph.Min, y, -1), 2))
		},
		"relu before a bias": func(b *graph.Builder, in inputs, y *graph.Node) {
			b.Output("", b.Binary(graph.Add, b.Unary(graph.Relu, y), perChannel(b, in, y)))
		},
		"bias before a scale": func(b *graph.Builder, in inputs, y *graph.Node) {
			b.Output("", b.Binary(graph.Mul, b.Binary(graph.Add, y, perChannel(b, in, y)), perChannel(b, in, y)))
		},
		"twice": func(b *graph.Builder, _ inputs, y *graph.Node) { b.Output("", b.Binary(graph.Add, y, y)) },
		"difference": func(b *graph.Builder, in inputs, y *graph.Node) {
			b.Output("", b.Binary(graph.Sub, perChannel(b, in, y), y))
		},
		"one number for each image": func(b *graph.Builder, in inputs, y *graph.Node) {
			b.Output("", b.Binary(graph.Add, y, b.Broadcast(in(y.Type.DType, y.Type.Shape.At(0), 1, 1, 1), y.Type.Shape)))
		},
		"two results": func(b *graph.Builder, in inputs, y *graph.Node) {
			z := b.Unary(graph.Tanh, b.Binary(graph.Add, y, perChannel(b, in, y)))
			b.Output("", z)
			b.Output("", b.Binary(graph.Gt, z, y))
		},
	}
	for name, build := range bodies {
		t.Run(name, func(t *testing.T) {
			for n := range 8 {
				c, d := drawConv(r), []graph.DType{graph.F32, graph.F64}[n%2]
				for _, transposed := range []bool{false, true} {
					f, types := bodied(t, graph.AnchorConv, func(b *graph.Builder, in inputs) {
						op, image := graph.Op(c.op), c.x
						if transposed {
							op, image = c.transpose, c.y
						}
						build(b, in, b.Add(op, in(d, image.Slice()...), in(d, c.w.Slice()...)))
					})
					args := make([]*graph.Tensor, len(types))
					for i, u := range types {
						args[i] = drawTensor(r, u.DType, -1.5, 1.5, u.Shape.Slice()...)
					}
					checkOp(t, f, args...)
				}
			}
		})
	}
}

// TestConvRefused says why gradients of images in NCHW have no kernel.
func TestConvRefused(t *testing.T) {
	c := drawConv(rand.New(rand.NewPCG(55, 56)))
	c.transpose.Layout, c.filters.Layout = graph.NCHW, graph.NCHW
	x := graph.NewTensor(graph.TypeOf(graph.F32, 1, 2, 4, 4))
	w := graph.NewTensor(graph.TypeOf(graph.F32, 2, 2, 1, 1))
	at := graph.IntsOf(1, 1)
	wantError(t, graph.Conv2DTranspose{Stride: at, Dilation: at, Pad: graph.IntsOf(0, 0, 0, 0), Groups: 1, H: 4, W: 4},
		[]*graph.Tensor{x, w}, "products of patches")
	wantError(t, graph.Conv2DFilterGrad{Stride: at, Dilation: at, Pad: graph.IntsOf(0, 0, 0, 0), Groups: 1, KH: 1, KW: 1},
		[]*graph.Tensor{x, x}, "products of patches")
}

// BenchmarkDepthwiseConv runs a depthwise convolution with a bias and a rectifier, as networks have it.
func BenchmarkDepthwiseConv(b *testing.B) {
	op := graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1), Groups: 128,
		Layout: graph.NHWC}
	f, types, err := cases.Bodied(graph.AnchorConv, func(g *graph.Builder, in cases.Inputs) {
		y := g.Add(op, in(graph.F32, 1, 56, 56, 128), in(graph.F32, 3, 3, 1, 128))
		g.Output("", g.Unary(graph.Relu, g.Binary(graph.Add, y, g.Broadcast(in(graph.F32, 128), y.Type.Shape))))
	})
	if err != nil {
		b.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	args := make([]*graph.Tensor, len(types))
	for i, u := range types {
		args[i] = drawTensor(r, u.DType, -1, 1, u.Shape.Slice()...)
	}
	for _, workers := range []int{1, 2} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			p := pool.New(workers)
			defer p.Close()
			s, err := stand(f, args, p)
			if err != nil {
				b.Fatal(err)
			}
			best := time.Hour
			for b.Loop() {
				start := time.Now()
				if err := s.run(); err != nil {
					b.Fatal(err)
				}
				best = min(best, time.Since(start))
			}
			b.ReportMetric(float64(best)/1e3, "best-µs")
		})
	}
}
