package panels_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/cpu/gemm"
	"fusec/passes"
	"fusec/passes/passtest"
)

// rounded is x as whole numbers from 0 to 255, of which zero stands for 0.
func rounded(b *graph.Builder, x *graph.Node, zero float64) *graph.Node {
	y := b.Unary(graph.Round, b.BinaryScalar(graph.Mul, x, 60))
	if zero != 0 {
		y = b.BinaryScalar(graph.Add, y, zero)
	}
	return b.BinaryScalar(graph.Max, b.BinaryScalar(graph.Min, y, 255), 0)
}

// A convolved is a convolution of numbers of 8 bits.
type convolved struct {
	name     string
	channels int
	pad      int
	groups   int
	scale    []int // of the filters
	axis     int
	zeros    bool // of the filters
	x        func(b *graph.Builder, channels int) *graph.Node
	miss     string
}

func bytesIn(b *graph.Builder, channels int) *graph.Node {
	return b.Input("x", graph.TypeOf(graph.U8, 2, channels, 5, 4))
}

func floatsIn(b *graph.Builder, channels int) *graph.Node {
	return b.Input("x", graph.TypeOf(graph.F32, 2, channels, 5, 4))
}

// TestConvolutions has images and filters in every form, and compares with the graph as it is written.
func TestConvolutions(t *testing.T) {
	if _, err := gemm.Quads(); err != nil {
		t.Skip("this processor has no kernel for convolutions of integers: ", err)
	}
	cast := func(b *graph.Builder, channels int) *graph.Node { return b.CastTo(graph.F32, bytesIn(b, channels)) }
	moved := func(b *graph.Builder, channels int) *graph.Node {
		return b.BinaryScalar(graph.Sub, cast(b, channels), 131)
	}
	dequantized := func(to graph.DType, zero float64, known bool) func(b *graph.Builder, channels int) *graph.Node {
		return func(b *graph.Builder, channels int) *graph.Node {
			scale := b.Scalar(graph.F32, 0.02)
			args := []*graph.Node{floatsIn(b, channels), scale}
			if zero != 0 && known {
				args = append(args, b.Scalar(to, zero))
			} else if zero != 0 {
				args = append(args, b.Param("zero", graph.TypeOf(to)))
			}
			q := b.Add(graph.Quantize{To: to}, args...)
			return b.Add(graph.Dequantize{}, append([]*graph.Node{q}, args[1:]...)...)
		}
	}
	d := device(t)
	for _, f := range []convolved{
		{name: "cast", channels: 8, x: cast}, {name: "padded", channels: 4, pad: 1, x: cast, scale: []int{6}},
		{name: "zero", channels: 8, pad: 1, x: moved}, {name: "three channels", channels: 3, x: cast, pad: 1},
		{name: "three channels and a zero", channels: 3, pad: 1, x: moved, scale: []int{6}},
		{name: "groups", channels: 8, groups: 2, x: moved},
		{name: "rounded", channels: 8, pad: 1, x: func(b *graph.Builder, n int) *graph.Node { return rounded(b, floatsIn(b, n), 0) }},
		{name: "rounded and moved", channels: 8, pad: 1, x: func(b *graph.Builder, n int) *graph.Node {
			return b.BinaryScalar(graph.Sub, rounded(b, floatsIn(b, n), 7), 7)
		}},
		{name: "pool", channels: 8, x: func(b *graph.Builder, n int) *graph.Node {
			pool := graph.Pool{Fn: graph.MaxPool, Kernel: graph.IntsOf(2, 2), Stride: graph.IntsOf(1, 1), Pad: graph.IntsOf(0, 0, 0, 0)}
			return b.Add(pool, rounded(b, floatsIn(b, n), 0))
		}},
		{name: "dequantized", channels: 4, pad: 1, x: dequantized(graph.U8, 0, true), scale: []int{6}},
		{name: "dequantized with a zero", channels: 4, pad: 1, x: dequantized(graph.U8, 9, true)},
		{name: "unknown zero", channels: 4, x: dequantized(graph.U8, 9, false), miss: "the zero point is not known"},
		{name: "signed", channels: 4, pad: 1, x: dequantized(graph.I8, 0, true)},
		{name: "signed with a zero", channels: 3, pad: 1, x: dequantized(graph.I8, -9, true)},
		{name: "wide", channels: 4, x: dequantized(graph.I16, 0, true), miss: "it is of i16"},
		{name: "floats", channels: 4, x: floatsIn, miss: "not known to be integers"},
		{name: "few", channels: 6, groups: 2, x: cast, miss: "groups of 3 channels"},
		{name: "zero points", channels: 4, x: cast, zeros: true, miss: "they have a zero point"},
		{name: "scales of channels", channels: 4, x: cast, scale: []int{4}, axis: 1, miss: "not one for each filter"},
	} {
		t.Run(f.name, func(t *testing.T) {
			g := graphtest.Built(t, func(b *graph.Builder) {
				groups := max(f.groups, 1)
				args := []*graph.Node{b.Param("w", graph.TypeOf(graph.I8, 6, f.channels/groups, 3, 3)),
					b.Param("scale", graph.TypeOf(graph.F32, f.scale...))}
				if f.zeros {
					args = append(args, b.Param("zeros", graph.TypeOf(graph.I8, f.scale...)))
				}
				w := b.Add(graph.Dequantize{Axis: f.axis}, args...)
				y := b.Add(graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Groups: groups,
					Pad: graph.IntsOf(f.pad, 0, f.pad, f.pad)}, f.x(b, f.channels), w)
				b.Output("y", b.Unary(graph.Relu, y))
			})
			out, tr := passtest.Run(t, g, passes.Config{Frozen: true, Target: d})
			stage := passtest.Stage(t, tr, "pack-quantised")
			if got := len(stage.Matches); (got == 1) != (f.miss == "") {
				t.Errorf("%d matches, %v", got, stage.Misses)
			}
			if f.miss != "" {
				if misses := fmt.Sprint(passtest.Misses(t, stage, "panels")); !strings.Contains(misses, f.miss) {
					t.Errorf("misses %s", misses)
				}
			}
			in := graphtest.Values(rand.New(rand.NewPCG(1, 2)), g)
			passtest.SameOnCPU(t, g, out, in)
		})
	}
}

