package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
)

func TestBatchNorm(t *testing.T) {
	r := rand.New(rand.NewPCG(16, 17))
	for _, d := range []graph.DType{graph.F32, graph.F64} {
		for _, s := range [][]int{{1, 1}, {5, 3}, {64, 300}, {3, 5, 7}, {2, 3, 17, 40}, {40, 2, 33, 5}, {1, 2, 3, 4, 5}, {4, 0, 3}} {
			for _, train := range []bool{true, false} {
				v := func(lo, hi float64) *graph.Tensor { return drawTensor(r, d, lo, hi, s[1]) }
				op := graph.BatchNorm{Eps: 1e-3, Momentum: 0.9, Train: train}
				checkOp(t, op, drawTensor(r, d, 1, 4, s...), v(-2, 2), v(-2, 2), v(-2, 2), v(0.5, 2))
			}
		}
	}
}

func TestGroupNorm(t *testing.T) {
	r := rand.New(rand.NewPCG(18, 19))
	for _, d := range []graph.DType{graph.F32, graph.F64} {
		for _, c := range []struct {
			groups int
			shape  []int
		}{{1, []int{1, 1}}, {2, []int{3, 8}}, {4, []int{2, 4, 9}}, {1, []int{3, 5, 17, 19}}, {3, []int{70, 6, 5}}, {2, []int{2, 4, 0}},
			{2, []int{0, 4, 3}}} {
			v := func() *graph.Tensor { return drawTensor(r, d, -2, 2, c.shape[1]) }
			checkOp(t, graph.GroupNorm{Groups: c.groups, Eps: 1e-3}, drawTensor(r, d, 1, 4, c.shape...), v(), v())
		}
	}
}

// TestRowsAlone has the operations along rows that become fusions of one.
func TestRowsAlone(t *testing.T) {
	r := rand.New(rand.NewPCG(20, 21))
	for _, d := range []graph.DType{graph.F32, graph.F64} {
		for _, s := range [][]int{{1, 1, 1}, {3, 5, 7}, {33, 2, 65}, {2, 300, 9}, {1, 3, 5000}} {
			x := drawTensor(r, d, -4, 4, s...)
			for axis := range 3 {
				checkOp(t, graph.Softmax{Axis: axis}, x)
				checkOp(t, graph.LogSoftmax{Axis: axis}, x)
				for fn := graph.Sum; fn <= graph.MinOf; fn++ {
					if fn == graph.Prod {
						continue // of many elements: beyond the range
					}
					for _, keep := range []bool{false, true} {
						checkOp(t, graph.Reduce{Fn: fn, Axes: graph.IntsOf(axis), Keep: keep}, x)
						checkOp(t, graph.Reduce{Fn: fn, Axes: graph.IntsOf(axis, (axis+1)%3), Keep: keep}, x)
						checkOp(t, graph.Reduce{Fn: fn, Axes: graph.IntsOf(2, 1, 0), Keep: keep}, x)
					}
				}
			}
			v := func() *graph.Tensor { return drawTensor(r, d, -2, 2, s[2]) }
			checkOp(t, graph.LayerNorm{Eps: 1e-3}, x, v(), v())
			checkOp(t, graph.RMSNorm{Eps: 1e-3}, x, v())
		}
	}
}

// TestSoftmaxInfinite has slices all at −Inf, which give zeros, and −Inf as their logarithm, and slices with +Inf, which
// alone gives NaN.
func TestSoftmaxInfinite(t *testing.T) {
	x := graph.NewTensor(graph.TypeOf(graph.F32, 3, 4, 5))
	for i := range x.Type.Shape.Elems() {
		if x.SetFloat(i, float64(i%7)); i%5 == 2 || i < 25 {
			x.SetFloat(i, math.Inf(-1))
		}
	}
	for range 2 {
		for axis := range 3 {
			checkOp(t, graph.Softmax{Axis: axis}, x)
			checkOp(t, graph.LogSoftmax{Axis: axis}, x)
		}
		x.SetFloat(0, math.Inf(1))
		x.SetFloat(58, math.Inf(1))
	}
	checkOp(t, graph.Softmax{Axis: 0}, graph.NewTensor(graph.TypeOf(graph.F32, 0, 4)))
}
