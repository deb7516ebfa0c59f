package bench

import (
	"fmt"
	"math"
	"strings"
	"time"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/graph"
)

// benchReport is what fusec bench found out about a model, and its JSON form. Times are in nanoseconds.
type benchReport struct {
	Schema    string         `json:"schema"` // fusec.bench/1
	Model     string         `json:"model"`
	Target    string         `json:"target"`
	Precision string         `json:"precision"`
	Threads   int            `json:"threads"`
	Rounds    int            `json:"rounds"`
	Machine   cli.Machine    `json:"machine"`
	CompileNS int64          `json:"compile_ns"`
	Results   []benchResult  `json:"results"`                // fusec first
	Ratio     *benchRatio    `json:"ratio,omitempty"`        // absent without a rival
	Missing   string         `json:"peer_missing,omitempty"` // why there is no rival
	Launches  []launchReport `json:"launches"`
	Device    *deviceReport  `json:"device,omitempty"` // of targets with memory of their own
}

type benchResult struct {
	Name      string  `json:"name"`
	MedianNS  int64   `json:"median_ns"`
	BestNS    int64   `json:"best_ns"`
	Spread    float64 `json:"spread"` // (slowest − fastest round) ÷ median
	Runs      int     `json:"runs"`
	HeldBytes int64   `json:"held_bytes,omitempty"` // memory that it keeps, besides inputs and weights; of fusec
	RunBytes  int64   `json:"run_bytes"`            // that each run allocates
}

// benchRatio is how many times as fast fusec is.
type benchRatio struct {
	Peer       string     `json:"peer"`
	Median     float64    `json:"median"`
	Noise      float64    `json:"noise"`      // standard error of the median over the rounds, as a part of it
	Difference cli.Number `json:"difference"` // of the outputs, as a part of their largest value
}

type launchReport struct {
	Index    int          `json:"index"` // from 1
	Kind     string       `json:"kind"`
	Name     string       `json:"name"`
	Kernel   string       `json:"kernel"`
	Device   string       `json:"device"`
	Prepared bool         `json:"prepared,omitempty"` // it ran once, before the timed runs
	MedianNS int64        `json:"median_ns"`
	Share    float64      `json:"share"` // of the sum
	FLOPs    int64        `json:"flops"`
	Bytes    int64        `json:"bytes"`
	GFLOPs   float64      `json:"gflops"`            // per second
	GBs      float64      `json:"gbs"`               // per second
	OfGEMM   float64      `json:"of_gemm,omitempty"` // of the device's ceilings: the part of a matrix product's rate,
	OfCopy   float64      `json:"of_copy,omitempty"` // and of a copy's
	Origin   []cli.Origin `json:"origin"`
}

// tapeName is the rival's name.
const tapeName = "TapeMachine"

// model times a model and prints the report.
func (b *bencher) model(e *cli.Env, path string) (*outcome, error) {
	g, vals, err := b.values.Load(e, path, &b.compile.Shapes, false)
	if err != nil {
		return nil, err
	}
	if err := b.compile.Take(vals.Ahead); err != nil {
		return nil, err
	}
	if b.level {
		return b.levels(e, path, g, vals)
	}
	if b.compile.Kind().Cycles != "" {
		return b.onOverlay(e, path, g, vals)
	}
	p, err := b.compile.Compile(g, vals, nil)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	rep := &benchReport{Schema: "fusec.bench/1", Model: modelio.ModelName(path), Target: b.compile.Target,
		Precision: b.compile.Precision.String(), Threads: b.compile.Threads, Rounds: b.rounds,
		Machine: cli.ThisMachine(), CompileNS: p.CompileTime().Nanoseconds()}
	field := []Contestant{{"fusec", p.Exec}}
	if !b.alone {
		t, err := newTape(g, vals)
		switch {
		case err == nil:
			defer t.close()
			field = append(field, Contestant{tapeName, t.run})
			difference, err := compareOutputs(g, p, t)
			if err != nil {
				return nil, err
			}
			rep.Ratio = &benchRatio{Peer: tapeName, Difference: cli.Number(difference)}
		case b.baseline != "":
			return nil, fmt.Errorf("no ratio for the baseline: %w", err)
		default:
			rep.Missing = err.Error()
		}
	}
	o := &outcome{report: rep}
	if err := b.measure(e, rep, o, field, p); err != nil {
		return nil, err
	}
	o.text = rep.text()
	return o, nil
}

