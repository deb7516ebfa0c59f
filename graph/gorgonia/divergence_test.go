package gorgonia

import (
	"math"
	"testing"

	gorg "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// TestDivergences holds fusec to the mathematics where Gorgonia computes something else.
func TestDivergences(t *testing.T) {
	image := func(b *builder) *gorg.Node { // 1 … 16 in rows of 4
		i := 0.0
		return b.from("x", func() float64 { i++; return i }, 1, 1, 4, 4)
	}
	for _, c := range []struct {
		name  string
		build func(b *builder) *gorg.Node
		at    int
		want  float64
	}{
		{"the mean of a window is that of its elements", func(b *builder) *gorg.Node {
			return must(gorg.AveragePool2D(image(b), tensor.Shape{2, 2}, []int{0, 0}, []int{2, 2}))
		}, 0, (1 + 2 + 5 + 6) / 4.0},
		{"padding of a mean counts as zeros", func(b *builder) *gorg.Node {
			return must(gorg.AveragePool2D(image(b), tensor.Shape{2, 2}, []int{1, 1}, []int{2, 2}))
		}, 0, 1 / 4.0},
		{"explicit padding is north, south, west, east", func(b *builder) *gorg.Node {
			return must(gorg.MaxPool2D(image(b), tensor.Shape{2, 2}, []int{1, 0, 1, 0}, []int{2, 2}))
		}, 0, 1},
		{"rows are picked along any axis", func(b *builder) *gorg.Node {
			i := 0.0
			x := b.from("x", func() float64 { i++; return i }, 2, 3, 2)
			return must(gorg.ByIndices(x, b.ints("ix", 2, 0), 1))
		}, 4, 11},
		{"sums run along middle axes", func(b *builder) *gorg.Node {
			i := 0.0
			return must(gorg.Sum(b.from("x", func() float64 { i++; return i }, 2, 2, 3, 2), 2))
		}, 6, 19 + 21 + 23},
		{"softmax is stable", func(b *builder) *gorg.Node {
			i := -1.0
			x := b.from("x", func() float64 { i++; return 1000 * i }, 2, 2)
			return must(gorg.SoftMax(x, 1))
		}, 3, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBuilder()
			y := c.build(b)
			im := mustImport(t, b.ExprGraph, Options{})
			if got := im.eval(t, im.inputs(t))[im.Node(y)][0].F[c.at]; math.Abs(got-c.want) > 1e-12 {
				t.Errorf("element %d is %v, want %v", c.at, got, c.want)
			}
		})
	}
}
