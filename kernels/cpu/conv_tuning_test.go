package cpu_test

import (
	"strings"
	"testing"
	"time"

	"fusec/graph"
	kernels "fusec/kernels/cpu"
)

// A tuning's text is read back, and one that is damaged is an error that names the line.
func TestTuningText(t *testing.T) {
	c := kernels.Convolution{DType: graph.F32, Images: 2, Channels: 8, Height: 9, Width: 7, Filters: 6, KH: 3, KW: 3,
		Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 0, 2, 1), Groups: 1}
	const word = "f32:2x8x9x7:6x3x3:s1x1:d1x1:p1x0x2x1:g1"
	if c.String() != word {
		t.Errorf("%v", c)
	}
	times := map[kernels.Way]time.Duration{}
	for i, w := range c.Ways() {
		times[w] = time.Duration(100 - i)
	}
	if len(times) != 14 {
		t.Errorf("%d ways", len(times))
	}
	want := &kernels.Tuning{Chip: "a chip, 2 workers", Times: map[kernels.Convolution]map[kernels.Way]time.Duration{c: times}}
	got, err := kernels.ParseTuning(want.String())
	if err != nil || got.String() != want.String() {
		t.Errorf("%v:\n%v\nof\n%v", err, got, want)
	}
	if w, d := got.Fastest(c, graph.NHWC); d != 88 || w.String() != "winograd:4:96" {
		t.Errorf("%v takes %v", w, d)
	}
	for _, bad := range []string{word, word + " direct", word + " direct 0", word + " direct x", word + " direct:7 1",
		word + " depthwise 1", strings.Replace(word, ":g1", ":g0", 1) + " direct 1", strings.Replace(word, ":g1", ":g3", 1) + " direct 1",
		strings.Replace(word, "2x8x", "2x-8x", 1) + " direct 1", strings.Replace(word, "s1x1", "s0x1", 1) + " direct 1",
		strings.Replace(word, "9x7", "9x1", 1) + " direct 1", strings.Replace(word, "f32", "f31", 1) + " direct 1", " "} {
		if _, err := kernels.ParseTuning("fusec tuning 1 x\n" + word + " direct 5\n" + bad + "\n"); err == nil ||
			!strings.Contains(err.Error(), "line 3") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := kernels.ParseTuning("noise"); err == nil {
		t.Error("noise is read")
	}
}
