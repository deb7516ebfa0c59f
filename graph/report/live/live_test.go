package live

import (
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"fusec"
	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/trace"
)

// planned is a machine that has a trace.
type planned struct{ tr *trace.Trace }

func (p planned) Trace() *trace.Trace { return p.tr }

func run(t testing.TB) *Run {
	t.Helper()
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Input("x", graph.TypeOf(graph.F32, 8, 8))
		b.Output("y", b.Unary(graph.Tanh, b.MatMul(x, b.Param("w", graph.TypeOf(graph.F32, 8, 8)), false, false)))
	})
	tr, _, err := fusec.Plan(g)
	if err != nil {
		t.Fatal(err)
	}
	return Handler(planned{tr})
}

// got is what a path serves.
func got(t testing.TB, r *Run, method, url string) (code int, kind, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	r.ServeHTTP(w, httptest.NewRequest(method, url, nil))
	src, err := io.ReadAll(w.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.Code, w.Header().Get("Content-Type"), string(src)
}

func TestServe(t *testing.T) {
	r := run(t)
	if _, _, body := got(t, r, "GET", "/debug/fusec/metrics"); strings.Contains(body, "fusec_loss") ||
		!strings.Contains(body, "\nfusec_steps_total 0\n") {
		t.Errorf("before the first step\n%s", body)
	}
	r.Step(Step{Loss: 2.5, Took: time.Second, Experts: map[string][]int{"a\"b\\\n": {3, 0}}})
	r.Step(Step{Loss: math.Inf(1), Skipped: 1, Took: 3 * time.Second})

	code, kind, body := got(t, r, "GET", "/debug/fusec")
	if code != http.StatusOK || !strings.HasPrefix(kind, "text/html") || !strings.HasPrefix(body, "<!doctype html>") {
		t.Errorf("the page: %d, %s, %d bytes", code, kind, len(body))
	}
	code, kind, body = got(t, r, "GET", "/debug/fusec/metrics")
	for _, want := range []string{
		"# TYPE fusec_steps_total counter\nfusec_steps_total 2\n", "\nfusec_skipped_steps_total 1\n", "\nfusec_loss +Inf\n",
		"\nfusec_step_seconds_sum 4\nfusec_step_seconds_count 2\n", "\nfusec_launches 1\n", "\nfusec_parameter_bytes 256\n",
		"\nfusec_expert_tokens{mixture=\"a\\\"b\\\\\\n\",expert=\"0\"} 3\n", `expert="1"} 0` + "\n",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in\n%s", want, body)
		}
	}
	if code != http.StatusOK || kind != "text/plain; version=0.0.4; charset=utf-8" {
		t.Errorf("metrics: %d, %s", code, kind)
	}
	var s state
	_, kind, body = got(t, r, "GET", "/debug/fusec?live")
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		t.Fatal(err)
	}
	if kind != "application/json" || s.Steps != 2 || s.Skipped != 1 || len(s.Loss) != 2 || *s.Loss[0] != 2.5 || s.Loss[1] != nil ||
		s.Took[1] != 3e9 || len(s.Experts) != 1 {
		t.Errorf("%s: %s", kind, body)
	}
	if code, _, _ := got(t, r, "POST", "/debug/fusec"); code != http.StatusMethodNotAllowed {
		t.Errorf("POST gives %d", code)
	}
}

// A long run keeps a bounded number of points, which have all its steps.
func TestManySteps(t *testing.T) {
	r := run(t)
	const n = 5*mostPoints + 3
	var both sync.WaitGroup
	both.Go(func() {
		for i := range n {
			r.Step(Step{Loss: float64(i)})
		}
	})
	both.Go(func() {
		for range 20 {
			got(t, r, "GET", "/?live")
			got(t, r, "GET", "/metrics")
		}
	})
	both.Wait()
	steps, loss := 0, 0.0
	for _, p := range r.points {
		steps, loss = steps+p.steps, loss+p.loss
	}
	if steps != n || loss != n*(n-1)/2 || len(r.points) > mostPoints || r.every != 8 {
		t.Errorf("%d steps with losses of %g in %d points of %d", steps, loss, len(r.points), r.every)
	}
	s := r.state()
	if first, last := *s.Loss[0], *s.Loss[len(s.Loss)-1]; first != 3.5 || last < n-8 {
		t.Errorf("means from %g to %g", first, last)
	}
}

func BenchmarkStep(b *testing.B) {
	r := run(b)
	b.ReportAllocs()
	for b.Loop() {
		r.Step(Step{Loss: 1})
	}
}
