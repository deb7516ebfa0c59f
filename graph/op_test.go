package graph

import (
	"strings"
	"testing"
)

// TestRowsAreWhole takes a fact out of a row: the check names the operation.
func TestRowsAreWhole(t *testing.T) {
	for _, c := range []struct {
		op     string
		change func(*OpInfo)
		want   string
	}{
		{"rms_norm", func(i *OpInfo) {}, ""},
		{"rms_norm", func(i *OpInfo) { i.Doc = "" }, "row of rms_norm lacks"},
		{"rms_norm", func(i *OpInfo) { i.Infer = nil }, "row of rms_norm lacks"},
		{"rms_norm", func(i *OpInfo) { i.RowAxes = nil }, "rms_norm needs row axes"},
		{"rms_norm", func(i *OpInfo) { i.Fuses = false }, "rms_norm has an anchor"},
		{"rms_norm", func(i *OpInfo) { i.Decompose = nil }, "rms_norm needs a decomposition"},
		{"unary", func(i *OpInfo) { i.Fuses = false }, "unary is elementwise"},
	} {
		row := *OpByName(c.op)
		c.change(&row)
		if err := row.check(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.op, err, c.want)
		}
	}
}
