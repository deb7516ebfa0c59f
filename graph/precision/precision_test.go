package precision

import "testing"

func TestParse(t *testing.T) {
	for p := F32; p <= F16; p++ {
		if got, err := Parse(p.String()); got != p || err != nil {
			t.Errorf("%v is read as %v, %v", p, got, err)
		}
	}
	if _, err := Parse("f8"); err == nil || err.Error() != `precision "f8" is not known: want f32, tf32, bf16 or f16` {
		t.Errorf("error %v", err)
	}
}
