package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
)

// scoresFor draws scores of which some tie, and some are NaN or infinite.
func scoresFor(r *rand.Rand, d graph.DType, dims ...int) *graph.Tensor {
	x := graph.NewTensor(graph.TypeOf(d, dims...))
	odd := []float64{math.NaN(), math.Inf(1), math.Inf(-1)}
	for i := range x.Type.Shape.Elems() {
		v := float64(r.IntN(9)) / 4
		if r.IntN(6) == 0 {
			v = odd[r.IntN(3)]
		}
		x.SetFloat(i, v)
	}
	return x
}

func TestTopK(t *testing.T) {
	r := rand.New(rand.NewPCG(20, 1))
	for _, dims := range [][]int{{1}, {7}, {5, 1}, {3, 9}, {2, 3, 33}, {40, 700}, {700, 8}, {0, 3}, {3, 0}, {5, 0, 4}} {
		n := dims[len(dims)-1]
		for _, d := range []graph.DType{graph.F32, graph.F64} {
			for _, k := range []int{0, 1, 2, n / 2, n} {
				if k <= n {
					checkOp(t, graph.TopK{K: k}, scoresFor(r, d, dims...))
					checkOp(t, graph.TopK{K: k}, drawTensor(r, d, -2, 2, dims...))
				}
			}
		}
	}
}

func TestRoute(t *testing.T) {
	r := rand.New(rand.NewPCG(20, 2))
	for _, dims := range [][]int{{1}, {4}, {1, 4}, {9, 1}, {9, 4}, {3, 5, 8}, {2000, 16}, {0, 3}} {
		n := dims[len(dims)-1]
		tokens := 1
		for _, s := range dims[:len(dims)-1] {
			tokens *= s
		}
		for _, d := range []graph.DType{graph.F32, graph.F64} {
			for _, k := range []int{1, 2, n} {
				if k > n {
					continue
				}
				for _, capacity := range []int{0, 1, 3, k * tokens / n, tokens + 1} {
					checkOp(t, graph.Route{K: k, Capacity: capacity}, scoresFor(r, d, dims...))
					checkOp(t, graph.Route{K: k, Capacity: capacity}, drawTensor(r, d, -2, 2, dims...))
				}
			}
			for _, capacity := range []int{1, 3, tokens + 1} {
				checkOp(t, graph.Route{Capacity: capacity, ExpertChoice: true}, scoresFor(r, d, dims...))
				checkOp(t, graph.Route{Capacity: capacity, ExpertChoice: true}, drawTensor(r, d, -2, 2, dims...))
			}
		}
	}
	x := drawTensor(r, graph.F32, -2, 2, 3, 0)
	wantError(t, graph.Route{Capacity: 2, ExpertChoice: true}, []*graph.Tensor{drawTensor(r, graph.F32, -2, 2)}, "rank 1 or more")
	checkOp(t, graph.Route{Capacity: 2, ExpertChoice: true}, x)
}
