package fusec_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"fusec"
	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/ref"
)

// TestVolumes runs convolutions and pools over one and three axes, and their gradients, on the targets that compute
// gradients.
func TestVolumes(t *testing.T) {
	of := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
	b := graph.NewBuilder("volumes")
	x := b.Input("x", of(2, 4, 5, 4, 6))
	w, v, s, u := b.Param("w", of(6, 2, 3, 2, 3)), b.Param("v", of(6, 3, 2, 2, 1)), b.Param("s", of(5, 3, 3)),
		b.Param("u", of(3, 3, 2, 1, 1))
	y := b.Convolve(x, w, graph.Window{Stride: []int{2, 1, 1}, Dilation: []int{1, 2, 1}, Lo: []int{1, 1, 0}, Hi: []int{1, 0, 1}}, 2)
	y = b.MaxPool(b.Unary(graph.Relu, y), graph.Window{Kernel: []int{2, 2, 2}, Stride: []int{1, 2, 2}, Dilation: []int{1, 1, 2},
		Ceil: true})
	z := b.ConvolveTransposed(y, v, graph.Window{Stride: []int{2, 2, 1}, Lo: []int{0, 1, 0}}, 1, []int{1, 0, 0})
	z = b.Convolve(b.Unary(graph.Sin, z), u, graph.Window{Stride: []int{2, 1, 1}}, 1)
	z = b.AvgPool(z, graph.Window{Kernel: []int{3, 2, 1}, Lo: []int{1, 0, 0}}, false)
	line := b.Reshape(z, 2, 3, z.Type.Shape.Elems()/6)
	line = b.Convolve(line, s, graph.Window{Stride: []int{2}, Hi: []int{3}}, 1)
	line = b.LpPool(line, graph.Window{Kernel: []int{3}, Stride: []int{2}, Ceil: true}, 2)
	cost := b.Reduce(graph.Mean, b.Unary(graph.Tanh, line), false, 0, 1, 2)
	b.Output("y", line)
	b.Output("cost", cost)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	wrt := []*graph.Node{x, w, v, s, u}
	whole, nodes := g.Clone()
	wb := graph.Extend(whole)
	var at []*graph.Node
	for _, n := range wrt {
		at = append(at, nodes[n])
	}
	grads, err := graph.Gradients(whole, nodes[cost], at)
	if err != nil {
		t.Fatal(err)
	}
	var opts []fusec.CompileOption
	for i, n := range wrt {
		name := fmt.Sprint("d", n.Name)
		wb.Output(name, grads[i])
		opts = append(opts, fusec.WithGradient(name, cost, n))
	}
	if whole, err = wb.Graph(); err != nil {
		t.Fatal(err)
	}
	in := graphtest.Values(rand.New(rand.NewPCG(1, 2)), whole)
	want, _, err := ref.EvalBound(whole, in)
	if err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]fusec.Option{
		"cpu": fusec.WithTarget("cpu"), "emulator": emulated(t), "ref": fusec.WithTarget("ref"),
	} {
		t.Run(name, func(t *testing.T) {
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
				if err := ref.Check(got[out], w); err != nil {
					t.Errorf("output %q: %v", out, err)
				}
			}
		})
	}
}
