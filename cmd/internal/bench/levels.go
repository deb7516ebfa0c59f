package bench

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/cmd/internal/plotting"
	"fusec/graph"
)

// Unfused are the passes without which each operation is a launch of its own.
var Unfused = append([]string{"fuse-regions"}, unrecognised...)

// unrecognised are the passes that recognise what several operations compute together. Without them elementwise work
// alone is fused.
var unrecognised = []string{"raise", "fuse-attention", "fuse-moe", "fuse-recurrence", "join-rows", "fold-weights", "stack-weights",
	"merge-launches", "join-moves"}

// level is a way to run a model.
type level struct {
	name, doc string
	without   []string // passes that are left out
	rival     bool     // Gorgonia's machine runs it
	tuned     bool     // by what fusec tune has kept, where a target has that
}

// levels are the ways, from what is fused least to what is fused most.
var levels = []level{
	{name: "Gorgonia", doc: "op by op, on the TapeMachine", rival: true},
	{name: "op by op", doc: "a launch of fusec's own kernels for each operation", without: Unfused},
	{name: "elementwise fused", doc: "elementwise work joins the launch that makes or reads it", without: unrecognised},
	{name: "all fused", doc: "attention, mixtures and norms recognised too: the default"},
	{name: "tuned", doc: "all fused, with the kernels that fusec tune has kept", tuned: true},
}

// levelsReport is what fusec bench --levels found, and its JSON form. Times are in nanoseconds.
type levelsReport struct {
	Schema    string        `json:"schema"` // fusec.levels/1
	Model     string        `json:"model"`
	Target    string        `json:"target"`
	Precision string        `json:"precision"`
	Threads   int           `json:"threads"`
	Rounds    int           `json:"rounds"`
	MHz       float64       `json:"mhz,omitempty"` // of an overlay
	Machine   cli.Machine   `json:"machine"`
	Levels    []levelResult `json:"levels"`
}

// levelResult is one level. Without a time it was not measured, and the note says why.
type levelResult struct {
	Name       string     `json:"name"`
	Doc        string     `json:"doc"`
	Without    []string   `json:"without_passes"`
	MedianNS   int64      `json:"median_ns,omitempty"` // by the host's clock; of an overlay its cycles and the host's launches
	BestNS     int64      `json:"best_ns,omitempty"`
	Spread     float64    `json:"spread"`              // (slowest − fastest round) ÷ median
	DeviceNS   int64      `json:"device_ns,omitempty"` // by a GPU's clock, without copies
	Cycles     int64      `json:"cycles,omitempty"`    // of an overlay
	Launches   int        `json:"launches,omitempty"`
	OnHost     int        `json:"on_host,omitempty"` // launches for which the target has no kernel
	Traffic    int64      `json:"traffic_bytes,omitempty"`
	Held       int64      `json:"held_bytes,omitempty"` // memory besides inputs and weights
	Faster     float64    `json:"faster"`               // how many times as fast as the first level that was measured
	Difference cli.Number `json:"difference"`           // of the outputs, against op by op, as a part of their largest value
	Note       string     `json:"note,omitempty"`

	run func() error
}