// measure fills the report with times.
func (b *bencher) measure(e *cli.Env, rep *benchReport, o *outcome, field []Contestant, p *fusec.Program) (err error) {
	show := b.progress(e)
	defer show.Done()
	times, err := Race(e.Ctx, field, b.rounds, b.seconds,
		func(round int) { show.Show("%s: round %d of %d", rep.Model, round+1, b.rounds) })
	if err != nil {
		return err
	}
	for i, t := range times {
		r := benchResult{Name: field[i].Name, MedianNS: t.Duration().Nanoseconds(), BestNS: int64(t.Best * 1e9),
			Spread: t.Spread(), Runs: t.runs}
		if r.RunBytes, err = allocated(field[i]); err != nil {
			return err
		}
		rep.Results = append(rep.Results, r)
	}
	rep.Results[0].HeldBytes = p.Bytes()
	launches, spans, err := Profile(e.Ctx, p, ProfileSeconds)
	if err != nil {
		return err
	}
	rep.Launches = launchReports(p, launches)
	show.Show("%s: what the device does", rep.Model)
	if rep.Device, err = b.describe(p, rep, spans); err != nil {
		return err
	}
	if rep.Device != nil {
		for i := range rep.Launches {
			rep.Device.share(&p.Lowered().Launches[i], &rep.Launches[i])
		}
	}
	if b.trace != "" {
		if err := newChromeTrace(rep, spans[len(spans)-1]).save(b.trace); err != nil {
			return err
		}
	}
	subject := "model " + rep.Model
	if on := modelio.On(rep.Target, rep.Precision); on != fusec.Targets()[0] {
		subject += " on " + on
	}
	if rep.Device != nil {
		o.gpu = rep.Device.Device
	}
	if len(times) < 2 {
		o.figures = []figure{timeFigure(subject, times[0])}
		return nil
	}
	each := Ratios(times[1], times[0])
	rep.Ratio.Median, rep.Ratio.Noise = Median(each), uncertainty(each)
	o.entries = []entry{newEntry(subject, tapeName, b.compile.Threads, times[0], times[1], 1)}
	return nil
}

// launchReports combines what each launch does with its time.
func launchReports(p *fusec.Program, times []time.Duration) []launchReport {
	var sum time.Duration
	for _, t := range times {
		sum += t
	}
	list := []launchReport{}
	for i, l := range p.Trace().Program.Launches {
		ns := times[i].Nanoseconds()
		r := launchReport{Index: i + 1, Kind: l.Kind, Name: l.Name, Kernel: l.Kernel, Device: l.Device, Prepared: l.Prepared,
			MedianNS: ns, FLOPs: l.FLOPs, Bytes: l.Bytes,
			Origin: cli.OriginsJSON(l.Origin)}
		if ns > 0 {
			r.Share = float64(times[i]) / float64(sum)
			r.GFLOPs, r.GBs = float64(l.FLOPs)/float64(ns), float64(l.Bytes)/float64(ns)
		}
		list = append(list, r)
	}
	return list
}

// compareOutputs runs both once and gives the largest difference between their outputs, as a part of the largest value
// of that output.
func compareOutputs(g *graph.Graph, p *fusec.Program, t *tape) (float64, error) {
	if err := p.Exec(); err != nil {
		return 0, err
	}
	if err := t.once(); err != nil {
		return 0, fmt.Errorf("%s: %w", tapeName, err)
	}
	worst := 0.0
	for _, name := range g.OutputNames() {
		ours, err := p.Output(name)
		if err != nil {
			return 0, err
		}
		theirs, err := t.output(name)
		if err != nil {
			return 0, fmt.Errorf("%s: output %s: %w", tapeName, name, err)
		}
		worst = max(worst, Difference(ours.Floats(), theirs.Floats())) // NaN wins
	}
	return worst, nil
}

