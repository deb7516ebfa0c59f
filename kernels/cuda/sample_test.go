package cuda_test

import (
	"math"
	"testing"

	"fusec/graph"
	"fusec/kernels/cuda"
	"fusec/kernels/ref/cases"
	"fusec/lowering/cuda/driver/nvrtc/nvrtctest"
)

// TestSample draws from rows of one element, of fewer than threads of a block, of more than a small block has, and of so many that
// warps share them, with ties, infinities and NaN, and options for all rows or for each. Of the long rows those elements are kept
// that may be drawn, where they are not too many; of the longest they are looked for in up to 32 parts at the same time.
func TestSample(t *testing.T) {
	l := newList(78)
	shapes := [][]int{{1}, {7}, {5, 1}, {3, 9}, {2, 3, 65}, {9, 300}, {2, 4200}, {2, 4097}, {0, 3}, {2, 9001}, {3, 20000}, {2, 8193},
		{2, 70001}, {1, 300001}}
	equal := len(shapes) // from here on many are equal
	shapes = append(shapes, []int{4, 40}, []int{4, 70}, []int{3, 33}, []int{2, 9001})
	none := len(shapes) // and from here on all are NaN
	shapes = append(shapes, []int{2, 9000})
	for i, dims := range shapes {
		x := l.tensor([]graph.DType{graph.F32, graph.F32, graph.F64}[i%3], dims...)
		for k := range x.Type.Shape.Elems() {
			odd := []float64{math.NaN(), math.Inf(-1), math.Inf(1), 0, math.Copysign(0, -1), 1}
			switch {
			case i >= none:
				x.SetFloat(k, math.NaN())
			case i >= equal:
				x.SetFloat(k, float64(l.r.IntN(1+i-equal)))
			case i%2 == 1 && l.r.IntN(9) == 0:
				x.SetFloat(k, odd[l.r.IntN(len(odd))])
			default:
				x.SetFloat(k, 5*l.r.NormFloat64())
			}
		}
		draws := 3
		switch n := dims[len(dims)-1]; {
		case n > 50000:
			draws = 8
		case n > 4000 && i < none:
			draws = 25
		}
		for range draws {
			l.add(graph.Sample{}, cases.Sampling(l.r, x)...)
		}
	}
	l.run(t)
}

// TestSampleCompiles has NVRTC compile draws from rows as long as vocabularies are, for a GPU: nothing is spilled.
func TestSampleCompiles(t *testing.T) {
	compiler := nvrtctest.Open(t)
	one := func(d graph.DType) graph.Type { return graph.TypeOf(d) }
	for _, n := range []int{3000, 128256} {
		args := rowMajor([]graph.Type{graph.TypeOf(graph.F32, 2, n), one(graph.F32), one(graph.I64), one(graph.F32), one(graph.I64),
			one(graph.I64)})
		result := rowMajor([]graph.Type{graph.TypeOf(graph.I64, 2)})
		k, err := cuda.Compile(graph.Sample{}, args, result, cuda.Config{Chip: cuda.H200})
		if err != nil {
			t.Fatal(err)
		}
		wellCompiled(t, compiler, "sample", cuda.H200, k)
		if parts := len(k.Steps) > 1; parts != (n > 8192) {
			t.Errorf("%d logits are looked at in parts: %t", n, parts)
		}
	}
}