// levels measures a model at each level and prints the table.
func (b *bencher) levels(e *cli.Env, path string, g *graph.Graph, vals *modelio.Values) (o *outcome, err error) {
	if vals.Ahead != nil {
		return nil, cli.Usage("--levels compiles the model in several ways: give it the .graph from which %s was made", path)
	}
	rep := &levelsReport{Schema: "fusec.levels/1", Model: modelio.ModelName(path), Target: b.compile.Target,
		Precision: b.compile.Precision.String(),
		Threads:   b.compile.Threads, Rounds: b.rounds, Machine: cli.ThisMachine()}
	overlay := b.compile.Kind().Cycles != ""
	if overlay {
		rep.MHz, rep.Precision = b.mhz, "int8"
	}
	show := b.progress(e)
	defer show.Done()
	var outputs []map[string]*graph.Tensor // of each level; nil if it was not run
	for i, l := range levels {
		show.Show("%s: %s, level %d of %d", rep.Model, l.name, i+1, len(levels))
		r := levelResult{Name: l.name, Doc: l.doc, Without: slices.Concat([]string{}, l.without)}
		var out map[string]*graph.Tensor
		switch {
		case l.rival && b.alone:
			r.Note = "--no-gorgonia leaves it out"
		case l.rival:
			t, err := newTape(g, vals)
			if err != nil {
				r.Note = err.Error()
				break
			}
			defer t.close()
			if r.run = t.run; overlay || b.compile.OnGPU() {
				r.Note = "on the processor"
			}
			if out, err = outputsOf(g, t.once, t.output); err != nil {
				return nil, fmt.Errorf("%s: %w", tapeName, err)
			}
		case l.tuned && b.compile.Kind().Untuned == nil:
			r.Note = fmt.Sprintf("as all fused: target %s has nothing to tune", rep.Target)
		default:
			p, kept, err := b.compileLevel(e, l, g, vals, show)
			if err != nil {
				return nil, fmt.Errorf("level %q: %w", l.name, err)
			}
			defer func() { err = errors.Join(err, p.Close()) }()
			if l.tuned && kept == 0 {
				r.Note = "as all fused: nothing is kept for it: see fusec tune"
				break
			}
			if out, err = outputsOf(g, p.Exec, p.Output); err == nil {
				err = r.describe(e, p, b)
			}
			if err != nil {
				return nil, fmt.Errorf("level %q: %w", l.name, err)
			}
		}
		outputs = append(outputs, out)
		rep.Levels = append(rep.Levels, r)
	}
	o = &outcome{report: rep}
	if err := b.raceLevels(e, rep, o, show); err != nil {
		return nil, err
	}
	o.wrong = rep.agree(outputs, overlay || b.compile.Precision != fusec.F32)
	if b.output != "" {
		if err := rep.chart().Save(b.output); err != nil {
			return nil, err
		}
	}
	o.text = rep.text()
	return o, nil
}

// compileLevel compiles a model at a level. It counts the launches that are as fusec tune chose.
func (b *bencher) compileLevel(e *cli.Env, l level, g *graph.Graph, vals *modelio.Values, show *cli.Progress) (p *fusec.Program,
	kept int, err error) {
	var without []fusec.CompileOption
	for _, name := range l.without {
		without = append(without, fusec.WithoutPass(name))
	}
	options := modelio.Opening(e, show)
	if untuned := b.compile.Kind().Untuned; untuned != nil && !l.tuned {
		options = append(options, untuned)
	}
	if p, err = b.compile.Compile(g, vals, options, without...); err != nil {
		return nil, 0, err
	}
	for _, launch := range p.Lowered().Launches {
		if launch.Way != "" {
			kept++
		}
	}
	return p, kept, nil
}

// outputsOf runs a model once and copies its outputs.
func outputsOf(g *graph.Graph, run func() error, output func(string) (*graph.Tensor, error)) (map[string]*graph.Tensor, error) {
	if err := run(); err != nil {
		return nil, err
	}
	out := map[string]*graph.Tensor{}
	for _, name := range g.OutputNames() {
		t, err := output(name)
		if err != nil {
			return nil, fmt.Errorf("output %s: %w", name, err)
		}
		out[name] = t.Clone()
	}
	return out, nil
}

// describe fills in what a program is, and on an overlay what a run takes.
func (r *levelResult) describe(e *cli.Env, p *fusec.Program, b *bencher) error {
	r.run, r.Held = p.Exec, p.Bytes()
	for _, l := range p.Lowered().Launches {
		r.Launches++
		r.Traffic += l.Bytes
		if l.Device != "" {
			r.OnHost++
		}
	}
	if b.compile.OnGPU() {
		times, err := p.Measure(deviceRuns)
		r.DeviceNS = medianTime(times).Nanoseconds()
		return err
	}
	cycles := b.compile.Kind().Cycles
	if cycles == "" {
		return nil
	}
	times, _, err := Profile(e.Ctx, p, 0)
	if err != nil {
		return err
	}
	r.run = nil // a simulator's time says nothing
	for i, c := range p.Counts().Launches {
		r.Cycles += int64(c.Get(cycles))
		if p.Lowered().Launches[i].Device != "" {
			r.MedianNS += times[i].Nanoseconds()
		}
	}
	r.MedianNS += int64(float64(r.Cycles) / b.mhz * 1e3)
	r.BestNS = r.MedianNS
	return nil
}