// Difference is the largest |x−y| as a part of the largest |y|. Equal infinities, and NaN at the same place, agree.
func Difference(x, y []float64) float64 {
	if len(x) != len(y) {
		return math.Inf(1)
	}
	far, size := 0.0, 0.0
	for i := range x {
		if x[i] == y[i] || math.IsNaN(x[i]) && math.IsNaN(y[i]) {
			if !math.IsInf(y[i], 0) && !math.IsNaN(y[i]) {
				size = max(size, math.Abs(y[i]))
			}
			continue
		}
		far, size = max(far, math.Abs(x[i]-y[i])), max(size, math.Abs(y[i]))
	}
	if far == 0 {
		return 0
	}
	return far / size
}

// disagreement is the difference above which a ratio is said to compare different results.
const disagreement = 1e-3

// text prints the report for people.
func (rep *benchReport) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s on %s, %s (%s); compiled in %s\n\n", rep.Model, modelio.On(rep.Target, rep.Precision),
		cli.Plural(rep.Threads, "thread", "threads"), rep.Machine,
		cli.HumanTime(time.Duration(rep.CompileNS)))
	t := cli.NewTable("", ">median", ">best", ">± rounds", ">runs", ">memory held", ">allocated per run")
	for _, r := range rep.Results {
		held := ""
		if r.HeldBytes > 0 {
			held = cli.HumanBytes(r.HeldBytes)
		}
		t.Row(r.Name, cli.HumanTime(time.Duration(r.MedianNS)), cli.HumanTime(time.Duration(r.BestNS)), cli.Percent(r.Spread/2),
			fmt.Sprint(r.Runs), held,
			cli.HumanBytes(r.RunBytes))
	}
	b.WriteString(t.String())
	switch r := rep.Ratio; {
	case r != nil:
		fmt.Fprintf(&b, "\nfusec is %s times as fast as the %s (± %s); outputs differ by %.1e\n", cli.Digits(r.Median), r.Peer,
			cli.Percent(r.Noise), float64(r.Difference))
		if !(float64(r.Difference) <= disagreement) {
			fmt.Fprintf(&b, "the %s computed something else: the ratio does not compare like with like\n", r.Peer)
		}
	case rep.Missing != "":
		fmt.Fprintf(&b, "\nnot compared with the %s: %s\n", tapeName, rep.Missing)
	}
	b.WriteString("\n" + launchTable(rep.Launches))
	if rep.Device != nil {
		b.WriteString("\n" + rep.Device.text())
	}
	return b.String()
}

// launchTable lists launches with their times.
func launchTable(list []launchReport) string {
	t := cli.NewTable(">#", "kind", "name", "kernel", ">time", ">share", ">GFLOP/s", ">GB/s", ">of GEMM", ">of copy", "origin",
		"built at")
	for _, l := range list {
		if l.Prepared {
			continue
		}
		var own []graph.Origin
		for _, o := range l.Origin {
			own = append(own, graph.Origin(o))
		}
		names, pos := cli.Origins(own)
		gemm, copied := "", ""
		if l.OfGEMM > 0 {
			gemm = cli.Percent(l.OfGEMM)
		}
		if l.OfCopy > 0 {
			copied = cli.Percent(l.OfCopy)
		}
		t.Row(fmt.Sprint(l.Index), l.Kind, l.Name, l.Kernel, cli.HumanTime(time.Duration(l.MedianNS)), cli.Percent(l.Share),
			cli.Digits(l.GFLOPs), cli.Digits(l.GBs), gemm, copied,
			names, pos)
	}
	return t.String()
}
