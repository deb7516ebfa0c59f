package cpu

import (
	"testing"

	"fusec/graph"
	kernels "fusec/kernels/cpu"
)

// TestSlowerIntegers leaves convolutions to Winograd's algorithm where no instruction has dot products of integers.
func TestSlowerIntegers(t *testing.T) {
	one, two := graph.IntsOf(1, 1), graph.IntsOf(2, 2)
	op := graph.Conv2D{Stride: one, Dilation: one, Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1, Layout: graph.NHWC}
	strided := op
	strided.Stride = two
	for _, c := range []struct {
		op         graph.Conv2D
		size, c, o int
		dots, slow bool
	}{
		{op, 3, 64, 64, false, true}, {op, 3, 64, 64, true, false}, {op, 1, 64, 64, false, false}, {strided, 3, 64, 64, false, false},
		{op, 3, 4, 64, false, false}, {op, 3, 1024, 1024, false, false},
	} {
		filters := graph.TypeOf(graph.I8, c.size, c.size, c.c, c.o)
		if err := slowerIntegers(c.op, filters, c.dots); (err != nil) != c.slow {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for _, channels := range []int{6, 64} {
		filters := graph.TypeOf(graph.I8, 3, 3, channels, 64)
		can := kernels.ConvolvesIntegers(op, filters) == nil
		if err := New().ConvolvesIntegers(op, filters); (err == nil) != (can && kernels.DotsIntegers()) {
			t.Errorf("%d channels: %v", channels, err)
		}
	}
}
