// Package inspect is `fusec dump` and `fusec explain`: what compiling makes of a model.
package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/graph"
	"fusec/graph/trace"
	"fusec/lowering"
	"fusec/lowering/estimate"
)

// Explain is fusec explain.
var Explain = &cli.Command{
	Name:    "explain",
	Args:    "[flags] model.graph",
	Summary: "tell what was fused, what it saves, and which fusions were missed",
	Doc: `
Compiles the model and reports: how many launches it takes and which of your nodes each computes, with the file and
line that built them; arithmetic and memory traffic before and after; the memory that a run needs; what stayed on the
host, and why; and the missed fusions: patterns that matched in part, grouped by the condition that failed, the largest
group first.

Before means one launch for each operation, each operand read and each result written once. Weights are not needed.

--numeric tells what the fusions may change of the numbers. Each rule of the passes is exact, or reassociated: the same
value of real numbers, rounded otherwise, or transformed: the same as the sum of other terms, those of Winograd's
algorithm, or approximate: another function within a bound. The bound is on the difference from the graph as written, as
a multiple of the sum of the sizes of a value's terms, of a transformed value those of the algorithm.`,
	Examples: []cli.Example{
		{"fusec explain model.graph", "the whole report"},
		{"fusec explain model.graph --disable raise", "what a pass is worth"},
		{"fusec explain model.graph --memory-budget 64MiB", "what is computed again where values may take no more"},
		{"fusec explain model.graph --numeric", "what the fusions may change of the numbers, and by how much"},
		{"fusec explain model.graph --json", "for programs"},
	},
	Setup: func(f *cli.FlagSet) cli.Action {
		x := &explainer{}
		x.compile.Declare(f)
		f.BoolVar(&x.numeric, "numeric", false, "tell what the rules of the passes may change of the numbers")
		f.BoolVar(&x.json, "json", false, "print the report as JSON")
		return x.run
	},
}

// explainer is fusec explain with its flags.
type explainer struct {
	compile modelio.CompileFlags
	numeric bool
	json    bool
}

func (x *explainer) run(e *cli.Env, args []string) error {
	path, err := modelio.ModelArgument(args)
	if err != nil {
		return err
	}
	g, err := x.compile.Load(e, path)
	if err != nil {
		return err
	}
	tr, program, err := x.compile.Plan(g)
	if err != nil {
		return err
	}
	rep := explain(modelio.ModelName(path), tr, program)
	if x.json {
		return cli.WriteJSON(e.Out, rep)
	}
	if x.numeric {
		return e.Print(rep.numericText())
	}
	return e.Print(rep.text())
}

// ExplainReport is what fusec explain tells, and its JSON form.
type ExplainReport struct {
	Schema   string          `json:"schema"` // fusec.explain/3
	Model    string          `json:"model"`
	Target   string          `json:"target"`
	Before   trace.Work      `json:"before"`
	After    trace.Work      `json:"after"`
	Memory   memoryReport    `json:"memory"`
	Budget   *budgetReport   `json:"memory_budget,omitempty"`
	Kinds    []kindReport    `json:"kinds"`
	Launches []explainLaunch `json:"launches"`
	Host     []hostReport    `json:"host"`
	Misses   []missReport    `json:"misses"` // those that count first, the largest groups first
	Notes    []noteReport    `json:"notes"`
	Numeric  []numericReport `json:"numeric"` // the weakest first

	Divergences []divergenceReport `json:"divergences,omitempty"` // from the framework that the model came from

	Precision string `json:"precision"`      // as in fusec.run/1
	Chip      string `json:"chip,omitempty"` // what the target compiles for, if that is not this machine
	Mesh      string `json:"mesh,omitempty"` // of the participants
	Exchanges int    `json:"exchanges,omitempty"`
	Sent      int64  `json:"sent_bytes,omitempty"` // by a participant, in all exchanges of a run
	Refusal   string `json:"refusal,omitempty"`    // why it cannot run on the target

	Pipeline *pipelineReport `json:"pipeline,omitempty"`

	missed []trace.Missed // what Misses has, by cause
}

// pipelineReport is the stages of a pipeline.
type pipelineReport struct {
	Microbatches int           `json:"microbatches"`
	Stages       []stageReport `json:"stages"`
	Waits        float64       `json:"waits"` // the part of a step for which a participant waits, if stages take equally long
}

type stageReport struct {
	trace.PipelineStage
	Each   trace.Work `json:"each"` // of each microbatch
	Once   trace.Work `json:"once"` // after the last one
	Memory int64      `json:"memory_bytes"`
}

