package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"

	"fusec/cmd/peers/workload"
)

// report is everything that a run found out; --json writes it as it is.
type report struct {
	Environment env       `json:"environment"`
	Seconds     float64   `json:"seconds"`
	Rounds      int       `json:"rounds"`
	Baseline    string    `json:"baseline,omitempty"`
	Missing     []missing `json:"missing,omitempty"`  // contestants that could not take part
	Results     []result  `json:"results"`            // one for each workload, number of threads and contestant
	Failures    []failure `json:"failures,omitempty"` // measurements that gave no number
	Records     []Record  `json:"records"`            // every measurement, in the order in which it was made

	contestants []string // in the order of the field
}

type missing struct {
	Peer string `json:"peer"`
	Why  string `json:"why"`
}

type failure struct {
	Peer        string `json:"peer"`
	Workload    string `json:"workload"`
	Threads     int    `json:"threads"`
	Why         string `json:"why"`
	Unsupported bool   `json:"unsupported"` // it does not do this work, which is no fault
}

// result sums up the rounds of one contestant at one workload.
type result struct {
	Workload string  `json:"workload"`
	Threads  int     `json:"threads"`
	Peer     string  `json:"peer"`
	Version  string  `json:"version"`
	Variant  string  `json:"variant,omitempty"`
	MedianMS float64 `json:"median_ms"` // the median of the rounds' medians
	BestMS   float64 `json:"best_ms"`   // the best run of all
	Spread   float64 `json:"spread"`    // (slowest round − fastest round) / median
	GFLOPs   float64 `json:"gflops"`
	FirstMS  float64 `json:"first_ms"` // the median of the rounds
	RSSMB    float64 `json:"rss_mb"`   // the largest of the rounds
	Checksum float64 `json:"checksum"`
	Right    bool    `json:"right"`           // every round's checksum is that of the right answer
	Ratio    float64 `json:"ratio,omitempty"` // MedianMS over the baseline's; above 1 is slower than the baseline
	Rounds   int     `json:"rounds"`
}

// env says what the numbers were measured on.
type env struct {
	CPU        string `json:"cpu"`
	Cores      int    `json:"cores"`
	OS         string `json:"os"`
	LoadBefore string `json:"load_before,omitempty"`
	LoadAfter  string `json:"load_after,omitempty"`
}

func cores() int { return runtime.NumCPU() }

func environment() env {
	return env{CPU: cpuName("/proc/cpuinfo"), Cores: cores(), OS: runtime.GOOS + "/" + runtime.GOARCH, LoadBefore: load()}
}

func cpuName(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return "unknown"
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if k, v, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}

// load is the load average of the last minute.
func load() string {
	b, _ := os.ReadFile("/proc/loadavg")
	l, _, _ := strings.Cut(string(b), " ")
	return l
}

// measure fills Records and Failures: workload by workload, round by round, contestant by contestant. Who cannot do a
// workload is asked once, not in every round.
func (rep *report) measure(ctx context.Context, o *opts, field []*contestant, say func(string, ...any)) {
	total, done := len(o.threads)*len(o.workloads)*o.rounds*len(field), 0
	for _, threads := range o.threads {
		for _, w := range o.workloads {
			out := make([]bool, len(field))
			for range o.rounds {
				for i, c := range field {
					done++
					if out[i] || ctx.Err() != nil {
						continue
					}
					rec, err := c.measure(ctx, w, threads, o.seconds, o.timeout)
					why := rec.Unsupported + rec.Error
					if err != nil {
						why = err.Error()
					} else if c.renames && !slices.ContainsFunc(field, func(d *contestant) bool { return d != c && d.name == rec.Peer }) {
						c.name, c.renames = rec.Peer, false
					}
					if why != "" {
						out[i] = true
						rep.Failures = append(rep.Failures, failure{c.name, w.Name, threads, why, rec.Unsupported != ""})
						say("[%d/%d] %s ×%d  %s: %s", done, total, w.Name, threads, c.name, why)
						continue
					}
					rec.Peer = c.name // two builds of one program stay apart
					rep.Records = append(rep.Records, rec)
					say("[%d/%d] %s ×%d  %s: %s ms", done, total, w.Name, threads, c.name, ms(rec.MedianMS))
				}
			}
		}
	}
	for _, c := range field {
		rep.contestants = append(rep.contestants, c.name)
	}
	rep.Environment.LoadAfter = load()
}

func (rep *report) has(peer string) bool {
	return slices.ContainsFunc(rep.Results, func(r result) bool { return r.Peer == peer })
}

