package fusec_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"fusec"
	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/ref"
)

// normedBlock is a residual block with batch norms in training and a pool, whose values between layers have the given type.
func normedBlock(b *graph.Builder, l graph.ImageLayout, d graph.DType) (cost *graph.Node, wrt []*graph.Node) {
	of := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
	wide := func(v *graph.Node) *graph.Node { return b.CastTo(graph.F32, v) }
	const n, c, h, w = 2, 8, 6, 5
	images, filters := of(n, h, w, c), of(3, 3, c, c)
	if l == graph.NCHW {
		images, filters = of(n, c, h, w), of(c, c, 3, 3)
	}
	x := b.Input("x", images)
	wrt = append(wrt, x)
	layer := func(name string, v, more *graph.Node) *graph.Node {
		f := b.Param(name+".w", filters)
		gamma, beta := b.Param(name+".gamma", of(c)), b.Param(name+".beta", of(c))
		mean, variance := b.State(name+".mean", of(c)), b.State(name+".variance", of(c))
		wrt = append(wrt, f, gamma, beta)
		op := graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1,
			Layout: l}
		y := b.CastTo(d, b.Add(op, v, b.CastTo(d, f)))
		rows := func(v *graph.Node) *graph.Node {
			if l == graph.NCHW {
				return v
			}
			return b.Reshape(v, n*h*w, c)
		}
		norm := b.Add(graph.BatchNorm{Eps: 1e-3, Momentum: 0.9, Train: true}, wide(rows(y)), gamma, beta, mean, variance)
		b.Update(mean, b.Add(graph.Result{Index: 1}, norm))
		b.Update(variance, b.Add(graph.Result{Index: 2}, norm))
		z := norm
		if more != nil {
			z = b.Binary(graph.Add, z, wide(rows(more)))
		}
		return b.Reshape(b.CastTo(d, b.Unary(graph.Relu, z)), images.Shape.Slice()...)
	}
	first := layer("a", b.CastTo(d, x), nil)
	y := layer("c", layer("b", first, nil), first)
	pool := graph.Pool{Fn: graph.MaxPool, Kernel: graph.IntsOf(3, 3), Stride: graph.IntsOf(2, 2), Pad: graph.IntsOf(1, 1, 1, 1),
		Layout: l}
	p := b.Add(pool, wide(y))
	return b.Reduce(graph.Mean, b.Unary(graph.Tanh, p), false, 0, 1, 2, 3), wrt
}

// apart is how far two tensors are from each other, as a part of the second's length.
func apart(got *graph.Tensor, want ref.Value) float64 {
	var far, size float64
	for i := range want.Type.Shape.Elems() {
		w := want.F[i]
		far += (got.Float(i) - w) * (got.Float(i) - w)
		size += w * w
	}
	return math.Sqrt(far / max(size, 1e-30))
}

// TestBatchNormBlock compares batch norms in training and all their gradients with the reference: in both layouts of images, and
// with values in 16 bits between launches.
func TestBatchNormBlock(t *testing.T) {
	for _, c := range []struct {
		layout graph.ImageLayout
		dtype  graph.DType
	}{{graph.NHWC, graph.F32}, {graph.NCHW, graph.F32}, {graph.NHWC, graph.BF16}} {
		b := graph.NewBuilder("block")
		cost, wrt := normedBlock(b, c.layout, c.dtype)
		b.Output("cost", cost)
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		whole, opts := withGradients(t, g, cost, wrt)
		in := graphtest.Values(rand.New(rand.NewPCG(1, 2)), whole)
		want, updates, err := ref.EvalBound(whole, in)
		if err != nil {
			t.Fatal(err)
		}
		check := func(got *graph.Tensor, want ref.Value) error {
			if c.dtype == graph.F32 {
				return ref.Check(got, want)
			}
			if far := apart(got, want); far > 0.02 {
				return fmt.Errorf("%.3g of its length away", far)
			}
			return nil
		}
		targets := map[string]fusec.Option{"emulator": emulated(t)}
		if c.dtype == graph.F32 {
			targets["cpu"] = fusec.WithTarget("cpu")
		} else {
			opts = append(opts, fusec.WithPrecision(fusec.BF16))
		}
		for name, target := range targets {
			t.Run(fmt.Sprint(c, " ", name), func(t *testing.T) {
				p, err := fusec.Compile(g, append(slices.Clip(opts), target)...)
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
				got, err := p.Run(in)
				if err != nil {
					t.Fatal(err)
				}
				for out, w := range want {
					if err := check(got[out], w); err != nil {
						t.Errorf("output %q: %v", out, err)
					}
				}
				for state, w := range updates {
					v, err := p.State(state)
					if err != nil {
						t.Fatal(err)
					}
					if err := check(v, w); err != nil {
						t.Errorf("state %q: %v", state, err)
					}
				}
			})
		}
	}
}
