// Package live serves the page of package report while a model trains, with graphs of the loss and the time of a step,
// the loads of experts, and metrics for Prometheus.
//
//	run := live.Handler(vm)
//	http.Handle("/debug/fusec/", run)
//	for … {
//		err := vm.RunAll()
//		…
//		run.Step(live.Step{Loss: loss, Skipped: vm.StepStats().Skipped})
//	}
//
// The page is at the path itself, and the metrics are at /debug/fusec/metrics. Both are open to everyone who reaches the
// server, as those of net/http/pprof are.
package live

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"fusec/graph/report"
	"fusec/graph/trace"
	"fusec/graph/trace/tracejson"
)

// Run is a training run. It is an [http.Handler], which may serve while steps are recorded.
type Run struct {
	trace *tracejson.Trace
	page  func() ([]byte, error)

	lock   sync.Mutex
	points []point // of equally many steps each, except the last
	every  int     // steps of a point
	total  point   // of all steps
	begun  time.Time
	last   Step
}

// Step is what is recorded of a step.
type Step struct {
	Loss    float64
	Skipped int64 // the steps skipped so far; see fusec.StepStats
	// Experts are the tokens of each expert of each mixture, by the mixture's name. Nil keeps the last ones. The slices
	// must not be changed afterwards.
	Experts map[string][]int
	// Took is the time of the step. If it is 0, it is the time since the step before.
	Took time.Duration
}

// point sums up steps.
type point struct {
	steps int
	loss  float64 // sum
	took  time.Duration
}

func (p *point) add(q point) {
	p.steps += q.steps
	p.loss += q.loss
	p.took += q.took
}

// mostPoints bounds what is kept of a run: twice as many steps share a point when there are that many.
const mostPoints = 2048

// Handler serves the page on what a machine runs. It takes the machine's trace, which must not be nil, at once.
func Handler(vm interface{ Trace() *trace.Trace }) *Run {
	t := tracejson.New(vm.Trace(), tracejson.All(tracejson.About{}, false))
	return &Run{trace: t, every: 1, begun: time.Now(), page: sync.OnceValues(func() ([]byte, error) {
		var b bytes.Buffer
		err := report.LivePage(&b, t)
		return b.Bytes(), err
	})}
}

// Step records a step that has been done. It takes less than a microsecond, and copies nothing from the machine.
func (r *Run) Step(s Step) {
	now := time.Now()
	r.lock.Lock()
	defer r.lock.Unlock()
	p := point{1, s.Loss, s.Took}
	if p.took == 0 {
		p.took = now.Sub(r.begun)
	}
	r.begun = now
	r.total.add(p)
	if s.Experts == nil {
		s.Experts = r.last.Experts
	}
	r.last = s
	if n := len(r.points); n > 0 && r.points[n-1].steps < r.every {
		r.points[n-1].add(p)
		return
	}
	if len(r.points) == mostPoints {
		for i := range mostPoints / 2 {
			r.points[i] = r.points[2*i]
			r.points[i].add(r.points[2*i+1])
		}
		r.points = r.points[:mostPoints/2]
		r.every *= 2
	}
	r.points = append(r.points, p)
}

// ServeHTTP serves the page, for a path that ends in metrics the metrics, and with the query live the state of the run
// as JSON.
func (r *Run) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if q.Method != http.MethodGet && q.Method != http.MethodHead {
		http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch {
	case path.Base(q.URL.Path) == "metrics":
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		io.WriteString(w, r.metrics())
	case q.URL.Query().Has("live"):
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(r.state()); err != nil {
			return // the reader is gone
		}
	default:
		page, err := r.page()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Write(page)
	}
}

// state is the run as the page reads it.
type state struct {
	Steps   int              `json:"steps"`
	Skipped int64            `json:"skipped"`
	Every   int              `json:"every"`   // steps of a point
	Loss    []*float64       `json:"loss"`    // mean of each point; null if it is not finite
	Took    []float64        `json:"took_ns"` // mean of each point
	Experts map[string][]int `json:"experts,omitempty"`
}

func (r *Run) state() state {
	r.lock.Lock()
	defer r.lock.Unlock()
	s := state{Steps: r.total.steps, Skipped: r.last.Skipped, Every: r.every, Loss: []*float64{}, Took: []float64{},
		Experts: r.last.Experts}
	for _, p := range r.points {
		var loss *float64
		if mean := p.loss / float64(p.steps); !math.IsNaN(mean) && !math.IsInf(mean, 0) {
			loss = &mean
		}
		s.Loss = append(s.Loss, loss)
		s.Took = append(s.Took, float64(p.took.Nanoseconds())/float64(p.steps))
	}
	return s
}

// label escapes a label's value as Prometheus has it.
var label = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// metrics are the run's in the text format of Prometheus.
func (r *Run) metrics() string {
	r.lock.Lock()
	defer r.lock.Unlock()
	var b strings.Builder
	metric := func(name, kind, help string, v float64) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n%s %s\n", name, help, name, kind, name, number(v))
	}
	metric("fusec_steps_total", "counter", "Steps done, with those skipped.", float64(r.total.steps))
	metric("fusec_skipped_steps_total", "counter", "Steps skipped because a gradient or a cost was not finite.",
		float64(r.last.Skipped))
	if r.total.steps > 0 {
		metric("fusec_loss", "gauge", "The loss of the last step.", r.last.Loss)
	}
	fmt.Fprintf(&b, "# HELP fusec_step_seconds The time of a step.\n# TYPE fusec_step_seconds summary\nfusec_step_seconds_sum "+
		"%s\nfusec_step_seconds_count %d\n",
		number(r.total.took.Seconds()), r.total.steps)
	if p := r.trace.Program; p != nil {
		metric("fusec_launches", "gauge", "The launches of a step.", float64(p.Run()))
		metric("fusec_arena_bytes", "gauge", "The memory for temporary values.", float64(p.ArenaBytes))
		metric("fusec_parameter_bytes", "gauge", "The memory of weights and constants.", float64(p.ParamBytes))
	}
	if len(r.last.Experts) > 0 {
		b.WriteString("# HELP fusec_expert_tokens The tokens of each expert in the last step that counted them.\n# TYPE " +
			"fusec_expert_tokens gauge\n")
	}
	for _, name := range slices.Sorted(maps.Keys(r.last.Experts)) {
		for i, n := range r.last.Experts[name] {
			fmt.Fprintf(&b, "fusec_expert_tokens{mixture=\"%s\",expert=\"%d\"} %d\n",
				label.Replace(strings.ToValidUTF8(name, "\uFFFD")), i, n)
		}
	}
	return b.String()
}

// number prints a value as Prometheus has it.
func number(v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "+Inf"
	case math.IsInf(v, -1):
		return "-Inf"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}
