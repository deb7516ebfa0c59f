package gemm

import (
	"testing"

	"fusec/kernels/cpu/internal/inner"
)

// TestInnerLoopNEON counts the instructions of the loops in which products spend their time: in those of float32 nine of
// ten vector instructions, loads included, are multiplications with addition. SDOT has to sum B's columns, too, where A's bytes
// have no sign.
func TestInnerLoopNEON(t *testing.T) {
	for _, want := range []struct {
		name, loop, of string
		fused, percent int
	}{
		{"tileNEONF32", "unrolled", "fmla", 96, 90}, {"tileAheadNEONF32", "unrolled", "fmla", 96, 90},
		{"tileNEONF64", "unrolled", "fmla", 96, 85},
		{"gather6x12NEONF32", "unrolled", "fmla", 72, 80}, {"gather6x6NEONF64", "unrolled", "fmla", 72, 75},
		{"gather6x12SDOTQuads", "unrolled", "sdot", 72 + 12, 80}, {"gather6x12SUDOTQuads", "unrolled", "sudot", 72, 80},
		{"dots4NEONF32", "rows4Depth", "fmla", 32, 80}, {"dots4NEONBF16", "rows4Depth", "fmla", 32, 65},
		{"dots4NEONF16", "rows4Depth", "fmla", 32, 65}, {"sums4NEONF32", "registers4Rows", "fmla", 64, 80},
		{"sums4NEONBF16", "registers4Rows", "fmla", 64, 65}, {"sums4NEONF16", "registers4Rows", "fmla", 64, 65},
	} {
		c, err := inner.Loop("kernel_arm64.s", want.name, want.loop)
		if err != nil {
			t.Fatal(err)
		}
		fused := c.Of[want.of]
		t.Logf("%s: %d instructions, %d on vectors, of which %d are %s", want.name, c.All, c.Vectors, fused, want.of)
		if fused != want.fused || 100*fused < want.percent*c.Vectors {
			t.Errorf("%s: %d of %d vector instructions are %s, want %d and %d %%", want.name, fused, c.Vectors, want.of, want.fused,
				want.percent)
		}
	}
	if _, err := inner.Loop("kernel_arm64.s", "tileNEONF32", "nowhere"); err == nil {
		t.Error("a loop that is not there is counted")
	}
	if _, err := inner.Loop("nowhere.s", "tileNEONF32", "unrolled"); err == nil {
		t.Error("a file that is not there is read")
	}
}