// raceLevels times the levels in turn and compares them with the first.
func (b *bencher) raceLevels(e *cli.Env, rep *levelsReport, o *outcome, show *cli.Progress) error {
	var field []Contestant
	var at []int
	for i, r := range rep.Levels {
		if r.run != nil {
			field, at = append(field, Contestant{r.Name, r.run}), append(at, i)
		}
	}
	times, err := Race(e.Ctx, field, b.rounds, b.seconds,
		func(round int) { show.Show("%s: round %d of %d", rep.Model, round+1, b.rounds) })
	if err != nil {
		return err
	}
	for j, t := range times {
		r := &rep.Levels[at[j]]
		o.figures = append(o.figures, timeFigure(fmt.Sprintf("%s: %s", rep.title(), r.Name), t))
		r.MedianNS, r.BestNS, r.Spread = t.Duration().Nanoseconds(), int64(t.Best*1e9), t.Spread()
	}
	first := slices.IndexFunc(rep.Levels, func(r levelResult) bool { return r.MedianNS > 0 })
	for i := range rep.Levels {
		if r := &rep.Levels[i]; r.MedianNS > 0 {
			r.Faster = float64(rep.Levels[first].MedianNS) / float64(r.MedianNS)
		}
	}
	return nil
}

// coarse is the difference above which levels disagree where operands are rounded to fewer bits.
const coarse = 0.1

// agree compares the outputs of the levels with those of fusec's kernels, op by op. The error names the levels that compute
// something else; Gorgonia is named in a note, for docs/divergences.md lists where it differs.
func (rep *levelsReport) agree(outputs []map[string]*graph.Tensor, rounded bool) error {
	allowed := disagreement
	if rounded {
		allowed = coarse
	}
	own := slices.IndexFunc(levels, func(l level) bool { return !l.rival })
	var wrong []error
	for i := range rep.Levels {
		r, far := &rep.Levels[i], 0.0
		for name, t := range outputs[i] {
			far = max(far, Difference(t.Floats(), outputs[own][name].Floats())) // NaN wins
		}
		r.Difference = cli.Number(far)
		if outputs[i] == nil || far <= allowed {
			continue
		}
		if levels[i].rival {
			r.Note = strings.TrimPrefix(r.Note+"; computed something else", "; ")
			continue
		}
		wrong = append(wrong, fmt.Errorf("levels %q and %q differ by %.1e of the largest output; at most %.0e is rounding",
			r.Name, levels[own].name, far, allowed))
	}
	return errors.Join(wrong...)
}

// title says what was measured, and on what.
func (rep *levelsReport) title() string {
	text := fmt.Sprintf("%s on %s, %s", rep.Model, modelio.On(rep.Target, rep.Precision),
		cli.Plural(rep.Threads, "thread", "threads"))
	if rep.MHz > 0 {
		text += fmt.Sprintf(", cycles at %.4g MHz", rep.MHz)
	}
	return text
}

// text prints the report for people.
func (rep *levelsReport) text() string {
	t := cli.NewTable("level", ">time", ">± rounds", ">times as fast", ">on the device", ">cycles", ">launches", ">on the host",
		">traffic", ">memory held", "what it is")
	for _, r := range rep.Levels {
		if r.MedianNS == 0 {
			t.Row(r.Name, "–", "", "", "", "", "", "", "", "", r.Note)
			continue
		}
		part := func(n int64, print func(int64) string) string {
			if n == 0 {
				return ""
			}
			return print(n)
		}
		count := func(n int64) string { return fmt.Sprint(n) }
		ns := func(n int64) string { return cli.HumanTime(time.Duration(n)) }
		spread := ""
		if r.Spread > 0 {
			spread = cli.Percent(r.Spread / 2)
		}
		doc := r.Doc
		if r.Note != "" {
			doc += " (" + r.Note + ")"
		}
		t.Row(r.Name, ns(r.MedianNS), spread, cli.Digits(r.Faster), part(r.DeviceNS, ns), cli.Cycles(r.Cycles),
			part(int64(r.Launches), count), part(int64(r.OnHost), count), part(r.Traffic, cli.HumanBytes), part(r.Held,
				cli.HumanBytes), doc)
	}
	return fmt.Sprintf("%s (%s); median of %d rounds\n\n%s", rep.title(), rep.Machine, rep.Rounds, t)
}

// chart draws the time of each level that was measured.
func (rep *levelsReport) chart() *plotting.Bars {
	c := &plotting.Bars{Title: rep.title(), X: "milliseconds"}
	for _, r := range rep.Levels {
		if r.MedianNS == 0 {
			continue
		}
		label := fmt.Sprintf("%s, %s×", cli.HumanTime(time.Duration(r.MedianNS)), cli.Digits(r.Faster))
		if r.Launches > 0 {
			label += ", " + cli.Plural(r.Launches, "launch", "launches")
		}
		c.Bars = append(c.Bars, plotting.Bar{Name: r.Name, Value: float64(r.MedianNS) / 1e6, Label: label})
	}
	return c
}
