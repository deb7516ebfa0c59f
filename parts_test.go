package fusec_test

import (
	"testing"

	"fusec"
	"fusec/graph"
)

// stacked is a self-attention whose queries, keys and values are slices, in the given order, of one projection.
func stacked(t *testing.T, order ...int) *graph.Graph {
	t.Helper()
	const batch, seq, heads, depth = 2, 6, 2, 4
	b := graph.NewBuilder("stacked")
	x, w := b.Input("x", f32(batch, seq, heads*depth)), b.Param("w", f32(heads*depth, 3*heads*depth))
	all := b.MatMul(x, w, false, false)
	var qkv [3]*graph.Node
	for _, i := range order {
		part := b.Slice(all, 2, i*heads*depth, heads*depth, 1)
		qkv[i] = b.Transpose(b.Reshape(part, batch, seq, heads, depth), 0, 2, 1, 3)
	}
	y := b.Add(graph.Attention{Scale: 0.5, Causal: true}, qkv[0], qkv[1], qkv[2])
	cost := b.Reduce(graph.Sum, b.Unary(graph.Square, y), false, 0, 1, 2, 3)
	b.Output("cost", cost)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	d, err := graph.Gradients(g, cost, []*graph.Node{w})
	if err != nil {
		t.Fatal(err)
	}
	b.Output("dw", d[0])
	return g
}

// The gradient of a stacked projection is put together from its parts in one launch, in whatever order it was sliced:
// no value of zeros is filled or summed.
func TestStackedProjection(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {2, 0, 1}, {1, 2, 0}} {
		g := stacked(t, order...)
		_, program, err := fusec.Plan(g)
		if err != nil {
			t.Fatal(err)
		}
		joined := 0
		for _, l := range program.Launches {
			switch l.Op.(type) {
			case graph.Unslice:
				t.Errorf("%v: a part is put into zeros", order)
			case graph.Concat:
				joined++
			}
		}
		// The projection, the attention, the cost and its gradient, the attention's gradient, the parts joined, dw.
		if n := len(program.Launches); n != 7 || joined != 1 {
			t.Errorf("%v: %d launches, %d of them join parts", order, n, joined)
		}
	}
}