// explainPipeline gathers what is known of the stages, or nil.
func explainPipeline(tr *trace.Trace, program *lowering.Program) *pipelineReport {
	p := tr.Stages[len(tr.Stages)-1].Pipeline
	if p == nil {
		return nil
	}
	rep := &pipelineReport{Microbatches: p.Microbatches, Waits: p.Bubble()}
	launches := program.Launches
	for i, s := range program.Stages {
		of := stageReport{PipelineStage: p.Stages[i], Memory: s.Memory}
		for k := range s.Launches {
			to := &of.Once
			if k < s.Each {
				to = &of.Each
			}
			to.Add(launches[k].FLOPs, launches[k].Bytes)
		}
		launches = launches[s.Launches:]
		rep.Stages = append(rep.Stages, of)
	}
	return rep
}

// text prints the stages for people.
func (rep *pipelineReport) text() string {
	t := cli.NewTable(">stage", "up to", "on", ">each microbatch", ">launches", ">once", ">launches", ">sends of each",
		">keeps of each", ">in work", ">memory")
	for i, s := range rep.Stages {
		t.Row(fmt.Sprint(i+1), s.Ends, strings.Join(s.Devices, ", "), cli.HumanFLOPs(s.Each.FLOPs), fmt.Sprint(s.Each.Launches),
			cli.HumanFLOPs(s.Once.FLOPs), fmt.Sprint(s.Once.Launches), cli.HumanBytes(s.Sent), cli.HumanBytes(s.Kept), fmt.Sprint(s.Flight),
			cli.HumanBytes(s.Memory))
	}
	return fmt.Sprintf("\npipeline of %s, %s: a participant waits for %.1f %% of a step, if stages take equally long\n%s",
		cli.Plural(len(rep.Stages), "stage", "stages"), cli.Plural(rep.Microbatches, "microbatch", "microbatches"), 100*rep.Waits, t)
}

type memoryReport struct {
	ArenaBytes    int64 `json:"arena_bytes"`    // for intermediate values, which share it
	UnsharedBytes int64 `json:"unshared_bytes"` // what they would take without sharing
	ParamBytes    int64 `json:"param_bytes"`    // weights and constants
	PreparedBytes int64 `json:"prepared_bytes"` // what is computed once, when parameters are set
}

type kindReport struct {
	Kind string `json:"kind"`
	trace.Work
}

type explainLaunch struct {
	Index  int         `json:"index"` // from 1
	Kind   string      `json:"kind"`
	Name   string      `json:"name"`
	Phase  graph.Phase `json:"phase"`              // forward, backward or optimiser
	Once   bool        `json:"prepared,omitempty"` // it runs when parameters are set, not in each run
	Scope  string      `json:"scope,omitempty"`    // the path of its layer
	Kernel string      `json:"kernel"`
	trace.Company
	Device string `json:"device"`
	FLOPs  int64  `json:"flops"`
	Bytes  int64  `json:"bytes"`
	// Estimates are what the target estimates.
	Estimates trace.Measures `json:"estimates,omitempty"`
	Nodes     []cli.Origin   `json:"nodes"` // the user's, that it computes

	origin []graph.Origin
}

type hostReport struct {
	Launch int    `json:"launch"` // from 1
	Op     string `json:"op"`
	Node   string `json:"node"`
	Reason string `json:"reason"`
}

type missReport struct {
	Stage   string       `json:"stage"`
	Pattern string       `json:"pattern"`
	At      string       `json:"at"`
	Reason  string       `json:"reason"`
	Nodes   []cli.Origin `json:"nodes"`  // the user's, that it had matched
	Saves   trace.Work   `json:"saves"`  // what the program would save without it
	Counts  bool         `json:"counts"` // there is something to save
}

type noteReport struct {
	Stage string       `json:"stage"`
	Text  string       `json:"text"`
	Nodes []cli.Origin `json:"nodes"`

	Kind  string `json:"kind"`            // remark, divergence or imitation
	Topic string `json:"topic,omitempty"` // of the latter two, as docs/divergences.md names it
}

// numericReport is what the rewrites of a rule may change of the numbers.
type numericReport struct {
	Stage   string        `json:"stage"`
	Pattern string        `json:"pattern,omitempty"` // empty for rewrites whose result another one has replaced
	Times   int           `json:"times"`
	Numeric trace.Numeric `json:"numeric"`
	Nodes   []cli.Origin  `json:"nodes"` // the user's, that they cover

	origin []graph.Origin
}

