package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cuda"
	"fusec/lowering/cuda/cudatest"
)

// TestMatMulLadder multiplies odd sizes, transposed and not, with an epilogue, by every rung.
func TestMatMulLadder(t *testing.T) {
	d := cudatest.Open(t)
	r := rand.New(rand.NewPCG(3, 4))
	var checks []cudatest.Check
	for _, s := range [][3]int{{1, 1, 1}, {33, 70, 17}, {20, 16, 48}} {
		for i, rung := range cuda.MatMulLadder() {
			b := graph.NewBuilder("product")
			x, y := graph.TypeOf(graph.F32, s[0], s[1]), graph.TypeOf(graph.F32, s[1], s[2])
			if i%2 == 1 {
				y = graph.TypeOf(graph.F32, s[2], s[1])
			}
			b.Output("y", b.Unary(graph.Relu, b.MatMul(b.Input("a", x), b.Input("b", y), false, i%2 == 1)))
			body, err := b.Graph()
			if err != nil {
				t.Fatal(err)
			}
			checks = append(checks, cudatest.Check{Name: fmt.Sprint(rung.Name, s), Compile: rung.Compile,
				Op: graph.Fusion{Anchor: graph.AnchorMatMul, Body: body},
				Args: []*graph.Tensor{drawReals(r, graph.F32, -1, 1, x.Shape.Slice()...),
					drawReals(r, graph.F32, -1, 1, y.Shape.Slice()...)}})
		}
	}
	cudatest.Run(t, d, checks...)
}

// TestMatMulLadderRefuses what a rung is not for.
func TestMatMulLadderRefuses(t *testing.T) {
	naive := cuda.MatMulLadder()[0]
	cfg := cuda.Config{Chip: cuda.H200}
	_, err := naive.Compile(graph.Copy{}, nil, nil, cfg)
	if err == nil || err.Error() != "the rung naive is for matrix products" {
		t.Errorf("error %v", err)
	}
	b := graph.NewBuilder("half")
	h := graph.TypeOf(graph.BF16, 4, 4)
	b.Output("y", b.MatMul(b.Input("a", h), b.Input("b", h), false, false))
	body, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	o := cuda.Operand{DType: graph.BF16, Layout: graph.Contiguous(h.Shape)}
	y := cuda.Operand{DType: graph.F32, Layout: graph.Contiguous(h.Shape)}
	op := graph.Fusion{Anchor: graph.AnchorMatMul, Body: body}
	_, err = naive.Compile(op, []cuda.Operand{o, o}, []cuda.Operand{y}, cfg)
	if err == nil || !strings.Contains(err.Error(), "is for f32") {
		t.Errorf("error %v", err)
	}
}
