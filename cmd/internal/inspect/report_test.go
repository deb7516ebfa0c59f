package inspect

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/graph/graphtest"
)

func TestReport(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "r.html")
	if said := clitest.Good(t, "report", clitest.Bare, "--unmeasured", "-o", out); !strings.Contains(said, "r.html: ") {
		t.Errorf("it says %q", said)
	}
	page, err := os.ReadFile(out)
	if err != nil || !strings.Contains(string(page), "<title>mlp</title>") {
		t.Fatalf("%v, a page of %d bytes", err, len(page))
	}
	if text := clitest.Good(t, "report", clitest.Bare, "--unmeasured", "-o", "-"); text != string(page) {
		t.Error("standard output has another page")
	}
	// A measured model against the JSON of an earlier compilation.
	json := filepath.Join(dir, "old.json")
	clitest.Good(t, "dump", clitest.Bare, "--all", "--disable", "fuse-regions", "-o", json)
	clitest.Good(t, "report", clitest.Bare, json, "-o", filepath.Join(dir, "both.html"))
	if both, err := os.ReadFile(filepath.Join(dir, "both.html")); err != nil || len(both) <= len(page) {
		t.Errorf("%v, a page of %d bytes", err, len(both))
	}
}

func TestReportErrors(t *testing.T) {
	old := graphtest.File(t, "old.json", `{"schema":"fusec.trace/1"}`)
	for _, c := range []struct {
		args []string
		code int
		want []string
	}{
		{[]string{"report"}, cli.ExitUsage, []string{"which model?"}},
		{[]string{"report", "a.graph", "b.graph", "c.graph"}, cli.ExitUsage, []string{"two models, not 3: a.graph, b.graph, c.graph"}},
		{[]string{"report", clitest.Bare, "-o", "r.svg"}, cli.ExitUsage, []string{"-o r.svg", ".html"}},
		{[]string{"report", "-", "-"}, cli.ExitUsage, []string{"standard input holds one model"}},
		{[]string{"report", clitest.Bare, "-o", "none/r.html"}, cli.ExitFailure, []string{"none/r.html"}},
		{[]string{"report", old, "-o", "-"}, cli.ExitFailure, []string{old, `"fusec.trace/1"`, `"fusec.trace/5"`}},
		{[]string{"report", "none.json", "-o", "-"}, cli.ExitFailure, []string{"none.json"}},
	} {
		clitest.Bad(t, clitest.FusecRun(t, c.args...), c.code, c.want...)
	}
}

// A page has lines of the model's own file and of files below the current folder only.
func TestReportLines(t *testing.T) {
	model := graphtest.File(t, "m.graph", "its text")
	read := linesOf(model)
	if src, err := read("m.graph"); err != nil || string(src) != "its text" {
		t.Errorf("%q, %v", src, err)
	}
	if src, err := read("report_test.go"); err != nil || !strings.HasPrefix(string(src), "package inspect") {
		t.Errorf("%d bytes, %v", len(src), err)
	}
	for _, file := range []string{"/etc/passwd", "../explain.go", filepath.Dir(model) + "/other.go", "testdata/mlp-explain.txt",
		"none.go"} {
		if src, err := read(file); err == nil {
			t.Errorf("%s is read: %d bytes", file, len(src))
		}
	}
}
