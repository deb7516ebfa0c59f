package gemm_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/vec"
)

// TestFew compares products of a few vectors with many rows, of f32, of 16 bits and of 8, with sums in float64; what is between
// rows and behind them stays.
func TestFew(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	random := func(rows, stride int) []float32 {
		x := make([]float32, rows*stride)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		return x
	}
	for _, m := range gemm.Micros[float32]() {
		checkFew(t, m.Few, random, func(x []float32) []float32 { return x })
		for d, few := range m.Halves {
			checkFew(t, few, func(rows, stride int) []float32 {
				x := random(rows, stride)
				vec.RoundHalf(x, x, d)
				return x
			}, func(x []float32) []uint16 {
				h := make([]uint16, len(x))
				vec.ToHalf(h, x, d)
				return h
			})
		}
		checkFew(t, m.Bytes, func(rows, stride int) []float32 {
			x := random(rows, stride)
			for i := range x {
				x[i] = float32(r.IntN(256) - 128)
			}
			return x
		}, func(x []float32) []int8 {
			q := make([]int8, len(x))
			for i, v := range x {
				q[i] = int8(v)
			}
			return q
		})
	}
}

// checkFew checks routines for rows whose elements are those of stored.
func checkFew[E any](t *testing.T, few []gemm.Few[float32, E], random func(rows, stride int) []float32,
	stored func(x []float32) []E) {
	t.Helper()
	for _, f := range few {
		for n := range 14 {
			size := f.Lanes * (1 + n%6)
			ldq, ldx, lds := size+n%3, size+n%4, n+n%5
			q, x, s := random(f.Vectors, ldq), random(max(n, 1), ldx), random(f.Vectors, lds+1)
			old, rows := append([]float32(nil), s...), stored(x)
			f.Dots(n, size, &q[0], ldq, &rows[0], ldx, &s[0], lds)
			y := append([]float32(nil), q...)
			if n > 0 {
				f.Sums(n, size, &s[0], lds, &rows[0], ldx, &y[0], ldq)
			}
			for v := range f.Vectors {
				row := y[v*ldq:]
				for j := range n {
					want, terms := 0.0, 0.0
					for i := range size {
						u := float64(q[v*ldq+i]) * float64(x[j*ldx+i])
						want, terms = want+u, terms+math.Abs(u)
					}
					if got := float64(s[v*lds+j]); math.Abs(got-want) > 1e-6*terms {
						t.Fatalf("%d vectors of %d, %d rows: product %d, %d is %g, want %g", f.Vectors, size, n, v, j, got, want)
					}
				}
				for i := range size {
					want, terms := float64(q[v*ldq+i]), 0.0
					for j := range n {
						u := float64(s[v*lds+j]) * float64(x[j*ldx+i])
						want, terms = want+u, terms+math.Abs(u)
					}
					if got := float64(row[i]); math.Abs(got-want) > 1e-6*(1+terms) {
						t.Fatalf("%d vectors of %d, %d rows: sum %d, %d is %g, want %g", f.Vectors, size, n, v, i, got, want)
					}
				}
			}
			for i, v := range old {
				if i >= f.Vectors*lds || i%max(lds, 1) >= n {
					if s[i] != v {
						t.Fatalf("%d vectors, %d rows: element %d of the products is overwritten", f.Vectors, n, i)
					}
				}
			}
			for i := range y {
				if i%ldq >= size && y[i] != q[i] {
					t.Fatalf("%d vectors of %d: element %d of the sums is overwritten", f.Vectors, size, i)
				}
			}
		}
	}
}