// finish makes Results and their ratios from Records.
func (rep *report) finish(baseline string) {
	rep.Results = []result{}
	type key struct {
		workload string
		threads  int
		peer     string
	}
	var order []key
	groups := map[key][]Record{}
	for _, r := range rep.Records {
		k := key{r.Workload, r.Threads, r.Peer}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], r)
	}
	for _, k := range order {
		rep.Results = append(rep.Results, sum(groups[k]))
	}
	if baseline == "" && rep.has("fusec") {
		baseline = "fusec"
	}
	for _, c := range rep.contestants {
		if baseline == "" && rep.has(c) {
			baseline = c
		}
	}
	rep.Baseline = baseline
	base := map[key]float64{}
	for _, r := range rep.Results {
		if r.Peer == baseline {
			base[key{r.Workload, r.Threads, ""}] = r.MedianMS
		}
	}
	for i, r := range rep.Results {
		if b := base[key{r.Workload, r.Threads, ""}]; b > 0 {
			rep.Results[i].Ratio = r.MedianMS / b
		}
	}
}

// sum sums up the rounds of one contestant at one workload.
func sum(recs []Record) result {
	last := recs[len(recs)-1]
	r := result{Workload: last.Workload, Threads: last.Threads, Peer: last.Peer, Version: last.Version, Variant: last.Variant,
		Checksum: last.Checksum, Right: true, Rounds: len(recs), BestMS: math.Inf(1)}
	w, known := workload.ByName(last.Workload)
	var medians, firsts []float64
	for _, x := range recs {
		medians, firsts = append(medians, x.MedianMS), append(firsts, x.FirstMS)
		r.BestMS, r.RSSMB = min(r.BestMS, x.BestMS), max(r.RSSMB, x.RSSMB)
		r.Right = r.Right && known && w.Right(x.Checksum)
		if x.Variant != r.Variant {
			r.Variant = "mixed"
		}
	}
	r.MedianMS, r.FirstMS = median(medians), median(firsts)
	r.Spread = (slices.Max(medians) - slices.Min(medians)) / r.MedianMS
	r.GFLOPs = w.FLOPs / r.MedianMS / 1e6
	return r
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	n := len(x)
	return (x[(n-1)/2] + x[n/2]) / 2
}

// table prints the report for people.
func (rep *report) table(w io.Writer) {
	e := rep.Environment
	fmt.Fprintf(w, "%s, %d cores, %s; load %s before, %s after; %d rounds of at least %g s each, median of the rounds\n",
		e.CPU, e.Cores, e.OS, e.LoadBefore, e.LoadAfter, rep.Rounds, rep.Seconds)
	if len(rep.Results) > 0 {
		fmt.Fprintf(w, "× %s: time over that of %s at the same work; above 1 is slower\n", rep.Baseline, rep.Baseline)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	head, bad := "", false
	for _, r := range rep.Results {
		if h := fmt.Sprintf("%s, %s", r.Workload, count(r.Threads, "thread")); h != head {
			t.Flush()
			head = h
			fmt.Fprintf(w, "\n%s\n", h)
			fmt.Fprintf(t, "contestant\tms\t± rounds\tGFLOP/s\t× %s\tbest ms\tfirst ms\tpeak MiB\tanswer\t  version, variant\n",
				rep.Baseline)
		}
		ratio, answer := "–", "right"
		if r.Ratio > 0 {
			ratio = fmt.Sprintf("%.2f", r.Ratio)
		}
		if !r.Right {
			answer, bad = "WRONG", true
		}
		fmt.Fprintf(t, "%s\t%s\t%.0f %%\t%.1f\t%s\t%s\t%.0f\t%.0f\t%s\t  %s\n", r.Peer, ms(r.MedianMS), 100*r.Spread, r.GFLOPs, ratio,
			ms(r.BestMS), r.FirstMS, r.RSSMB, answer, strings.TrimSuffix(r.Version+", "+r.Variant, ", "))
	}
	t.Flush()
	if bad {
		fmt.Fprintln(w, "\nWRONG: the output's checksum is not that of the answer computed in float64")
	}
	notes := []string{}
	for _, m := range rep.Missing {
		notes = append(notes, fmt.Sprintf("%s took no part: %s", m.Peer, m.Why))
	}
	for _, f := range rep.Failures {
		if !f.Unsupported {
			notes = append(notes, fmt.Sprintf("%s gave no number for %s on %s: %s", f.Peer, f.Workload, count(f.Threads, "thread"), f.Why))
		}
	}
	if len(notes) > 0 {
		fmt.Fprintf(w, "\n%s\n", strings.Join(notes, "\n"))
	}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// ms prints milliseconds with three digits that mean something.
func ms(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}
