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
		{"matmul", func(i *OpInfo) { i.AlongAxis = true }, "matmul goes along an axis, but has no"},
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

// TestRowsSay checks what rows say of single nodes: names, indices, and operands that choose.
func TestRowsSay(t *testing.T) {
	b := NewBuilder("rows")
	x, i, start := b.Input("x", TypeOf(F32, 5, 7)), b.Input("i", TypeOf(I64, 3)), b.Input("start", TypeOf(I64))
	for _, c := range []struct {
		n       *Node
		verb    string
		index   *Node
		below   int
		chooses int
	}{
		{b.Unary(Exp, x), "exp", nil, 0, 0},
		{b.Add(Pool{Fn: MaxPool, Kernel: IntsOf(1, 1), Stride: IntsOf(1, 1), Pad: IntsOf(0, 0, 0, 0)},
			b.Reshape(x, 1, 1, 5, 7)), "max_pool", nil, 0, 0},
		{b.Reduce(Sum, x, false, 0), "sum", nil, 0, 0},
		{b.Add(Gather{Axis: 0}, x, i), "gather", i, 5, 0},
		{b.Add(ScatterAdd{Axis: 0, Size: 9}, i, b.Input("u", TypeOf(F32, 3, 2))), "scatter_add", i, 9, 0},
		{b.Add(Slice{Axis: 1, Size: 3, Step: 2}, x, start), "slice", start, 3, 0},
		{b.Add(Slice{Axis: 1, Size: 0, Step: 2}, x, start), "slice", start, 8, 0},
		{b.Add(Unslice{Axis: 1, Size: 15, Step: 2}, x, start), "unslice", start, 3, 0},
		{b.Add(UpdateSlice{Axis: 0}, x, b.Input("v", TypeOf(F32, 2, 7)), start), "update_slice", start, 4, 0},
		{b.Add(TopK{K: 2}, x), "top_k", nil, 0, 1},
	} {
		if index, below := Index(c.n); Verb(c.n.Op) != c.verb || index != c.index || below != c.below {
			t.Errorf("%s: verb %q, index %v below %d; want %q, %v, %d", c.n.Describe(), Verb(c.n.Op), index, below, c.verb, c.index,
				c.below)
		}
		if list := Choosers(c.n); len(list) != c.chooses {
			t.Errorf("%s: %d operands choose, want %d", c.n.Describe(), len(list), c.chooses)
		}
	}
	if err := b.Err(); err != nil {
		t.Fatal(err)
	}
	for _, op := range []Op{Host{Name: "mine"}, Fusion{}, Custom{}} {
		if v := Verb(op); v != map[string]string{"host": "host mine", "fusion": Kind(0).String(), "custom": "custom"}[op.OpName()] {
			t.Errorf("%s is called %q", op.OpName(), v)
		}
	}
	if index, _ := Index(&Node{Op: strange{}}); index != nil || Verb(strange{}) != "strange" || Choosers(&Node{Op: strange{}}) != nil {
		t.Error("an operation without a row has an index, a verb or operands that choose")
	}
}

type strange struct{}

func (strange) OpName() string { return "strange" }
