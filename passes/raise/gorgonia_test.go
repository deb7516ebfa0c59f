package raise_test

import (
	"strings"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/passes"
	"fusec/passes/passtest"
)

// TestConvolutionsOfGorgonia: what users of Gorgonia write for convolutions and pools becomes one operation, with nothing
// left of patches.
func TestConvolutionsOfGorgonia(t *testing.T) {
	must := gorgonia.Must
	in := func(g *gorgonia.ExprGraph, name string, shape ...int) *gorgonia.Node {
		return gorgonia.NewTensor(g, tensor.Float64, len(shape), gorgonia.WithShape(shape...), gorgonia.WithName(name),
			gorgonia.WithInit(gorgonia.GlorotN(1)))
	}
	reshape := func(x *gorgonia.Node, shape ...int) *gorgonia.Node { return must(gorgonia.Reshape(x, shape)) }
	for _, tt := range []struct {
		name  string
		build func(g *gorgonia.ExprGraph)
		want  string // the operations that are left
	}{
		{"Conv1d", func(g *gorgonia.ExprGraph) {
			must(gorgonia.Conv1d(in(g, "x", 2, 3, 1, 9), in(g, "w", 4, 3, 1, 3), 3, 1, 2, 1))
		}, "conv2d"},
		{"Conv2d", func(g *gorgonia.ExprGraph) {
			must(gorgonia.Conv2d(in(g, "x", 2, 3, 7, 8), in(g, "w", 4, 3, 3, 2), tensor.Shape{3, 2}, []int{1, 0}, []int{2, 1}, []int{1, 2}))
		}, "conv2d"},
		{"Im2Col and Mul", func(g *gorgonia.ExprGraph) {
			cols := must(gorgonia.Im2Col(in(g, "x", 2, 3, 6, 5), tensor.Shape{3, 3}, tensor.Shape{1, 1}, tensor.Shape{1, 1},
				tensor.Shape{1, 1}))
			y := must(gorgonia.Mul(reshape(cols, 60, 27), in(g, "w", 27, 4)))
			must(gorgonia.Transpose(reshape(y, 2, 6, 5, 4), 0, 3, 1, 2))
		}, "transpose[1,0] reshape[4,3,3,3] conv2d"},
		{"Mul of pixels", func(g *gorgonia.ExprGraph) {
			x := must(gorgonia.Tanh(in(g, "x", 1, 3, 4, 5)))
			reshape(must(gorgonia.Mul(in(g, "w", 6, 3), reshape(x, 3, 20))), 1, 6, 4, 5)
		}, "tanh reshape[6,3,1,1] conv2d"},
		{"slices and Concat", func(g *gorgonia.ExprGraph) {
			x := must(gorgonia.Tanh(in(g, "x", 2, 3, 6, 5)))
			var ys gorgonia.Nodes
			for c := range 3 {
				channel := reshape(must(gorgonia.Slice(x, nil, gorgonia.S(c))), 2, 1, 6, 5)
				w := in(g, string(rune('a'+c)), 1, 1, 3, 3)
				ys = append(ys, must(gorgonia.Conv2d(channel, w, tensor.Shape{3, 3}, []int{1, 1}, []int{1, 1}, []int{1, 1})))
			}
			must(gorgonia.Concat(1, ys...))
		}, "tanh concat conv2d"},
		{"rows of pixels and Mul", func(g *gorgonia.ExprGraph) {
			rows := reshape(must(gorgonia.Transpose(must(gorgonia.Tanh(in(g, "x", 2, 3, 4, 5))), 0, 2, 3, 1)), 40, 3)
			y := must(gorgonia.Mul(rows, in(g, "w", 3, 6)))
			must(gorgonia.Transpose(reshape(y, 2, 4, 5, 6), 0, 3, 1, 2))
		}, "tanh transpose[1,0] reshape[6,3,1,1] conv2d"},
		{"shifts", func(g *gorgonia.ExprGraph) {
			x := must(gorgonia.Tanh(in(g, "x", 2, 3, 6, 5)))
			var sum *gorgonia.Node
			for i := range 3 {
				part := must(gorgonia.Slice(x, nil, nil, gorgonia.S(i, i+4)))
				part = must(gorgonia.BroadcastHadamardProd(part, in(g, string(rune('a'+i)), 1, 3, 1, 1), nil, []byte{0, 2, 3}))
				if sum == nil {
					sum = part
				} else {
					sum = must(gorgonia.Add(sum, part))
				}
			}
		}, "tanh reshape[3,1] reshape[3,1] reshape[3,1] concat reshape[3,1,3,1] conv2d"},
		{"Mean of rows of pixels", func(g *gorgonia.ExprGraph) {
			x := must(gorgonia.Tanh(in(g, "x", 2, 3, 4, 5)))
			must(gorgonia.Mean(reshape(x, 2, 3, 20), 2))
		}, "tanh mean[2,3]"},
		{"GlobalAveragePool2D", func(g *gorgonia.ExprGraph) {
			must(gorgonia.GlobalAveragePool2D(must(gorgonia.Tanh(in(g, "x", 2, 3, 4, 5)))))
		}, "tanh mean[2,3]"},
		{"Upsample2D", func(g *gorgonia.ExprGraph) {
			must(gorgonia.Upsample2D(must(gorgonia.Tanh(in(g, "x", 2, 3, 4, 5))), 2))
		}, "tanh reshape[2,3,4,1,5,1] broadcast[2,3,4,2,5,2] reshape[2,3,8,10]"},
		{"patches with other weights for each image", func(g *gorgonia.ExprGraph) {
			cols := must(gorgonia.Im2Col(in(g, "x", 2, 3, 6, 5), tensor.Shape{3, 3}, tensor.Shape{1, 1}, tensor.Shape{1, 1},
				tensor.Shape{1, 1}))
			must(gorgonia.BatchedMatMul(reshape(cols, 2, 30, 27), in(g, "w", 2, 27, 4)))
		}, "im2col reshape[2,30,27] matmul"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := gorgonia.NewGraph()
			tt.build(g)
			im, err := fgorgonia.Import(g, fgorgonia.Options{})
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range im.Graph.Nodes {
				if _, ok := n.Op.(graph.Host); ok {
					t.Errorf("%v runs on the host", n)
				}
			}
			h, _ := passtest.Run(t, im.Graph, passes.Config{Stop: "simplify-again"})
			if got := strings.TrimSpace(passtest.Ops(h)); got != tt.want {
				t.Errorf("left: %s\nwant: %s", got, tt.want)
			}
		})
	}
}
