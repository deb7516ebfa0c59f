package gemm

import (
	"os"
	"regexp"
	"testing"
)

// vectorInstruction matches a line of assembly for Arm that names a vector register.
var vectorInstruction = regexp.MustCompile(`(?m)^\t(WORD .* // (\w+) .*\bv\d|(F\w+) .*\bF\d).*$`)

// TestInnerLoopNEON counts the instructions of the loops in which products spend their time: in those of float32 nine of
// ten vector instructions, loads included, are multiplications with addition. It reads the assembly, so it runs anywhere.
func TestInnerLoopNEON(t *testing.T) {
	text, err := os.ReadFile("kernel_arm64.s")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct{ fused, percent int }{
		"tileNEONF32": {96, 90}, "tileAheadNEONF32": {96, 90}, "tileNEONF64": {96, 85}, "gather6x12NEONF32": {72, 80},
		"gather6x6NEONF64": {72, 75},
	} {
		loop := regexp.MustCompile(`(?s)\nTEXT ·` + name + `\(.*?\nunrolled:\n(.*?\tBGE unrolled)\n`).FindSubmatch(text)
		if loop == nil {
			t.Fatalf("no %s with a loop", name)
		}
		all := len(regexp.MustCompile(`(?m)^\t`).FindAll(loop[1], -1))
		vectors, fused := 0, 0
		for _, m := range vectorInstruction.FindAllSubmatch(loop[1], -1) {
			vectors++
			if string(m[2]) == "fmla" {
				fused++
			}
		}
		t.Logf("%s: %d instructions, %d on vectors, of which %d are FMLA", name, all, vectors, fused)
		if fused != want.fused || 100*fused < want.percent*vectors {
			t.Errorf("%s: %d of %d vector instructions are FMLA, want %d and %d %%", name, fused, vectors, want.fused, want.percent)
		}
	}
}
