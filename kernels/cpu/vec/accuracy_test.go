package vec

import (
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
)

// ulps32 returns |got − want| in units of the last place of want as a float32,
// denormals included.
func ulps32(got float32, want float64) float64 {
	if w := float32(want); got == w || got != got && w != w {
		return 0
	}
	_, e := math.Frexp(want)
	ulp := math.Ldexp(1, max(e-24, -149))
	d := math.Abs(float64(got)-want) / ulp
	if d != d {
		return math.Inf(1)
	}
	return d
}

// accuracy is the error allowed of a float32 opcode for lo ≤ x ≤ hi.
type accuracy struct {
	op     graph.UnaryFn
	lo, hi float64
	ulps   float64 // allowed error
}

// accuracies are the bounds that the comments of the opcodes give.
var accuracies = []accuracy{
	{op: graph.Exp, lo: -104, hi: 89, ulps: 1},
	{op: graph.Expm1, lo: -104, hi: 89, ulps: 2},
	{op: graph.Log, lo: 1e-45, hi: math.MaxFloat32, ulps: 1},
	{op: graph.Log, lo: 0.5, hi: 2, ulps: 1},
	{op: graph.Log2, lo: 1e-45, hi: math.MaxFloat32, ulps: 1.5},
	{op: graph.Log2, lo: 0.5, hi: 2, ulps: 1.5},
	{op: graph.Log1p, lo: -1, hi: math.MaxFloat32, ulps: 1.5},
	{op: graph.Log1p, lo: -0.9, hi: 2, ulps: 1.5},
	{op: graph.Sin, lo: -10, hi: 10, ulps: 1.5},
	{op: graph.Sin, lo: -1e4, hi: 1e4, ulps: 1.5},
	{op: graph.Sin, lo: -math.MaxFloat32, hi: math.MaxFloat32, ulps: 1.5},
	{op: graph.Cos, lo: -10, hi: 10, ulps: 1.5},
	{op: graph.Cos, lo: -1e4, hi: 1e4, ulps: 1.5},
	{op: graph.Cos, lo: -math.MaxFloat32, hi: math.MaxFloat32, ulps: 1.5},
	{op: graph.Tan, lo: -10, hi: 10, ulps: 3},
	{op: graph.Tan, lo: -math.MaxFloat32, hi: math.MaxFloat32, ulps: 3},
	{op: graph.Asin, lo: -1, hi: 1, ulps: 3},
	{op: graph.Acos, lo: -1, hi: 1, ulps: 3},
	{op: graph.Atan, lo: -10, hi: 10, ulps: 3},
	{op: graph.Atan, lo: -math.MaxFloat32, hi: math.MaxFloat32, ulps: 3},
	{op: graph.Sinh, lo: -89, hi: 89, ulps: 3},
	{op: graph.Cosh, lo: -89, hi: 89, ulps: 3},
	{op: graph.Asinh, lo: -10, hi: 10, ulps: 4},
	{op: graph.Asinh, lo: -math.MaxFloat32, hi: math.MaxFloat32, ulps: 4},
	{op: graph.Acosh, lo: 1, hi: 10, ulps: 3},
	{op: graph.Acosh, lo: 1, hi: math.MaxFloat32, ulps: 3},
	{op: graph.Atanh, lo: -1, hi: 1, ulps: 3},
	{op: graph.Cube, lo: -1e12, hi: 1e12, ulps: 1.5},
	{op: graph.Rsqrt, lo: 1e-45, hi: math.MaxFloat32, ulps: 1.5},
	{op: graph.Tanh, lo: -12, hi: 12, ulps: 5},
	{op: graph.Sigmoid, lo: -87, hi: 104, ulps: 2.5},
	{op: graph.Softplus, lo: -87, hi: 104, ulps: 4},
	{op: graph.Erf, lo: -5, hi: 5, ulps: 1},
	{op: graph.Silu, lo: -87, hi: 104, ulps: 2.5},
	{op: graph.GeluTanh, lo: -1, hi: 20, ulps: 3},
	{op: graph.GeluTanh, lo: -5, hi: -1, ulps: 32},
	{op: graph.GeluErf, lo: -1, hi: 20, ulps: 4},
	{op: graph.GeluErf, lo: -5, hi: -1, ulps: 40},
	{op: graph.GeluTanhSlope, lo: -0.5, hi: 20, ulps: 40},
	{op: graph.GeluTanhSlope, lo: -5, hi: -1, ulps: 200},
	{op: graph.GeluErfSlope, lo: -0.5, hi: 20, ulps: 40},
	{op: graph.GeluErfSlope, lo: -10, hi: -1, ulps: 200},
}

// samples returns float32 numbers from lo to hi: equally spaced, uniformly
// random, and random in the exponent.
func samples(lo, hi float64, n int) []float32 {
	rng := rand.New(rand.NewPCG(1, 2))
	x := make([]float32, 0, 3*n+4)
	x = append(x, float32(lo), float32(hi))
	for i := range n {
		x = append(x,
			float32(lo+(hi-lo)*(float64(i)+0.5)/float64(n)),
			float32(lo+(hi-lo)*rng.Float64()))
		side := hi
		if lo < 0 && i%2 == 0 || hi <= 0 {
			side = lo
		}
		v := float32(math.Copysign(math.Exp(math.Log(math.Abs(side))-rng.Float64()*105), side))
		if float64(v) >= lo && float64(v) <= hi {
			x = append(x, v)
		}
	}
	return x
}

func TestAccuracy(t *testing.T) {
	n := 1 << 20
	if testing.Short() {
		n = 1 << 14
	}
	for _, a := range accuracies {
		x := samples(a.lo, a.hi, n)
		y := make([]float32, len(x))
		F32().Unary(a.op)(y, x)
		ref := reference[a.op]
		worst, at := 0.0, float32(0)
		for i, v := range x {
			if u := ulps32(y[i], ref(float64(v))); u > worst {
				worst, at = u, v
			}
		}
		t.Logf("%-9v from %g to %g: %.2f ulp at %g", a.op, a.lo, a.hi, worst, at)
		if worst > a.ulps {
			t.Errorf("%v: error of %g ulp at %g, allowed %g", a.op, worst, at, a.ulps)
		}
	}
}
