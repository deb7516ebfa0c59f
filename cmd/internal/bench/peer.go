package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/cmd/peers/workload"
	"fusec/graph"
)

// PeerRecord is the line of JSON that the program peers reads; its package documentation has the protocol.
type PeerRecord struct {
	Peer     string `json:"peer"`
	Version  string `json:"version"`
	Workload string `json:"workload"`
	Threads  int    `json:"threads"`

	MedianMS float64 `json:"median_ms"`
	BestMS   float64 `json:"best_ms"`
	GFLOPs   float64 `json:"gflops"`
	Reps     int     `json:"reps"`
	FirstMS  float64 `json:"first_ms"`
	RSSMB    float64 `json:"rss_mb"`
	Checksum float64 `json:"checksum"`
	AbsSum   float64 `json:"abs_sum,omitempty"`

	Unsupported string `json:"unsupported,omitempty"`
	Error       string `json:"error,omitempty"`
}

// What the protocol asks for: runs before the clock counts, and runs that it counts.
const (
	peerWarmRuns = 3
	peerWarmTime = 200 * time.Millisecond
	peerRuns     = 9
)

// peerProtocol measures one workload and prints its record. What goes wrong is a record too.
func peerProtocol(e *cli.Env, args []string) error {
	if len(args) != 3 {
		return cli.Usage("--peer-protocol takes WORKLOAD THREADS SECONDS, not %d arguments", len(args))
	}
	threads, err := strconv.Atoi(args[1])
	if err != nil || threads < 1 {
		return cli.Usage("THREADS %s: want a whole number of at least 1", args[1])
	}
	seconds, err := cli.ParseSeconds(args[2])
	if err != nil {
		return cli.Usage("SECONDS %s: %v", args[2], err)
	}
	rec := PeerRecord{Peer: "fusec", Version: cli.Version(), Workload: args[0], Threads: threads}
	if w, ok := workload.ByName(args[0]); !ok {
		rec.Unsupported = fmt.Sprintf("fusec does not know the workload %q", args[0])
	} else if err := rec.Measure(e, w, seconds); err != nil {
		rec.Error = err.Error()
	}
	return json.NewEncoder(e.Out).Encode(rec)
}

// Measure fills the record.
func (rec *PeerRecord) Measure(e *cli.Env, w workload.Workload, seconds float64) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(rec.Threads))
	tensors := map[string]*graph.Tensor{}
	for _, t := range w.Tensors {
		v, err := graph.TensorOf(t.Data(), t.Shape...)
		if err != nil {
			return err
		}
		tensors[t.Name] = v
	}
	start := time.Now()
	g, opts, outputs, err := workloadGraph(w, graph.F32)
	if err != nil {
		return err
	}
	opts = append(opts, fusec.WithWorkers(rec.Threads))
	if w.BF16 {
		opts = append(opts, fusec.WithPrecision(fusec.BF16))
	}
	p, err := fusec.Compile(g, opts...)
	if p != nil {
		defer p.Close()
	}
	if err != nil {
		return err
	}
	vals := modelio.Values{Inputs: tensors}
	if err := vals.Bind(p); err != nil {
		return err
	}
	if err := p.Exec(); err != nil {
		return err
	}
	rec.FirstMS = time.Since(start).Seconds() * 1e3
	c := Contestant{"fusec", p.Exec}
	if _, err := runs(e.Ctx, c, peerWarmRuns, peerWarmTime); err != nil {
		return err
	}
	times, err := runs(e.Ctx, c, peerRuns, time.Duration(seconds*1e9))
	if err != nil {
		return err
	}
	var y []float32
	for _, o := range outputs {
		part, err := p.Output(o)
		if err != nil {
			return err
		}
		y = append(y, part.Data.([]float32)...)
	}
	rec.Checksum, rec.AbsSum = workload.Checksum(y)
	rec.MedianMS, rec.BestMS, rec.Reps = Median(times)*1e3, slices.Min(times)*1e3, len(times)
	rec.GFLOPs = w.FLOPs / rec.MedianMS / 1e6
	rec.RSSMB = peakMB()
	return nil
}

// peakMB is the largest memory that this process has had, in MiB; 0 where the system does not tell.
func peakMB() float64 {
	src, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(src)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, _ := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			return kb / 1024
		}
	}
	return 0
}
