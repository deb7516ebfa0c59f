package cuda_test

import (
	"slices"
	"testing"

	"fusec/graph"
	"fusec/kernels/cuda"
	"fusec/kernels/ref/cases"
)

// TestSteps: the last step of the gradient of a norm, or of a product with sums over rows, makes those sums and nothing else.
func TestSteps(t *testing.T) {
	product := func(b *graph.Builder, in cases.Inputs) {
		y := b.MatMul(in(graph.BF16, 128, 64), in(graph.BF16, 64, 128), false, false)
		b.Output("", b.CastTo(graph.BF16, y))
		b.Output("", b.Reduce(graph.Sum, y, false, 0))
	}
	for _, c := range []struct {
		anchor graph.Anchor
		body   func(*graph.Builder, cases.Inputs)
		last   []int
		steps  []string
	}{
		{graph.AnchorRow, normGradient(graph.F32, 600, 264), []int{0, 2}, []string{"rows", "sums"}},
		{graph.AnchorMatMul, product, []int{1}, []string{"matmul", "columns"}},
	} {
		op, args, results := bodied(t, c.anchor, c.body)
		k, err := cuda.Compile(op, args, results, cuda.Config{Chip: cuda.H200, Precision: cuda.BF16})
		if err != nil {
			t.Fatal(err)
		}
		var entries []string
		for _, s := range k.Steps {
			entries = append(entries, s.Entry)
		}
		if !slices.Equal(k.Last, c.last) || !slices.Equal(entries, c.steps) {
			t.Errorf("steps %v, the last of which makes results %v", entries, k.Last)
		}
	}
}
