package gemm

import (
	"testing"

	"fusec/kernels/cpu/internal/inner"
)

// TestInnerLoopNEON counts the instructions of the loops in which products spend their time: in those of float32 nine of
// ten vector instructions, loads included, are multiplications with addition.
func TestInnerLoopNEON(t *testing.T) {
	for name, want := range map[string]struct{ fused, percent int }{
		"tileNEONF32": {96, 90}, "tileAheadNEONF32": {96, 90}, "tileNEONF64": {96, 85}, "gather6x12NEONF32": {72, 80},
		"gather6x6NEONF64": {72, 75},
	} {
		c, err := inner.Loop("kernel_arm64.s", name, "unrolled")
		if err != nil {
			t.Fatal(err)
		}
		fused := c.Of["fmla"]
		t.Logf("%s: %d instructions, %d on vectors, of which %d are FMLA", name, c.All, c.Vectors, fused)
		if fused != want.fused || 100*fused < want.percent*c.Vectors {
			t.Errorf("%s: %d of %d vector instructions are FMLA, want %d and %d %%", name, fused, c.Vectors, want.fused, want.percent)
		}
	}
	if _, err := inner.Loop("kernel_arm64.s", "tileNEONF32", "nowhere"); err == nil {
		t.Error("a loop that is not there is counted")
	}
	if _, err := inner.Loop("nowhere.s", "tileNEONF32", "unrolled"); err == nil {
		t.Error("a file that is not there is read")
	}
}
