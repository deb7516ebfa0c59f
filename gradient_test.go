package fusec_test

import (
	"slices"
	"strings"
	"testing"

	"fusec"
	"fusec/graph"
)

// squareGraph is Σ (x·w)², and its nodes.
func squareGraph() (b *graph.Builder, x, w, cost *graph.Node) {
	b = graph.NewBuilder("square")
	x, w = b.Input("x", f32(1, 2)), b.Param("w", f32(2, 2))
	cost = b.Reduce(graph.Sum, b.Unary(graph.Square, b.MatMul(x, w, false, false)), false, 0, 1)
	b.Output("cost", cost)
	return b, x, w, cost
}

func TestWithGradient(t *testing.T) {
	b, x, w, cost := squareGraph()
	p := compiled(t, b, fusec.WithGradient("dw", cost, w), fusec.WithGradient("dx", cost, x))
	out, err := p.Run(map[string]*graph.Tensor{"x": tensorOf(t, []float32{1, 2}, 1, 2), "w": tensorOf(t, []float32{1, 0, 1, -1}, 2, 2)})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]float64{"cost": {13}, "dw": {6, -4, 12, -8}, "dx": {6, 10}} {
		if got := out[name].Floats(); !slices.Equal(got, want) {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
}

func TestWithGradientErrors(t *testing.T) {
	b, x, w, cost := squareGraph()
	stranger := graph.NewBuilder("other").Input("stranger", f32())
	g := built(t, b)
	for _, c := range []struct {
		opt  fusec.Option
		want string
	}{
		{fusec.WithGradient("dw", nil, w), `WithGradient("dw"): the cost or the node is nil`},
		{fusec.WithGradient("dw", cost, nil), `WithGradient("dw"): the cost or the node is nil`},
		{fusec.WithGradient("dw", x, w), "wants a scalar"},
		{fusec.WithGradient("dw", stranger, w), "stranger"},
		{fusec.WithGradient("cost", cost, w), "cost"},
		{fusec.WithGradient("dw", cost, &graph.Node{}), "%0 without an operation, which is not a node of the graph"},
	} {
		p, err := fusec.Compile(g, c.opt, fusec.WithVerify())
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v does not say %q", err, c.want)
		}
		p.Close()
	}
}
