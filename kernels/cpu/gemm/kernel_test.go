package gemm

import (
	"math"
	"math/rand/v2"
	"testing"
)

func testStreaming[T Float](t *testing.T) {
	rng := rand.New(rand.NewPCG(19, 20))
	for _, k := range kernels[T]() {
		for n := 1; n < 150; n++ {
			const gap = 3
			x, y, alpha := make([]T, 4*(n+gap)), make([]T, n+1), make([]T, 4)
			for _, s := range [][]T{x, y, alpha} {
				for i := range s {
					s[i] = T(rng.NormFloat64())
				}
			}
			var want, terms float64
			for i := range n {
				want += float64(x[i]) * float64(y[i])
				terms += math.Abs(float64(x[i]) * float64(y[i]))
			}
			if got := float64(k.dot(n, &x[0], &y[0])); !(math.Abs(got-want) <= tolerance[T]()*terms) {
				t.Fatalf("%s: dot of %d: got %v, want %v", k.name, n, got, want)
			}
			sums := append([]T(nil), y...)
			k.axpy4(n, &alpha[0], &x[0], n+gap, &sums[0])
			for i := range n {
				want, terms := float64(y[i]), math.Abs(float64(y[i]))
				for r := range alpha {
					v := float64(alpha[r]) * float64(x[r*(n+gap)+i])
					want += v
					terms += math.Abs(v)
				}
				if got := float64(sums[i]); !(math.Abs(got-want) <= tolerance[T]()*terms) {
					t.Fatalf("%s: axpy4 of %d: element %d: got %v, want %v", k.name, n, i, got, want)
				}
			}
			if sums[n] != y[n] {
				t.Fatalf("%s: axpy4 of %d wrote behind the end", k.name, n)
			}
		}
	}
}

func TestStreamingKernels(t *testing.T) {
	t.Run("float32", testStreaming[float32])
	t.Run("float64", testStreaming[float64])
}

func TestKernelNames(t *testing.T) {
	if Kernel[float32]() != kernels32[0].name || Kernel[float64]() != kernels64[0].name {
		t.Error("Kernel does not name the preferred kernel")
	}
	if last := kernels32[len(kernels32)-1]; last.name != "portable" {
		t.Error("the portable kernel is not tested")
	}
}

func TestLadder(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	for _, s := range [][3]int{{1, 1, 1}, {4, 4, 4}, {13, 21, 10}, {37, 600, 19}} {
		p := newProblem(t, rng, plain[float32](s[0], s[1], s[2]))
		for _, r := range Ladder {
			p.reset()
			r.Func(s[0], s[1], s[2], p.a, p.b, p.c)
			if err := p.check(same); err != nil {
				t.Errorf("%s: %v: %v", r.Name, s, err)
			}
			if r.Doc == "" {
				t.Errorf("%s has no description", r.Name)
			}
		}
	}
}
