package cpu

import (
	"testing"

	"fusec/graph"
)

// TestFusesSeparable chooses one launch for values that leave the cache.
func TestFusesSeparable(t *testing.T) {
	d := New()
	defer d.Close()
	f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
	for _, c := range []struct {
		images, side, out int
		want              bool
	}{{1, 56, 24, true}, {1, 14, 24, false}, {8, 14, 24, true}, {8, 56, 0, false}} {
		args := []graph.Type{f(c.images, c.side, c.side, 24), f(3, 3, 1, 144), f(144), f(1, 1, 144, c.out)}
		if got := d.FusesSeparable(graph.SeparableConv2D{}, args, f(c.images, c.side, c.side, c.out)); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
