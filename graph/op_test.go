package graph

import (
	"os"
	"path/filepath"
	"regexp"
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
		{"matmul", func(i *OpInfo) { i.RowWeights = true }, "matmul has weights of rows"},
		{"unary", func(i *OpInfo) { i.Fuses = false }, "unary is elementwise"},
	} {
		row := *OpByName(c.op)
		c.change(&row)
		if err := row.check(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.op, err, c.want)
		}
	}
}

// TestRowsAreListed finds a row that is in a family's file and not in the table.
func TestRowsAreListed(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile("table.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^var (\w+) = OpInfo\{`).FindAllStringSubmatch(string(text), -1) {
			found++
			if !regexp.MustCompile(`\b` + m[1] + `,`).Match(table) {
				t.Errorf("%s of %s is not in the table", m[1], f)
			}
		}
	}
	if found != len(opTable) {
		t.Errorf("%d rows in files, %d in the table", found, len(opTable))
	}
}
