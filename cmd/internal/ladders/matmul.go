// Package ladders has the variants of kernels that fusec bench --ladder times: from the definition of an operation, step by
// step, to the kernel that programs use, so that the gain of each step can be measured. Those of the CPU run on one core.
package ladders

import (
	"sync"

	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/cpu/vec"
)

// A MatMulVariant computes C = A·B, row major: A is m×k, B k×n, C m×n.
type MatMulVariant struct {
	Name string
	Doc  string // the difference from the variant before
	Func func(m, n, k int, a, b, c []float32)
}

// MatMul lists variants from the definition of the product to the algorithm of programs, on one core.
var MatMul = []MatMulVariant{
	{"naive", "The definition: one dot product per element. B is read by columns, a cache line per element.", naive},
	{"blocked", "A block of 4×4 of C in scalar registers: each element loaded is used four times.", blocked},
	{"vectorised", "Whole rows of B scaled and added with vector multiply-adds; a row of C in the first-level cache.", vectorised},
	{"packed", "Operands packed into panels that fit the caches, blocks of C in vector registers: what programs use.", packed},
}

func naive(m, n, k int, a, b, c []float32) {
	for i := range m {
		for j := range n {
			var s float32
			for p := range k {
				s += a[i*k+p] * b[p*n+j]
			}
			c[i*n+j] = s
		}
	}
}

// blocked computes complete 4×4 blocks like the portable block kernel but without packing, and the rest like naive.
func blocked(m, n, k int, a, b, c []float32) {
	const step = 4
	wholeM, wholeN := m/step*step, n/step*step
	for i := 0; i < wholeM; i += step {
		for j := 0; j < wholeN; j += step {
			var s [step][step]float32
			for p := range k {
				row := b[p*n+j:][:step]
				b0, b1, b2, b3 := row[0], row[1], row[2], row[3]
				for r := range s {
					x := a[(i+r)*k+p]
					s[r][0] += x * b0
					s[r][1] += x * b1
					s[r][2] += x * b2
					s[r][3] += x * b3
				}
			}
			for r := range s {
				copy(c[(i+r)*n+j:], s[r][:])
			}
		}
	}
	for i := range m {
		from := wholeN
		if i >= wholeM {
			from = 0
		}
		for j := from; j < n; j++ {
			var s float32
			for p := range k {
				s += a[i*k+p] * b[p*n+j]
			}
			c[i*n+j] = s
		}
	}
}

// vectorised goes through B by some hundred columns, so that a piece of a row of C stays in the first-level cache while all
// rows of B are added to it.
func vectorised(m, n, k int, a, b, c []float32) {
	const columns = 512
	clear(c[:m*n])
	code := vec.F32()
	for j := 0; j < n; j += columns {
		cols := min(columns, n-j)
		for i := range m {
			y := c[i*n+j:][:cols]
			for p := range k {
				code.Axpy(y, b[p*n+j:][:cols], a[i*k+p])
			}
		}
	}
}

// onlyCaller is a pool without goroutines.
var onlyCaller = sync.OnceValue(func() *pool.Pool { return pool.New(1) })

func packed(m, n, k int, a, b, c []float32) {
	plan, err := gemm.New(gemm.Config[float32]{
		M: m, N: n, K: k, Batch: 1,
		A: gemm.RowMajor(k), B: gemm.RowMajor(n), C: gemm.RowMajor(n),
	}, onlyCaller(), nil)
	if err == nil {
		err = plan.Run(a, b, c, nil)
	}
	if err != nil {
		panic(err) // as an index out of range does in the other variants
	}
}
