package trace_test

import (
	"slices"
	"testing"

	"fusec/graph/trace"
)

func TestMeasures(t *testing.T) {
	a := trace.Measures{{"cycles", "cycles", 12345678}, {"error at most", "%", 0.34567}}
	b := trace.Measures{{"error at most", "%", 2}, {"tries", "", 1e20}}
	columns := trace.Columns(a, nil, b)
	var head []string
	for _, c := range columns {
		head = append(head, c.Column())
	}
	if want := []string{"cycles", "error at most, %", "tries"}; !slices.Equal(head, want) {
		t.Errorf("columns %q, want %q", head, want)
	}
	for want, got := range map[string][]string{
		"12345678 0.346 ": a.Row(columns), "  ": trace.Measures(nil).Row(columns), " 2 1e+20": b.Row(columns),
	} {
		if s := got[0] + " " + got[1] + " " + got[2]; s != want {
			t.Errorf("row %q, want %q", s, want)
		}
	}
	if a.Get("cycles") != 12345678 || a.Get("tries") != 0 {
		t.Errorf("%v, %v", a.Get("cycles"), a.Get("tries"))
	}
}

func TestTargetChip(t *testing.T) {
	for want, tr := range map[string]trace.Trace{"cpu": {Target: "cpu"}, "fpga/sim8": {Target: "fpga", Chip: "sim8"}} {
		if got := tr.TargetChip(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
