package cpu

import (
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/cpu/pool"
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
