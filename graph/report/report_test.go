package report_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"fusec"
	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/optim"
	"fusec/graph/report"
	"fusec/graph/trace"
	"fusec/graph/trace/tracejson"
)

// step is the trace of a training step of a transformer, with times that follow from the work.
func step(t testing.TB, layers, odd int, opts ...fusec.CompileOption) *trace.Trace {
	t.Helper()
	o := &optim.Optimizer{Rule: optim.Adam{}, Rate: optim.Constant(0.1)}
	return timed(t, graphtest.Transformer(t, layers, odd), append(opts, fusec.WithOptimizer(o))...)
}

func timed(t testing.TB, g *graph.Graph, opts ...fusec.CompileOption) *trace.Trace {
	t.Helper()
	tr, _, err := fusec.Plan(g, opts...)
	if err != nil {
		t.Fatal(err)
	}
	for i := range tr.Program.Launches {
		l := &tr.Program.Launches[i]
		l.Measured = time.Duration(700 + l.FLOPs/20 + l.Bytes/9 + int64(i*7919%400))
	}
	return tr
}

func page(t testing.TB, first *tracejson.Trace, other ...*tracejson.Trace) string {
	t.Helper()
	var b bytes.Buffer
	if err := report.Page(&b, first, other...); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// unpacked is the data of a page.
func unpacked(t testing.TB, page string) []byte {
	t.Helper()
	m := regexp.MustCompile(`id="data">([^<]*)</script>`).FindStringSubmatch(page)
	if m == nil {
		t.Fatal("the page has no data")
	}
	z, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(m[1])))
	if err != nil {
		t.Fatal(err)
	}
	src, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// A page of 1,000 launches has at most 2 MB, and loads nothing.
func TestSize(t *testing.T) {
	tr := step(t, 36, -1)
	got := page(t, tracejson.New(tr, tracejson.All(tracejson.About{}, true)))
	t.Logf("%d launches: %d bytes", len(tr.Program.Launches), len(got))
	if len(tr.Program.Launches) < 900 || len(got) > 2e6 {
		t.Errorf("%d launches take %d bytes", len(tr.Program.Launches), len(got))
	}
	head, _, _ := strings.Cut(got, `id="data"`)
	for _, load := range []string{"src=", "@import", "url(", "href=\"http"} {
		if strings.Contains(head, load) {
			t.Errorf("the page loads something by %s", load)
		}
	}
}

func TestWrite(t *testing.T) {
	tr := step(t, 2, 1)
	tr.Stages[0].Graph.Nodes[0].Origin[0].Pos = "report_test.go:3"
	path := filepath.Join(t.TempDir(), "r.html")
	if err := report.Write(path, tr); err != nil {
		t.Fatal(err)
	}
	src, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Kinds  []struct{ Name, Colour string }
		Traces []*tracejson.Trace
	}
	if err := json.Unmarshal(unpacked(t, string(src)), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Kinds) == 0 || len(got.Traces) != 1 || got.Traces[0].Program.Launches[0].MeasuredNS == 0 {
		t.Errorf("%d kinds, %d traces", len(got.Kinds), len(got.Traces))
	}
	if l := got.Traces[0].Lines; l["report_test.go:1"] != "package report_test" || l["report_test.go:3"] != "import (" ||
		l["report_test.go:6"] != "" {
		t.Errorf("lines %q", l)
	}
	if err := report.Write(filepath.Join(path, "no"), tr); err == nil {
		t.Error("a report below a file is written")
	}
}

func TestLines(t *testing.T) {
	x := &tracejson.Trace{}
	for _, pos := range []string{"a.go:2", "gone.go:1", "", "a.go", "a.go:x", "a.go:-1", "a.go:99", "C:\\m.go:1"} {
		x.Origins = append(x.Origins, tracejson.Origin{Pos: pos})
	}
	asked := map[string]int{}
	got := report.Lines(x, func(file string) ([]byte, error) {
		asked[file]++
		if file == "gone.go" {
			return nil, errors.New("gone")
		}
		return []byte("one\r\n\xfftwo\n" + strings.Repeat("é", 1000)), nil
	})
	if got["a.go:1"] != "one" || got["a.go:2"] != "\uFFFDtwo" || len(got["a.go:3"]) > 300 || got["gone.go:1"] != "" ||
		got["C:\\m.go:1"] != "one" || len(got) != 6 {
		t.Errorf("%q", got)
	}
	if asked["a.go"] != 1 || len(asked) != 3 {
		t.Errorf("asked for %v", asked)
	}
}

func TestPageErrors(t *testing.T) {
	x := tracejson.New(step(t, 1, -1), tracejson.All(tracejson.About{}, false))
	if err := report.Page(io.Discard, x, x, x); err == nil || !strings.Contains(err.Error(), "compares two traces, not 3") {
		t.Errorf("error %v", err)
	}
	x.Model = `</title><script>alert("x")</script>`
	if got := page(t, x); strings.Contains(got, "<script>alert") {
		t.Error("the title is not escaped")
	}
}
