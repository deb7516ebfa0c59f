package vec

import (
	"math"
	"testing"

	"golang.org/x/sys/cpu"
)

// TestWider compares the kernels for AVX-512, bit by bit, with those for AVX2, which the other tests do not run where there are
// both.
func TestWider(t *testing.T) {
	if !cpu.X86.HasAVX512F {
		t.Skip("this processor cannot run the kernels for AVX-512")
	}
	x := make([]float32, 1000)
	for i := range x {
		x[i] = float32(math.Sinh(float64(i-500) / 80))
	}
	copy(x[300:], []float32{0, float32(math.Copysign(0, -1)), float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)),
		math.MaxFloat32, -math.MaxFloat32, math.SmallestNonzeroFloat32})
	for fn, wide := range unaryAVX512F32 {
		for n := range 200 {
			in := x[5*(n%160):][:n]
			got, want := make([]float32, n+1), make([]float32, n+1)
			wide(got[:n], in)
			unaryF32[fn](want[:n], in)
			for i := range got {
				if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
					t.Fatalf("%v(%v) of %d elements is %v, by AVX2 %v", fn, in[i], n, got[i], want[i])
				}
			}
		}
	}
}
