package attention_test

import (
	"math"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec/cmd/models/zoo"
	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/lowering/cpu"
	"fusec/passes"
)

func must(n *gorgonia.Node, err error) *gorgonia.Node {
	if err != nil {
		panic(err)
	}
	return n
}

// TestAttentionOfGorgonia compiles what users of Gorgonia write, and looks for one launch for each attention and for
// nothing that is copied around it.
func TestAttentionOfGorgonia(t *testing.T) {
	in := func(g *gorgonia.ExprGraph, name string, shape ...int) *gorgonia.Node {
		return gorgonia.NewTensor(g, tensor.Float32, len(shape), gorgonia.WithShape(shape...), gorgonia.WithName(name),
			gorgonia.WithInit(gorgonia.GlorotN(1)))
	}
	// attend is attention over three or four axes with a mask.
	attend := func(g *gorgonia.ExprGraph, mask *gorgonia.Node, repeat []byte, shape ...int) {
		s := must(gorgonia.BatchedMatMul(in(g, "q", shape...), in(g, "k", shape...), false, true))
		s = must(gorgonia.HadamardProd(s, gorgonia.NewConstant(float32(1/math.Sqrt(4)))))
		s = must(gorgonia.BroadcastAdd(s, mask, nil, repeat))
		must(gorgonia.BatchedMatMul(must(gorgonia.SoftMax(s, len(shape)-1)), in(g, "v", shape...)))
	}
	for _, tt := range []struct {
		name       string
		graph      *gorgonia.ExprGraph
		attentions int
		want       string
	}{
		{"block", zoo.TransformerBlock(2, 5, 12, 3, 20).Graph, 1, "[2,3,5,4]"},
		{"one of everything", zoo.TransformerBlock(1, 1, 4, 1, 3).Graph, 1, "[1,1,1,4]"},
		{"stack", zoo.Transformer(2, 2, 5, 12, 3, 20).Graph, 2, "[2,3,5,4]"},
		{"3d, mask for all", func() *gorgonia.ExprGraph {
			g := gorgonia.NewGraph()
			attend(g, in(g, "mask", 1, 5, 5), []byte{0}, 6, 5, 4)
			return g
		}(), 1, "[6,5,4]"},
		{"4d, mask by batch and key", func() *gorgonia.ExprGraph {
			g := gorgonia.NewGraph()
			attend(g, in(g, "mask", 2, 1, 1, 5), []byte{1, 2}, 2, 3, 5, 4)
			return g
		}(), 1, "[2,3,5,4]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			im, err := fgorgonia.Import(tt.graph, fgorgonia.Options{})
			if err != nil {
				t.Fatal(err)
			}
			h, _, err := passes.Run(im.Graph, passes.Config{Target: cpu.New(), Verify: true})
			if err != nil {
				t.Fatal(err)
			}
			found := 0
			for _, n := range h.Nodes {
				switch op := n.Op.(type) {
				case graph.Copy:
					t.Errorf("a copy is left: %s", n.Where())
				case graph.Fusion:
					if op.Kind == graph.KindSoftmax {
						t.Errorf("a softmax is left: %s", n.Where())
					}
					if op.Kind == graph.KindAttention {
						found++
						if got := op.Anchored().Args[0].Type.Shape.String(); got != tt.want {
							t.Errorf("an attention of queries %s, want %s", got, tt.want)
						}
					}
				}
			}
			if found != tt.attentions {
				t.Errorf("%d attentions", found)
			}
		})
	}
}
