package panel

import (
	"fmt"
	"testing"

	"fusec/kernels/cpu/internal/inner"
)

// TestInnerLoopNEON counts the instructions of the loops over octets of weights: all that name vectors, loads included, and those
// that multiply.
func TestInnerLoopNEON(t *testing.T) {
	for name, want := range map[string][4]int{ // of 1, 2, 4 and 8 rows
		"i4": {217, 282, 224, 194}, "i8": {201, 266, 208, 188}, "bf16": {145, 210, 176, 168}, "f16": {145, 210, 176, 168},
	} {
		for i, most := range want {
			kernel := fmt.Sprintf("%sx%dNEON", name, 1<<i)
			c, err := inner.Loop("kernel_arm64.s", kernel, "octet")
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s: %d instructions, %d on vectors, of which %d are FMLA", kernel, c.All, c.Vectors, c.Of["fmla"])
			if fused := [4]int{64, 128, 128, 128}[i]; c.Of["fmla"] != fused || c.Vectors > most {
				t.Errorf("%s: %d of %d vector instructions are FMLA, want %d of %d", kernel, c.Of["fmla"], c.Vectors, fused, most)
			}
		}
	}
}
