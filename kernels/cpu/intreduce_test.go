package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
)

func TestIntReduce(t *testing.T) {
	r := rand.New(rand.NewPCG(24, 25))
	for _, d := range []graph.DType{graph.I32, graph.I64} {
		for _, s := range [][]int{{1, 1, 1}, {3, 5, 7}, {2, 1, 9000}, {700, 33, 1}, {3, 0, 2}, {0, 3, 2}} {
			x := drawTensor(r, d, math.MinInt32, math.MaxInt32, s...)
			for _, fn := range []graph.ReduceFn{graph.Sum, graph.Prod, graph.MaxOf, graph.MinOf} {
				for _, axes := range []graph.Ints{{}, graph.IntsOf(0), graph.IntsOf(1), graph.IntsOf(2), graph.IntsOf(2, 0),
					graph.IntsOf(0, 1, 2)} {
					checkOp(t, graph.Reduce{Fn: fn, Axes: axes}, x)
					checkOp(t, graph.Reduce{Fn: fn, Axes: axes, Keep: true}, x)
				}
			}
		}
		checkOp(t, graph.Reduce{Fn: graph.Sum}, graph.Scalar(d, 3))
	}
}
