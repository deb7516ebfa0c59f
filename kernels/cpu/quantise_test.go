package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/ref/cases"
)

// TestCopyStored copies elements that share bytes, an odd number of them, and 8-bit floating-point numbers.
func TestCopyStored(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, d := range graph.StoredTypes() {
		for _, n := range []int{0, 1, 6, 9} {
			checkOp(t, graph.Copy{}, graphtest.Tensor(r, graph.TypeOf(d, n)))
		}
	}
}

// TestCastsToBytes cuts numbers to integers of 8 and 16 bits, at the ends of their range, beyond it, and of NaN.
func TestCastsToBytes(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	x := graphtest.Tensor(r, graph.TypeOf(graph.F32, 13, 91))
	ends := []float64{0, -0.9, 126.9, 127, 127.5, 128, -128, -128.9, -129, 254.99, 255, 256, 32767.5, 32768, -32769, 65535, 65536, 1e6,
		-1e6, 3e9, -3e9, 1e30, -1e30, math.Inf(1), math.Inf(-1), math.NaN()}
	for i := range x.Type.Shape.Elems() {
		x.SetFloat(i, 300*x.Float(i))
		if i%3 == 0 {
			x.SetFloat(i, ends[i/3%len(ends)])
		}
	}
	for _, d := range []graph.DType{graph.U8, graph.I8, graph.U16, graph.I16} {
		f, _ := bodied(t, graph.AnchorNone, func(b *graph.Builder, in cases.Inputs) {
			y := b.CastTo(d, in(graph.F32, 13, 91))
			b.Output("", y)
			b.Output("", b.BinaryScalar(graph.Add, b.CastTo(graph.F32, y), 1))
		})
		checkOp(t, f, x)
	}
}

// TestPanelsThroughViews multiplies rows and scales that are read through strides.
func TestPanelsThroughViews(t *testing.T) {
	f32 := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
	types := []graph.Type{f32(19, 3), {DType: graph.I8, Shape: graph.PanelShape(graph.I8, 19, 40)}, f32(), f32(40)}
	g := graphtest.Built(t, func(b *graph.Builder) {
		in := make([]*graph.Node, len(types))
		for i, u := range types {
			in[i] = b.Input(string(rune('a'+i)), u)
		}
		y := b.Add(graph.PanelMatMul{Columns: 40}, b.Transpose(in[0], 1, 0), in[1], b.Broadcast(in[2], graph.ShapeOf(1, 40)))
		b.Output("y", b.Binary(graph.Add, y, b.Broadcast(in[3], y.Type.Shape)))
	})
	r := rand.New(rand.NewPCG(1, 2))
	var args []*graph.Tensor
	for _, u := range types {
		args = append(args, graphtest.Tensor(r, u))
	}
	checkOp(t, graph.Fusion{Anchor: graph.AnchorMatMul, Kind: graph.KindLinear, Body: g}, args...)
}

// TestPanelsRefused compiles panels that do not lie as they should.
func TestPanelsRefused(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	x := Contiguous(graph.TypeOf(graph.F32, 2, 8))
	panels := Contiguous(graph.Type{DType: graph.I8, Shape: graph.PanelShape(graph.I8, 8, 32)})
	panels.Layout.Stride[1]++
	y := Contiguous(graph.TypeOf(graph.F32, 2, 32))
	if _, err := Compile(graph.PanelMatMul{Columns: 32}, []Operand{x, panels}, []Operand{y}, NewEnv(p)); err == nil {
		t.Error("panels with gaps are accepted")
	}
}
