package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/kernels/ref/cases"
	"fusec/lowering/cuda/cudatest"
	"fusec/lowering/cuda/emulator"
)

// normGradient is the gradient of a norm of x [n,c] whose own gradient dy may have 16 bits, with the sums of gamma and
// of the result: what a training step has between two products.
func normGradient(d graph.DType, n, c int) func(*graph.Builder, cases.Inputs) {
	return func(b *graph.Builder, in cases.Inputs) {
		x, gamma, rest := in(d, n, c), in(d, c), in(d, n, c)
		var dy *graph.Node
		if d == graph.F32 && c%2 == 0 {
			dy = b.Add(graph.Cast{To: d}, in(graph.BF16, n, c))
		} else {
			dy = in(d, n, c)
		}
		wide := func(v *graph.Node) *graph.Node { return b.Broadcast(v, x.Type.Shape) }
		mean := func(v *graph.Node) *graph.Node { return wide(b.Reduce(graph.Mean, v, true, 1)) }
		centred := b.Binary(graph.Sub, x, mean(x))
		r := b.Unary(graph.Rsqrt, b.BinaryScalar(graph.Add, mean(b.Unary(graph.Square, centred)), 1))
		xhat := b.Binary(graph.Mul, centred, r)
		g := b.Binary(graph.Mul, dy, wide(gamma))
		dx := b.Binary(graph.Sub, g, b.Binary(graph.Mul, xhat, mean(b.Binary(graph.Mul, g, xhat))))
		dx = b.Binary(graph.Add, b.Binary(graph.Mul, r, dx), rest)
		b.Output("", b.Reduce(graph.Sum, b.Binary(graph.Mul, dy, xhat), false, 0))
		b.Output("", dx)
		b.Output("", b.Reduce(graph.Sum, dx, false, 0))
	}
}

// TestColumnSums takes rows of one thread, of parts of a warp, of warps and of blocks, in registers and not, fewer and
// more of them than the chip takes at once. Chips other than Hopper give threads more registers.
func TestColumnSums(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	var checks []cudatest.Check
	for _, s := range []struct {
		d    graph.DType
		n, c int
	}{
		{graph.F32, 1, 1}, {graph.F32, 5, 3}, {graph.F32, 700, 8}, {graph.F32, 333, 40}, {graph.F64, 90, 33},
		{graph.F32, 1100, 96}, {graph.F32, 37, 512}, {graph.F32, 1, 768}, {graph.F32, 10, 1023}, {graph.F32, 600, 264},
		{graph.F32, 20, 3072}, {graph.F64, 6, 1500}, {graph.F32, 3, 9000}, {graph.F32, 3, 12288},
		{graph.F32, 5, 20001},
	} {
		op, types, err := cases.Bodied(graph.AnchorRow, normGradient(s.d, s.n, s.c))
		if err != nil {
			t.Fatal(err)
		}
		c := cudatest.Check{Name: fmt.Sprintf("%v_%dx%d", s.d, s.n, s.c), Op: op}
		for _, u := range types {
			c.Args = append(c.Args, draw(r, u))
		}
		checks = append(checks, c)
	}
	for _, chip := range []kernels.Chip{kernels.H200, kernels.ChipOf(80)} {
		cudatest.Run(t, cudatest.EmulatorOf(t, emulator.Options{Chip: chip}), checks...)
	}
}
