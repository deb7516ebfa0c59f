package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
)

func TestPool(t *testing.T) {
	r := rand.New(rand.NewPCG(12, 13))
	for n := range 120 {
		pick := func(n int) int { return 1 + r.IntN(n) }
		d := []graph.DType{graph.F32, graph.F64}[n%2]
		op := graph.Pool{Fn: graph.PoolFn(n / 2 % 2), CountPad: n/4%2 == 0,
			Kernel: graph.IntsOf(pick(4), pick(4)), Stride: graph.IntsOf(pick(4), pick(4)), Pad: graph.IntsOf(0, 0, 0, 0)}
		if n%3 > 0 {
			op.Pad = graph.IntsOf(r.IntN(4), r.IntN(4), r.IntN(4), r.IntN(4))
		}
		x := drawTensor(r, d, -2, 2, r.IntN(4), pick(3), 4+r.IntN(40), 4+r.IntN(70))
		if n == 0 {
			x = drawTensor(r, d, -2, 2, 2, 3, 1, 1)
			op.Kernel, op.Pad = graph.IntsOf(1, 1), graph.IntsOf(0, 0, 0, 0)
		}
		checkPool(t, r, op, x)
	}
}

// checkPool checks a pool and its gradient.
func checkPool(t *testing.T, r *rand.Rand, op graph.Pool, x *graph.Tensor) {
	t.Helper()
	checkOp(t, op, x)
	y, err := graph.InfoOf(op).Infer(op, []graph.Type{x.Type})
	if err != nil {
		t.Fatal(err)
	}
	checkOp(t, graph.PoolGrad(op), x, drawTensor(r, x.Type.DType, -2, 2, y[0].Shape.Slice()...))
}

// TestPoolSpecial has windows with ties, infinities and NaN, and windows that lie in the padding alone.
func TestPoolSpecial(t *testing.T) {
	r := rand.New(rand.NewPCG(14, 15))
	x := drawTensor(r, graph.F32, 0, 2, 2, 2, 9, 9)
	for i := range 2 * 2 * 9 * 9 {
		x.SetFloat(i, []float64{0, 1, 1, math.Inf(-1), math.Inf(1), math.NaN(), -1, 2, 2}[r.IntN(9)])
	}
	for _, pad := range []int{0, 3} {
		op := graph.Pool{Kernel: graph.IntsOf(2, 3), Stride: graph.IntsOf(2, 2), Pad: graph.IntsOf(pad, pad, pad, pad)}
		checkPool(t, r, op, x)
		op.Kernel, op.Stride = graph.IntsOf(9, 8), graph.IntsOf(1, 1) // few windows in a row
		checkPool(t, r, op, x)
	}
}