// divergenceReport counts notes of one kind and topic.
type divergenceReport struct {
	Topic string `json:"topic"`
	Kind  string `json:"kind"`
	Count int    `json:"count"`
}

// countDivergences counts the notes that are no remarks, in the order of their first ones.
func countDivergences(notes []noteReport) []divergenceReport {
	var list []divergenceReport
	for _, n := range notes {
		if n.Topic == "" {
			continue
		}
		at := slices.IndexFunc(list, func(d divergenceReport) bool { return d.Topic == n.Topic && d.Kind == n.Kind })
		if at < 0 {
			at = len(list)
			list = append(list, divergenceReport{n.Topic, n.Kind, 0})
		}
		list[at].Count++
	}
	return list
}

// explain gathers the report.
func explain(name string, tr *trace.Trace, program *lowering.Program) *ExplainReport {
	rep := &ExplainReport{Schema: "fusec.explain/3", Model: name, Target: tr.Target, Precision: tr.Precision,
		Before: tr.Unfused(), After: tr.Program.Work(),
		Memory: memoryReport{tr.Program.ArenaBytes, tr.Program.BufferBytes, tr.Program.ParamBytes, tr.Program.PreparedBytes},
		Budget: explainBudget(tr), Chip: tr.Chip, Refusal: tr.Program.Refusal,
		Kinds: []kindReport{}, Launches: []explainLaunch{}, Host: []hostReport{}, Misses: []missReport{}, Notes: []noteReport{},
		Numeric: []numericReport{}}
	var nodes cli.LastOrigins[[]cli.Origin]
	for i, l := range tr.Program.Launches {
		rep.Launches = append(rep.Launches, explainLaunch{i + 1, l.Kind, l.Name, l.Phase, l.Prepared, l.Scope, l.Kernel,
			l.Company, l.Device, l.FLOPs, l.Bytes, l.Estimates, nodes.Get(l.Origin, cli.OriginsJSON), l.Origin})
		if l.Prepared {
			continue
		}
		at := slices.IndexFunc(rep.Kinds, func(k kindReport) bool { return k.Kind == l.Kind })
		if at < 0 {
			at = len(rep.Kinds)
			rep.Kinds = append(rep.Kinds, kindReport{Kind: l.Kind})
		}
		rep.Kinds[at].Add(l.FLOPs, l.Bytes)
	}
	slices.SortStableFunc(rep.Kinds, func(a, b kindReport) int { return b.Launches - a.Launches })
	rep.Mesh = program.Mesh.String()
	for i := range program.Launches {
		if n := estimate.Sent(program, &program.Launches[i]); n > 0 {
			rep.Exchanges, rep.Sent = rep.Exchanges+1, rep.Sent+n
		}
	}
	for i, l := range program.Launches {
		if h, ok := hosted(tr, l); ok {
			h.Launch = i + 1
			rep.Host = append(rep.Host, h)
		}
	}
	for _, s := range tr.Stages {
		for _, n := range s.Notes {
			rep.Notes = append(rep.Notes, noteReport{s.Name, n.Text, cli.OriginsJSON(n.Origin), n.Kind.String(), n.Topic})
		}
	}
	rep.missed = tr.Missed()
	for _, g := range rep.missed {
		for _, m := range g.List {
			rep.Misses = append(rep.Misses, missReport{tr.Stages[g.Stage].Name, m.Pattern, m.At, m.Reason,
				cli.OriginsJSON(m.Origin), m.Saves, m.Counts})
		}
	}
	for _, c := range tr.Contracts() {
		rep.Numeric = append(rep.Numeric, numericReport{c.Stage, c.Pattern, c.Times, c.Numeric, cli.OriginsJSON(c.Origin),
			c.Origin})
	}
	rep.Divergences = countDivergences(rep.Notes)
	rep.Pipeline = explainPipeline(tr, program)
	return rep
}

// hosted describes a launch that runs on the host: by the user's own code, the reason being the note that a pass left, or
// because the target has nothing for it.
func hosted(tr *trace.Trace, l lowering.Launch) (hostReport, bool) {
	op, ok := l.Op.(graph.Host)
	if !ok {
		return hostReport{Op: l.Kind(), Node: l.Node.Where(), Reason: l.Reason}, l.Device != ""
	}
	h := hostReport{Op: op.Name, Node: l.Node.Where(), Reason: "it is opaque and runs by its own code"}
	for _, s := range tr.Stages {
		for _, n := range s.Notes {
			if n.Node == l.Node.ID && strings.Contains(n.Text, op.Name) {
				h.Reason = n.Text
			}
		}
	}
	return h, true
}

