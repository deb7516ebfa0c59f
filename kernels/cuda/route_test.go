package cuda_test

import (
	"math"
	"testing"

	"fusec/graph"
)

// TestRouteGeometry sends tokens to experts of which there are fewer than threads in a warp, more, and very many, with
// scores that are equal, NaN and infinite, and experts that take all, some, one or more than there are.
func TestRouteGeometry(t *testing.T) {
	l := newList(77)
	for i, s := range []struct{ tokens, experts, k int }{
		{1, 1, 1}, {300, 1, 1}, {100, 2, 2}, {257, 3, 2}, {700, 8, 2}, {65, 16, 16}, {90, 33, 4}, {40, 64, 6}, {9, 300, 5},
		{2, 70, 70}, {1500, 5, 3},
	} {
		d := []graph.DType{graph.F32, graph.F32, graph.F64}[i%3]
		capacities := []int{0, 1, max(s.tokens*s.k/s.experts/2, 1), s.tokens + 1}
		for _, capacity := range []int{capacities[i%4], capacities[2]} {
			x := l.tensor(d, s.tokens, s.experts)
			for j := range x.Type.Shape.Elems() {
				v := []float64{math.NaN(), math.Inf(-1), math.Inf(1), 0, math.Copysign(0, -1), 1}
				if k := l.r.IntN(20); k < len(v) {
					x.SetFloat(j, v[k])
				}
			}
			l.add(graph.Route{K: s.k, Capacity: capacity}, x)
		}
	}
	l.run(t)
}
