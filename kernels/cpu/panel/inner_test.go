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

// TestInnerLoopIntegers counts those of products of integers, in all slices of a panel.
func TestInnerLoopIntegers(t *testing.T) {
	for name, want := range map[string]struct {
		of              string
		multiply, total int
	}{
		"i8Integersx1SDOT": {"sdot", 16, 25}, "i8Integersx2SDOT": {"sdot", 32, 41}, "i8Integersx4SDOT": {"sdot", 64, 74},
		"i8Integersx8SDOT": {"sdot", 128, 144}, "i4Integersx1SDOT": {"sdot", 16, 37}, "i4Integersx2SDOT": {"sdot", 32, 53},
		"i4Integersx4SDOT": {"sdot", 64, 86}, "i4Integersx8SDOT": {"sdot", 128, 157}, "i8Integersx4SMMLA": {"smmla", 32, 58},
		"i8Integersx8SMMLA": {"smmla", 64, 96}, "i4Integersx4SMMLA": {"smmla", 32, 70}, "i4Integersx8SMMLA": {"smmla", 64, 108},
	} {
		var sum inner.Count
		multiply := 0
		for slice := 0; ; slice++ {
			c, err := inner.Loop("kernel_arm64.s", name, fmt.Sprintf("octet%d", slice))
			if err != nil {
				break
			}
			sum.All, sum.Vectors, multiply = sum.All+c.All, sum.Vectors+c.Vectors, multiply+c.Of[want.of]
		}
		t.Logf("%s: %d instructions, %d on vectors, of which %d are %s", name, sum.All, sum.Vectors, multiply, want.of)
		if multiply != want.multiply || sum.Vectors > want.total {
			t.Errorf("%s: %d of %d vector instructions are %s, want %d of %d", name, multiply, sum.Vectors, want.of, want.multiply,
				want.total)
		}
	}
}