// where names the target and its chip.
func (rep *ExplainReport) where() string {
	return (&trace.Trace{Target: rep.Target, Chip: rep.Chip}).TargetChip()
}

// text prints the report for people.
func (rep *ExplainReport) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s for %s: %s where one for each operation would be %d\n\n", rep.Model, modelio.On(rep.where(), rep.Precision),
		cli.Plural(rep.After.Launches, "launch", "launches"), rep.Before.Launches)
	if rep.Refusal != "" {
		fmt.Fprintf(&b, "it cannot run on %s: %s\n\n", rep.where(), rep.Refusal)
	}
	t := cli.NewTable("", ">unfused", ">fused", ">saved")
	t.Row("launches", fmt.Sprint(rep.Before.Launches), fmt.Sprint(rep.After.Launches),
		saved(int64(rep.Before.Launches), int64(rep.After.Launches)))
	t.Row("memory traffic", cli.HumanBytes(rep.Before.Bytes), cli.HumanBytes(rep.After.Bytes),
		saved(rep.Before.Bytes, rep.After.Bytes))
	t.Row("arithmetic", cli.HumanFLOPs(rep.Before.FLOPs), cli.HumanFLOPs(rep.After.FLOPs), saved(rep.Before.FLOPs, rep.After.FLOPs))
	t.Row("memory for values", cli.HumanBytes(rep.Memory.UnsharedBytes), cli.HumanBytes(rep.Memory.ArenaBytes),
		saved(rep.Memory.UnsharedBytes, rep.Memory.ArenaBytes))
	fmt.Fprintf(&b, "%sweights and constants: %s\n", t, cli.HumanBytes(rep.Memory.ParamBytes))

	if n := len(rep.Launches) - rep.After.Launches; n > 0 {
		fmt.Fprintf(&b, "prepared once, when parameters are set: %s, %s\n", cli.Plural(n, "launch", "launches"),
			cli.HumanBytes(rep.Memory.PreparedBytes))
	}

	if rep.Mesh != "" {
		fmt.Fprintf(&b, "one of the participants on the mesh %s: %s, in which it sends %s\n", rep.Mesh,
			cli.Plural(rep.Exchanges, "exchange", "exchanges"), cli.HumanBytes(rep.Sent))
	}
	if rep.Pipeline != nil {
		b.WriteString(rep.Pipeline.text())
	}
	if rep.Budget != nil {
		fmt.Fprintf(&b, "\n%s", rep.Budget.text())
	}

	t = cli.NewTable("kind", ">launches", ">arithmetic", ">traffic")
	for _, k := range rep.Kinds {
		t.Row(k.Kind, fmt.Sprint(k.Launches), cli.HumanFLOPs(k.FLOPs), cli.HumanBytes(k.Bytes))
	}
	if len(rep.Kinds) > 0 {
		fmt.Fprintf(&b, "\n%s", t)
	}

	var estimates []trace.Measures
	for _, l := range rep.Launches {
		estimates = append(estimates, l.Estimates)
	}
	columns := trace.Columns(estimates...)
	head := []string{">#", "kind", "runs", "name", ">arithmetic", ">traffic"}
	for _, m := range columns {
		head = append(head, ">"+m.Column())
	}
	t = cli.NewTable(append(head, ">nodes", "origin", "built at")...)
	var last cli.LastOrigins[[2]string]
	for _, l := range rep.Launches {
		of := last.Get(l.origin, func(list []graph.Origin) [2]string {
			names, pos := cli.Origins(list)
			return [2]string{names, pos}
		})
		names, pos := of[0], of[1]
		kind := l.Kind
		if strings.HasPrefix(l.Kernel, "winograd") || strings.HasSuffix(l.Kernel, ", tuned") {
			kind += ", " + l.Kernel
		}
		row := append([]string{fmt.Sprint(l.Index), kind, l.Words(), l.Name, cli.HumanFLOPs(l.FLOPs), cli.HumanBytes(l.Bytes)},
			l.Estimates.Row(columns)...)
		t.Row(append(row, fmt.Sprint(len(l.Nodes)), names, pos)...)
	}
	if len(rep.Launches) > 0 {
		fmt.Fprintf(&b, "\n%s", t)
	}

	there := func(l explainLaunch) bool { return l.Device == rep.Target }
	b.WriteString("\non the host: ")
	switch {
	case len(rep.Host) == 0 && rep.Refusal != "":
		b.WriteString("nothing, if it could run\n")
	case len(rep.Host) == 0:
		b.WriteString("nothing\n")
	case !slices.ContainsFunc(rep.Launches, there):
		fmt.Fprintf(&b, "everything, %s; nothing runs on %s\n", cli.Plural(len(rep.Host), "operation", "operations"), rep.where())
	default:
		fmt.Fprintf(&b, "%s\n", cli.Plural(len(rep.Host), "operation", "operations"))
	}
	for _, h := range rep.Host {
		fmt.Fprintf(&b, "  launch %d, %s: %s\n", h.Launch, h.Node, h.Reason)
	}
	rep.missedText(&b)
	for _, k := range []graph.NoteKind{graph.Divergence, graph.Imitation} {
		n, t := 0, cli.NewTable(">times", "topic")
		for _, d := range rep.Divergences {
			if d.Kind == k.String() {
				n += d.Count
				t.Row(fmt.Sprint(d.Count), d.Topic)
			}
		}
		switch {
		case n == 0:
		case k == graph.Divergence:
			fmt.Fprintf(&b, "\ndiffers from Gorgonia in %s; docs/divergences.md has the reasons\n%s",
				cli.Plural(n, "place", "places"), t)
		default:
			fmt.Fprintf(&b, "\nimitates Gorgonia in %s\n%s", cli.Plural(n, "place", "places"), t)
		}
	}
	if len(rep.Notes) > 0 {
		b.WriteString("\nnotes\n")
	}
	for _, n := range rep.Notes {
		fmt.Fprintf(&b, "  %s: %s\n", n.Stage, n.Text)
	}
	return b.String()
}

