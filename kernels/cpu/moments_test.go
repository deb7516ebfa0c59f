package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/ref/cases"
)

// statistics is what a batch norm in training makes of x, or of x·2 where twice is set: mean and variance along some axes, what
// follows from them, a further sum, and x itself where it is handed out.
func statistics(t *testing.T, d graph.DType, dims, axes []int, twice bool) graph.Fusion {
	f, _ := bodied(t, graph.AnchorRow, func(b *graph.Builder, in cases.Inputs) {
		x := in(d, dims...)
		if twice {
			x = b.Binary(graph.Add, x, x)
		}
		s := x.Type.Shape
		mean := b.Reduce(graph.Mean, x, true, axes...)
		variance := b.Reduce(graph.Mean, b.Unary(graph.Square, b.Binary(graph.Sub, x, b.Broadcast(mean, s))), true, axes...)
		b.Output("", mean)
		b.Output("", b.Unary(graph.Rsqrt, b.BinaryScalar(graph.Add, variance, 1e-5)))
		b.Output("", variance)
		b.Output("", b.Reduce(graph.Sum, x, true, axes...))
		if twice {
			b.Output("", x)
		}
	})
	return f
}

// TestMoments takes few columns and many, rows of one block and of several, and numbers far from zero.
func TestMoments(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 9))
	for _, d := range []graph.DType{graph.F32, graph.F64} {
		for _, s := range []struct {
			dims, axes []int
			far        float64
		}{
			{[]int{2, 3}, []int{0}, 0}, {[]int{700, 8}, []int{0}, 0}, {[]int{333, 40}, []int{0}, 100}, {[]int{90, 33}, []int{0}, 0},
			{[]int{3, 5, 7, 24}, []int{0, 1, 2}, -3}, {[]int{2, 40, 41, 16}, []int{0, 1, 2}, 30}, {[]int{5000, 3}, []int{0}, -30},
			{[]int{300, 1100}, []int{0}, 0}, {[]int{3, 4, 50, 70}, []int{0, 2, 3}, 5}, {[]int{2, 3, 130, 140}, []int{0, 2, 3}, 1},
			{[]int{7, 2, 1}, []int{0}, 0}, {[]int{0, 3}, []int{0}, 0}, {[]int{5, 0}, []int{0}, 0}, {[]int{3, 9, 5}, []int{1}, 2},
		} {
			x := drawTensor(r, d, s.far-1, s.far+1, s.dims...)
			for _, twice := range []bool{false, true} {
				checkOp(t, statistics(t, d, s.dims, s.axes, twice), x)
			}
		}
	}
}

// TestMomentsInfinite has infinities at the beginning of a block, and in its middle.
func TestMomentsInfinite(t *testing.T) {
	for _, dims := range [][]int{{300, 5}, {3, 5, 40}} {
		x := drawTensor(rand.New(rand.NewPCG(1, 2)), graph.F32, -1, 1, dims...)
		for _, at := range []int{0, 131, 577} {
			x.SetFloat(at, math.Inf(at%2*2-1))
		}
		axes := []int{0}
		if len(dims) > 2 {
			axes = []int{0, 2}
		}
		checkOp(t, statistics(t, graph.F32, dims, axes, false), x)
	}
}

// TestMomentsCancel has columns whose deviations are small beside their means: a variance by the mean of squares would have no
// digit.
func TestMomentsCancel(t *testing.T) {
	x := graph.NewTensor(graph.TypeOf(graph.F32, 4000, 3))
	for i := range x.Type.Shape.Elems() {
		x.SetFloat(i, 4096+float64(i/3%5)/4)
	}
	p := pool.New(2)
	defer p.Close()
	s, err := stand(statistics(t, graph.F32, []int{4000, 3}, []int{0}, false), []*graph.Tensor{x}, p)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.run(); err != nil {
		t.Fatal(err)
	}
	for c := range 3 {
		if v := s.out[2].Float(c); math.Abs(v-0.125) > 1e-5 {
			t.Errorf("the variance of column %d is %v, not 1/8", c, v)
		}
	}
}
