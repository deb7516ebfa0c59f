package cuda_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cuda"
	"fusec/kernels/ref"
	"fusec/lowering/cuda/cudatest"
)

// TestGeluErf holds the form of GELU that f32 is computed by to the error that its comment states, in the tail as well;
// beyond it, infinities and NaN included, it goes to its limits.
func TestGeluErf(t *testing.T) {
	x := wideRange()
	near := func(got *graph.Tensor, want ref.Value) error {
		for i, v := range got.Data.([]float32) {
			x, y := float64(x[i]), want.F[i]
			bound := 4e-7 * math.Abs(x)
			switch {
			case x >= -2:
				bound = min(bound, 1.5e-6*math.Abs(y))
			case x >= -7:
				bound = min(bound, 1e-5*math.Abs(y))
			default:
				bound = 1e-11
			}
			if same := float64(v) == y || v != v && y != y; !same && !(math.Abs(float64(v)-y) <= bound) {
				return fmt.Errorf("of %v it is %v, want %v ± %.1e", x, v, y, bound)
			}
		}
		return nil
	}
	cudatest.Run(t, cudatest.Open(t), cudatest.Check{
		Name: "gelu_erf", Op: graph.Unary{Fn: graph.GeluErf}, Compare: near,
		Args: []*graph.Tensor{{Type: graph.TypeOf(graph.F32, len(x)), Data: x}},
	})
}

// wideRange is numbers of both signs, many of them up to 16, with infinities and NaN.
func wideRange() []float32 {
	x := []float32{0, 1e-30, 1e-5, 40, 90, 1e15, 1e30, math.MaxFloat32, float32(math.Inf(1)), float32(math.NaN())}
	for i := range 40_000 {
		x = append(x, float32(i+1)/2_500)
	}
	for _, v := range x[:len(x):len(x)] {
		x = append(x, -v)
	}
	return x
}

// TestGated holds functions of f32 that are x times a sigmoid to a small relative error, and in the tail to one that grows with
// the exponent.
func TestGated(t *testing.T) {
	x := wideRange()
	near := func(got *graph.Tensor, want ref.Value) error {
		for i, v := range got.Data.([]float32) {
			x, y := float64(x[i]), want.F[i]
			bound := 1.5e-6 * math.Abs(y)
			if x < -2 {
				bound = 2e-5*math.Abs(y) + 1e-36
			}
			if same := float64(v) == y || v != v && y != y; !same && !(math.Abs(float64(v)-y) <= bound) {
				return fmt.Errorf("of %v it is %v, want %v ± %.1e", x, v, y, bound)
			}
		}
		return nil
	}
	for _, fn := range []graph.UnaryFn{graph.GeluTanh, graph.Silu} {
		cudatest.Run(t, cudatest.Open(t), cudatest.Check{
			Name: fn.String(), Op: graph.Unary{Fn: fn}, Compare: near,
			Args: []*graph.Tensor{{Type: graph.TypeOf(graph.F32, len(x)), Data: x}},
		})
	}
}

// TestGeluWithSlope computes GELU and its slope in one kernel, where they have an exponential in common.
func TestGeluWithSlope(t *testing.T) {
	x := wideRange()
	op, types := fused(t, graph.AnchorNone, func(b *graph.Builder, in inputs) {
		v := in(graph.F32, len(x))
		b.Output("y", b.Binary(graph.Sub, b.Unary(graph.GeluTanh, v), b.Unary(graph.GeluTanhSlope, v)))
	})
	near := func(got *graph.Tensor, want ref.Value) error {
		for i, v := range got.Data.([]float32) {
			y := want.F[i]
			bound := 2e-6 * max(1, math.Abs(y))
			if same := float64(v) == y || v != v && y != y; !same && !(math.Abs(float64(v)-y) <= bound) {
				return fmt.Errorf("of %v it is %v, want %v ± %.1e", x[i], v, y, bound)
			}
		}
		return nil
	}
	c := cudatest.Check{Name: "gelu with slope", Op: op, Compare: near, Args: []*graph.Tensor{{Type: types[0], Data: x}}}
	if text := kernelOf(t, op, types, c.Config).Generated(); !strings.Contains(text, "op::gelu_tanh_with_slope(") {
		t.Errorf("the two have nothing in common:\n%s", text)
	}
	cudatest.Run(t, cudatest.Open(t), c)
}