// numericText prints for people what the rules may change of the numbers.
func (rep *ExplainReport) numericText() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s for %s: what the fusions may change of the numbers\n\n", rep.Model, modelio.On(rep.where(), rep.Precision))
	if rep.Precision != fusec.F32.String() {
		fmt.Fprintf(&b, "Operands of contractions are rounded to %s.\n", rep.Precision)
	}
	t := cli.NewTable("class", ">bound", "stage", "pattern", ">times", "origin", "built at")
	exact, rules := 0, 0
	for _, n := range rep.Numeric {
		if n.Numeric.Class == trace.ClassExact {
			exact, rules = exact+n.Times, rules+1
			continue
		}
		names, pos := cli.Origins(n.origin)
		t.Row(string(n.Numeric.Class), fmt.Sprintf("%.3g", n.Numeric.Bound), n.Stage, cmp.Or(n.Pattern, "steps on the way"),
			fmt.Sprint(n.Times), names, pos)
	}
	if len(rep.Numeric) > rules {
		fmt.Fprintf(&b, "%s\n", t)
	}
	fmt.Fprintf(&b, "exact: %s by %s\n", cli.Plural(exact, "rewrite", "rewrites"), cli.Plural(rules, "rule", "rules"))
	return b.String()
}

// missedText prints the missed fusions by their cause: those that count, then the others.
func (rep *ExplainReport) missedText(b *strings.Builder) {
	count, at := 0, 0
	for _, m := range rep.Misses {
		if m.Counts {
			count++
		}
	}
	b.WriteString("\nmissed fusions: ")
	if count == 0 {
		b.WriteString("none\n")
	} else {
		fmt.Fprintf(b, "%d\n", count)
	}
	free := len(rep.Misses) - count
	for _, g := range rep.missed {
		if !g.Counts && free > 0 {
			fmt.Fprintf(b, "\nmatched in part, at no cost: %d\n", free)
			free = 0
		}
		m := rep.Misses[at]
		b.WriteString("  ")
		if len(g.List) > 1 {
			fmt.Fprintf(b, "×%d ", len(g.List))
		}
		fmt.Fprintf(b, "%s (%s) stopped at %s", m.Pattern, m.Stage, m.At)
		switch n := len(g.List) - 1; {
		case n == 1:
			fmt.Fprintf(b, " and at %s", rep.Misses[at+1].At)
		case n > 1:
			fmt.Fprintf(b, " and %d others", n)
		}
		fmt.Fprintf(b, ": %s", m.Reason)
		if g.Saves.Launches > 0 {
			cost := "it costs"
			if len(g.List) > 1 {
				cost = "they cost"
			}
			fmt.Fprintf(b, "; %s %s and %s", cost, cli.Plural(g.Saves.Launches, "launch", "launches"),
				cli.HumanBytes(g.Saves.Bytes))
		}
		b.WriteByte('\n')
		at += len(g.List)
	}
}

// saved is how much smaller after is than before.
func saved(before, after int64) string {
	if before == 0 {
		return ""
	}
	return cli.Percent(1 - float64(after)/float64(before))
}
