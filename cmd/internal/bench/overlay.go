package bench

import (
	"fmt"
	"strings"
	"time"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/graph"
	"fusec/lowering/fpga"
)

// OverlayReport is what fusec bench tells of a model on an overlay, and its JSON form. Times are in nanoseconds.
type OverlayReport struct {
	Schema  string  `json:"schema"` // fusec.bench.overlay/1
	Model   string  `json:"model"`
	Overlay string  `json:"overlay"`
	MHz     float64 `json:"mhz"`
	// Quantised is how often weights were made integers: once unless they change from run to run.
	Quantised int             `json:"quantised"`
	Launches  []overlayLaunch `json:"launches"`
	Targets   []targetLine    `json:"targets"`
}

// overlayLaunch is a launch on an overlay.
type overlayLaunch struct {
	Index    int     `json:"index"` // from 1
	Kind     string  `json:"kind"`
	Device   string  `json:"device"`
	Cycles   int64   `json:"cycles"`    // counted
	Estimate int64   `json:"estimate"`  // of cycles
	Ideal    int64   `json:"ideal"`     // cycles if every multiplier worked in each
	Share    float64 `json:"share"`     // of the cycles, those in which the multipliers worked
	Bytes    int64   `json:"bytes"`     // of external memory read and written
	MaxError float64 `json:"max_error"` // against the float program, as parts of the values' range
	RMSError float64 `json:"rms_error"`
}

// targetLine is a target beside others.
type targetLine struct {
	Target   string `json:"target"`
	TimeNS   int64  `json:"time_ns"`
	Launches int    `json:"launches"`
	Bytes    int64  `json:"bytes"`            // of memory traffic
	Cycles   int64  `json:"cycles,omitempty"` // of an overlay
	How      string `json:"how"`              // the time was found
}

// onOverlay runs a model on an overlay once, counting cycles, and on the other targets that there are.
func (b *bencher) onOverlay(e *cli.Env, path string, g *graph.Graph, vals *modelio.Values) (*outcome, error) {
	if b.baseline != "" {
		return nil, cli.Usage("--baseline is not for an overlay: cycles do not vary")
	}
	device, planned, err := modelio.PlanFor[*fpga.Device](g, b.compile.Options(fpga.Routed(vals.All()))...)
	if err != nil {
		return nil, err
	}
	list, err := device.Plan(planned)
	if err != nil {
		return nil, err
	}
	show := b.progress(e)
	defer show.Done()
	p, err := b.compile.Compile(g, vals, modelio.Opening(e, show))
	if err != nil {
		return nil, err
	}
	defer p.Close()
	show.Show("%s on the overlay %s", modelio.ModelName(path), list.Overlay.Name)
	times, _, err := Profile(e.Ctx, p, 0)
	if err != nil {
		return nil, err
	}
	rep := &OverlayReport{Schema: "fusec.bench.overlay/1", Model: modelio.ModelName(path), Overlay: list.Overlay.Name,
		MHz: b.mhz, Launches: []overlayLaunch{}}
	rep.Quantised = int(p.Counts().Program.Get(fpga.Quantised))
	line := targetLine{Target: fpga.Target.Name, Launches: len(times), How: fmt.Sprintf("cycles at %.4g MHz", b.mhz)}
	host := time.Duration(0)
	for i, c := range p.Counts().Launches {
		l, x := &p.Lowered().Launches[i], list.Launches[i]
		r := overlayLaunch{Index: i + 1, Kind: l.Kind(), Device: fpga.Target.Name, Cycles: int64(c.Get(fpga.Cycles)),
			Estimate: x.Estimate, Ideal: x.Ideal, Bytes: x.Moved,
			MaxError: c.Get(fpga.MaxError) / 100, RMSError: c.Get(fpga.RMSError) / 100}
		if l.Device != "" {
			r.Device, r.Bytes = l.Device, l.Bytes
			host += times[i]
		}
		if r.Cycles > 0 {
			r.Share = c.Get(fpga.Multiplying) / float64(r.Cycles)
		}
		line.Cycles += r.Cycles
		line.Bytes += r.Bytes
		rep.Launches = append(rep.Launches, r)
	}
	line.TimeNS = int64(float64(line.Cycles)/b.mhz*1e3) + host.Nanoseconds()
	if host > 0 {
		line.How += ", and the processor's time"
	}
	rep.Targets = append(rep.Targets, line)
	if err := b.others(e, g, vals, rep); err != nil {
		return nil, err
	}
	cycles := newFigure(fmt.Sprintf("model %s on the overlay %s", rep.Model, rep.Overlay), unitCycles, float64(line.Cycles),
		[]float64{float64(line.Cycles)})
	return &outcome{report: rep, text: rep.text(), figures: []figure{cycles}}, nil
}

// others times the model on the targets whose time counts and of which there is a device.
func (b *bencher) others(e *cli.Env, g *graph.Graph, vals *modelio.Values, rep *OverlayReport) error {
	plain := *vals
	plain.Ahead = nil
	for _, t := range modelio.Targets() {
		if t.Untimed || t.There != nil && !t.There() {
			continue
		}
		target := t.Name
		p, err := b.compile.With(target).Compile(g, &plain, nil)
		if err != nil {
			return fmt.Errorf("target %s: %w", target, err)
		}
		times, err := Race(e.Ctx, []Contestant{{target, p.Exec}}, b.rounds, b.seconds, func(int) {})
		if err != nil {
			p.Close()
			return err
		}
		line := targetLine{Target: target, TimeNS: times[0].Duration().Nanoseconds(), How: "measured, copies included"}
		for _, f := range p.Fusions() {
			line.Launches++
			line.Bytes += f.Bytes
		}
		rep.Targets = append(rep.Targets, line)
		if err := p.Close(); err != nil {
			return err
		}
	}
	return nil
}

// text prints the report for people.
func (rep *OverlayReport) text() string {
	var b strings.Builder
	part := func(x float64) string {
		if x == 0 {
			return ""
		}
		return fmt.Sprintf("%.3g %%", 100*x)
	}
	fmt.Fprintf(&b, "%s on the overlay %s, weights made integers %s\n\n", rep.Model, rep.Overlay,
		cli.Plural(rep.Quantised, "time", "times"))
	t := cli.NewTable(">#", "kind", "device", ">cycles", ">estimated", ">if all multiply", ">multiplying", ">memory",
		">error at most", ">rms")
	for _, l := range rep.Launches {
		t.Row(fmt.Sprint(l.Index), l.Kind, l.Device, cli.Cycles(l.Cycles), cli.Cycles(l.Estimate), cli.Cycles(l.Ideal),
			part(l.Share), cli.HumanBytes(l.Bytes),
			part(l.MaxError), part(l.RMSError))
	}
	fmt.Fprintf(&b, "%s\n", t)
	t = cli.NewTable("target", ">time", ">launches", ">memory traffic", ">cycles", "how")
	for _, l := range rep.Targets {
		t.Row(l.Target, cli.HumanTime(time.Duration(l.TimeNS)), fmt.Sprint(l.Launches), cli.HumanBytes(l.Bytes),
			cli.Cycles(l.Cycles), l.How)
	}
	fmt.Fprintf(&b, "%s", t)
	return b.String()
}
