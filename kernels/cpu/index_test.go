package cpu

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"fusec/graph"
)

func TestIndexing(t *testing.T) {
	r := rand.New(rand.NewPCG(10, 11))
	for _, c := range []struct {
		table, indices []int
		axis           int
	}{
		{[]int{5}, []int{9}, 0},
		{[]int{1}, []int{1}, 0},
		{[]int{3, 4}, nil, 1},
		{[]int{700, 33}, []int{8, 100}, 0},
		{[]int{5, 20000}, []int{3}, 0},
		{[]int{6, 9, 5}, []int{2, 0}, 1},
		{[]int{6, 9, 5}, []int{4000}, 1},
		{[]int{40, 9, 1}, []int{4, 500}, 1},
		{[]int{3, 50}, []int{20000}, 1},
		{[]int{0, 9, 5}, []int{4}, 1},
		{[]int{2, 9, 0}, []int{4}, 1},
		{[]int{2, 3, 4, 5}, []int{2, 2, 2}, 2},
	} {
		for _, d := range movedTypes() {
			for _, i := range []graph.DType{graph.I32, graph.I64} {
				dim := c.table[c.axis]
				ix := drawTensor(r, i, 0, float64(dim), c.indices...)
				checkOp(t, graph.Gather{Axis: c.axis}, drawTensor(r, d, -9, 9, c.table...), ix)
				dims := append(append(append([]int(nil), c.table[:c.axis]...), c.indices...), c.table[c.axis+1:]...)
				op, updates := graph.ScatterAdd{Axis: c.axis, Size: dim}, drawTensor(r, d, -9, 9, dims...)
				if d == graph.Bool {
					wantError(t, op, []*graph.Tensor{ix, updates}, "sums of bool")
					continue
				}
				if d.Is16() { // which the type rule does not sum
					continue
				}
				checkOp(t, op, ix, updates)
			}
		}
	}
}

func TestIndexRange(t *testing.T) {
	x := graph.NewTensor(graph.TypeOf(graph.F32, 5, 3))
	for _, d := range []graph.DType{graph.I32, graph.I64} {
		for _, bad := range []float64{5, -1, 1 << 30} {
			ix := graph.NewTensor(graph.TypeOf(d, 4))
			ix.SetFloat(2, bad)
			word := fmt.Sprintf("index %.0f,", bad)
			wantError(t, graph.Gather{}, []*graph.Tensor{x, ix}, "gather", word, "element 2", "outside 0..4")
			u := graph.NewTensor(graph.TypeOf(graph.F32, 4, 3))
			wantError(t, graph.ScatterAdd{Size: 5}, []*graph.Tensor{ix, u}, "scatter_add", word, "outside 0..4")
		}
	}
	none := graph.NewTensor(graph.TypeOf(graph.F32, 0, 3))
	wantError(t, graph.Gather{}, []*graph.Tensor{none, graph.NewTensor(graph.TypeOf(graph.I64, 1))}, "an axis of no elements")
	checkOp(t, graph.Gather{}, none, graph.NewTensor(graph.TypeOf(graph.I64, 0)))
}
