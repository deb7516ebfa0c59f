package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/ref/cases"
	"fusec/lowering/cuda/cudatest"
)

// columnMoments is what a batch norm in training makes of the rows x [n,c] that a cast or a sum hands it: mean and variance of
// each column, running statistics, and a further sum.
func columnMoments(d graph.DType, dims []int, far float64) func(*graph.Builder, cases.Inputs) {
	return func(b *graph.Builder, in cases.Inputs) {
		x := b.BinaryScalar(graph.Add, b.CastTo(graph.F32, in(d, dims...)), far)
		if d == graph.F64 {
			x = b.BinaryScalar(graph.Add, in(d, dims...), far)
		}
		s := x.Type.Shape
		var axes []int
		for i := range s.Rank() - 1 {
			axes = append(axes, i)
		}
		mean := b.Reduce(graph.Mean, x, false, axes...)
		variance := b.Reduce(graph.Mean, b.Unary(graph.Square, b.Binary(graph.Sub, x, b.Broadcast(mean, s))), false, axes...)
		old := in(mean.Type.DType, s.At(s.Rank()-1))
		b.Output("", mean)
		b.Output("", b.Unary(graph.Rsqrt, b.BinaryScalar(graph.Add, variance, 1e-5)))
		b.Output("", b.Binary(graph.Add, b.BinaryScalar(graph.Mul, old, 0.9), b.BinaryScalar(graph.Mul, variance, 0.1)))
		b.Output("", b.Reduce(graph.Sum, x, false, axes...))
	}
}

// TestColumnMoments takes few columns and many, rows of one block and of several, one row, and numbers far from zero.
func TestColumnMoments(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 9))
	var checks []cudatest.Check
	for _, s := range []struct {
		d    graph.DType
		dims []int
		far  float64
	}{
		{graph.F32, []int{2, 3}, 0}, {graph.F32, []int{7, 1}, 0}, {graph.BF16, []int{700, 8}, 0}, {graph.BF16, []int{333, 40}, 100},
		{graph.F64, []int{90, 33}, 0}, {graph.F32, []int{3, 5, 7, 24}, 0}, {graph.BF16, []int{2, 40, 41, 16}, 1000},
		{graph.F32, []int{37, 512}, 0}, {graph.F32, []int{5000, 3}, -30}, {graph.BF16, []int{1100, 264}, 0},
	} {
		op, types, err := cases.Bodied(graph.AnchorRow, columnMoments(s.d, s.dims, s.far))
		if err != nil {
			t.Fatal(err)
		}
		c := cudatest.Check{Name: fmt.Sprintf("%v_%v_%v", s.d, s.dims, s.far), Op: op}
		for _, u := range types {
			c.Args = append(c.Args, draw(r, u))
		}
		if k := kernelOf(t, op, types, c.Config); s.dims[len(s.dims)-1] > 1 && !strings.Contains(k.Source, "MomentSum<") {
			t.Errorf("%s takes the rows twice", c.Name)
		}
		checks = append(checks, c)
	}
	cudatest.Run(t, cudatest.Emulator(t), checks...)
}