// TestWrittenConvolutions has convolutions of integers in a graph as it is given: those without a kernel are computed in f32.
func TestWrittenConvolutions(t *testing.T) {
	d := device(t)
	for _, channels := range []int{3, 4, 24} {
		for _, l := range []graph.ImageLayout{graph.NCHW, graph.NHWC} {
			g := graphtest.Built(t, func(b *graph.Builder) {
				op := graph.Conv2D{Stride: graph.IntsOf(2, 1), Dilation: graph.IntsOf(1, 2), Pad: graph.IntsOf(1, 2, 0, 1), Groups: 1,
					Layout: l}
				x := b.Input("x", graph.Type{DType: graph.U8, Shape: l.Image(2, channels, 6, 7)})
				b.Output("y", b.Add(op, x, b.Param("w", graph.Type{DType: graph.I8, Shape: l.Filters(5, channels, 3, 2)})))
			})
			out, _ := passtest.Run(t, g, passes.Config{Frozen: true, Target: d})
			passtest.SameOnCPU(t, g, out, graphtest.Values(rand.New(rand.NewPCG(3, 4)), g))
		}
	}
}

// TestNoGradient asks for the gradient of a convolution of integers.
func TestNoGradient(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		op := graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(0, 0, 0, 0), Groups: 1}
		y := b.Add(op, b.Input("x", graph.TypeOf(graph.U8, 1, 4, 3, 3)), b.Input("w", graph.TypeOf(graph.I8, 2, 4, 2, 2)))
		b.Output("y", b.Reduce(graph.Sum, y, false, 0, 1, 2, 3))
	})
	y := g.Outputs[0].Node
	if _, err := graph.VJP(g, []*graph.Node{y}, []*graph.Node{graph.Extend(g).Scalar(graph.F32, 1)}, g.Nodes[:2]); err == nil ||
		!strings.Contains(err.Error(), "has no gradient") {
		t.Errorf("the gradient gives %v", err)
	}
}