// TestGeluWithSlopeOfF64 holds both to the error of f64, where they are in one kernel.
func TestGeluWithSlopeOfF64(t *testing.T) {
	const n = 999
	x := graph.NewTensor(graph.TypeOf(graph.F64, n))
	for i := range n {
		x.SetFloat(i, float64(i)/50-10)
	}
	for _, fns := range [][2]graph.UnaryFn{{graph.GeluErf, graph.GeluErfSlope}, {graph.GeluTanh, graph.GeluTanhSlope}} {
		op, types := fused(t, graph.AnchorNone, func(b *graph.Builder, in inputs) {
			v := in(graph.F64, n)
			b.Output("y", b.Binary(graph.Sub, b.Unary(fns[0], v), b.Unary(fns[1], v)))
		})
		near := func(got *graph.Tensor, want ref.Value) error {
			for i, y := range want.F {
				if v := got.Float(i); !(math.Abs(v-y) <= 1e-13*max(1, math.Abs(y))) {
					return fmt.Errorf("of %v it is %v, want %v", x.Float(i), v, y)
				}
			}
			return nil
		}
		c := cudatest.Check{Name: fmt.Sprint(fns), Op: op, Compare: near, Args: []*graph.Tensor{x}}
		if text := kernelOf(t, op, types, c.Config).Generated(); !strings.Contains(text, "_with_slope(") {
			t.Errorf("the two have nothing in common:\n%s", text)
		}
		cudatest.Run(t, cudatest.Open(t), c)
	}
}

// TestGeluErfOfProduct holds GELU and its slope behind a product of 16 bits to the errors that their comments state: each alone,
// and both in one kernel, where they have a tangent in common.
func TestGeluErfOfProduct(t *testing.T) {
	const m, k, n = 1040, 64, 64
	a, e := graph.NewTensor(graph.TypeOf(graph.BF16, m, k)), graph.NewTensor(graph.TypeOf(graph.BF16, k, n))
	special := []float64{math.Inf(1), math.Inf(-1), math.NaN(), 1e30, -1e30, 40, -40}
	for i := range m { // element (i, j) of the product is i/64 − 8 + j/4096, for i < 1024
		v := float64(i)/64 - 8
		if i >= 1024 {
			v = special[i%len(special)]
		}
		a.SetFloat(i*k, v)
		a.SetFloat(i*k+1, 1.0/4096)
	}
	for j := range n {
		e.SetFloat(j, 1)
		e.SetFloat(n+j, float64(j))
	}
	for i, fns := range [][]graph.UnaryFn{{graph.GeluErf}, {graph.GeluErfSlope}, {graph.GeluErf, graph.GeluErfSlope}} {
		op, types := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
			y := b.MatMul(in(graph.BF16, m, k), in(graph.BF16, k, n), false, false)
			b.Output("", y)
			for _, fn := range fns {
				b.Output("", b.Unary(fn, y))
			}
		})
		var x []float64
		result := 0
		near := func(got *graph.Tensor, want ref.Value) error {
			if result++; result == 1 {
				x = want.F
				return nil
			}
			for i, y := range want.F {
				v, bound := got.Float(i), 1.0/2048
				if fns[result-2] == graph.GeluErf {
					bound = math.Abs(x[i])/4096 + 4e-5
				}
				if same := v == y || v != v && y != y; !same && !(math.Abs(v-y) <= bound) {
					return fmt.Errorf("%v of %v is %v, want %v ± %.1e", fns[result-2], x[i], v, y, bound)
				}
			}
			return nil
		}
		c := cudatest.Check{Name: fmt.Sprint(fns), Op: op, Compare: near, Args: []*graph.Tensor{a, e},
			Config: cuda.Config{Precision: cuda.BF16}}
		text := kernelOf(t, op, types, c.Config).Generated()
		if strings.Contains(text, "op::gelu_erf_with_slope(") != (i == 2) {
			t.Errorf("%v have nothing in common, or have something alone:\n%s", fns, text)
		}
		cudatest.Run(t, cudatest.Open(t), c)
	}
}
