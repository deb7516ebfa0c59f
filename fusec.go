// Package fusec compiles a model's computation graph into a program of few fused launches and runs it.
//
// Training code that uses Gorgonia changes one line, and keeps its solvers, inputs and reads:
//
//	vm := gorgonia.NewTapeMachine(g, gorgonia.BindDualValues(w, b))
//	vm := fusec.NewMachine(g, gorgonia.BindDualValues(w, b))
//
// [Machine.Fusions] lists what was fused, and [Machine.Trace] holds every stage of the compilation. [Compile] does the
// same for a [graph.Graph] without Gorgonia, and [Save] writes a Gorgonia graph and its weights to a file that the
// fusec command draws, runs, explains and times.
package fusec

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"fusec/graph"
	"fusec/graph/optim"
	"fusec/graph/trace"
	"fusec/lowering"
	"fusec/lowering/pipeline"
	"fusec/lowering/watch"
	"fusec/passes"
)

// Fusion is one launch: it computes several of the user's nodes, or one.
type Fusion struct {
	Kind  string         // "linear", "softmax", "norm", "elementwise", …
	Name  string         // the user's name for the value it makes, or empty
	Nodes []graph.Origin // the user's nodes that it covers, with file and line where they are known
	FLOPs int64
	Bytes int64 // of memory traffic
	// Prepared says that it runs when the parameters that it depends on are set, and not in each run: it depends on frozen
	// parameters and constants alone.
	Prepared bool
}

// String is the fusion on one line: its kind, the name of the value it makes, the user's nodes that it covers, the first
// six of them by name, where they were built, if that is known, its arithmetic and its memory traffic.
func (f Fusion) String() string {
	const shown = 6
	var b strings.Builder
	b.WriteString(f.Kind)
	if f.Name != "" {
		fmt.Fprintf(&b, " %q", f.Name)
	}
	pos := ""
	for i, o := range f.Nodes {
		pos = cmp.Or(pos, o.Pos)
		switch {
		case i == 0:
			b.WriteString(": ")
		case i < shown:
			b.WriteString(", ")
		case i == shown:
			fmt.Fprintf(&b, " and %d more", len(f.Nodes)-shown)
		}
		if i < shown {
			b.WriteString(printable(o.Name))
		}
	}
	if pos != "" {
		fmt.Fprintf(&b, " (%s)", printable(pos))
	}
	fmt.Fprintf(&b, "; %.3g MFLOP, %.3g MiB", float64(f.FLOPs)/1e6, float64(f.Bytes)/(1<<20))
	if f.Prepared {
		b.WriteString(", prepared once")
	}
	return b.String()
}

// printable replaces the characters of a name that do not print, so that it stays on its line.
func printable(name string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return utf8.RuneError
	}, name)
}

// Compile makes a program of a graph. Parameters are frozen: they are given with [Program.Set], stay as they are
// between runs and are packed once. What depends on them and on constants alone is computed once; see [WithFrozenParams].
func Compile(g *graph.Graph, opts ...CompileOption) (*Program, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	return compileWith(g, cfg)
}

// compileWith is [Compile] with options that were read.
func compileWith(g *graph.Graph, cfg config) (*Program, error) {
	gradients, steps, err := cfg.asked(g)
	if err != nil {
		return nil, err
	}
	wanted := len(cfg.gradients) > 0 ||
		slices.ContainsFunc(g.Gradients, func(d graph.GradMark) bool { return d.Output != "" || d.Wanted })
	if err := cfg.inferenceOnly(wanted); err != nil {
		return nil, err
	}
	cfg.frozen = true
	p, err := compile(g, cfg, gradients, steps)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// asked lists the gradients that the graph and the options ask for, and the optimiser's steps. An optimiser of the options
// takes the place of the graph's.
func (c *config) asked(g *graph.Graph) ([]passes.Gradient, []passes.Step, error) {
	if err := check(g, c.gradients); err != nil {
		return nil, nil, err
	}
	var gradients []passes.Gradient
	for _, d := range g.Gradients {
		gradients = append(gradients, passes.Gradient{Cost: d.Cost, Of: d.Of, Seed: d.Seed, Value: d.Value, Output: d.Output})
	}
	gradients = append(gradients, c.gradients...)
	if c.optimizer != nil || g.Training == nil {
		steps, err := c.stepsOf(g)
		return gradients, steps, err
	}
	var steps []passes.Step
	for _, s := range g.Training.Steps {
		steps = append(steps, passes.Step{Param: s.Param, Cost: s.Cost, Seed: s.Seed, Value: s.Value})
	}
	var err error
	c.optimizer, err = optim.FromTraining(g.Training)
	return gradients, steps, err
}

// check refuses a graph that the passes could not work on.
func check(g *graph.Graph, gradients []passes.Gradient) error {
	if g == nil {
		return errors.New("the graph is nil")
	}
	named := map[string]bool{}
	for _, o := range g.Outputs {
		named[o.Name] = true
	}
	for _, d := range g.Gradients {
		named[d.Output] = d.Output != ""
	}
	for _, d := range gradients {
		if named[d.Output] {
			return fmt.Errorf("WithGradient(%q): the graph has another output of that name", d.Output)
		}
		named[d.Output] = true
	}
	return graph.Verify(g)
}

// Plan compiles a graph for drawings and reports only, with frozen parameters as [Compile] does. It takes no memory for
// values, so that a graph can be looked at that this machine could not run. It returns the record of the compilation,
// which after an error has the stages until then, and the lowered program.
func Plan(g *graph.Graph, opts ...CompileOption) (*trace.Trace, *lowering.Program, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, nil, err
	}
	cfg.frozen = true
	gradients, steps, err := cfg.asked(g)
	if err != nil {
		return nil, nil, err
	}
	device, err := cfg.device(false)
	if err != nil {
		return nil, nil, err
	}
	return (&request{g, cfg, gradients, steps}).plan(device)
}

// A request is all that a program follows from.
type request struct {
	graph     *graph.Graph
	cfg       config
	gradients []passes.Gradient
	steps     []passes.Step
}

// plan runs the passes and lowers what they make.
func (r *request) plan(device lowering.Device) (*trace.Trace, *lowering.Program, error) {
	cfg := &r.cfg
	layout, err := cfg.meshed(r.graph)
	if err != nil {
		return nil, nil, err
	}
	if d, ok := device.(*pipeline.Device); ok {
		return r.planPipeline(d, layout)
	}
	final, tr, err := passes.Run(r.graph, passes.Config{Target: device, Verify: cfg.verify, Gradients: r.gradients,
		Optimizer: cfg.optimizer, Steps: r.steps, Disable: cfg.disable, Budget: cfg.budget,
		Precision: cfg.precision, Frozen: cfg.frozen, Layout: layout})
	if err != nil {
		return tr, nil, err
	}
	opts := cfg.lowering(device)
	if cfg.frozen {
		opts = append(opts, lowering.Frozen())
	}
	if cfg.watched() {
		opts = append(opts, lowering.CopyUpdates())
	}
	program, err := lowering.Lower(final, device.Name(), opts...)
	if err != nil {
		return tr, nil, err
	}
	device.Place(program)
	device.Describe(tr, program)
	tr.Program = program.Trace()
	return tr, program, nil
}

// lowering is how graphs are lowered for a device. A budget of memory has them be frugal.
func (c *config) lowering(device lowering.Device) []lowering.Option {
	opts := device.Lowering()
	if c.budget > 0 {
		opts = append(opts, lowering.Frugal())
	}
	return opts
}

func compile(g *graph.Graph, cfg config, gradients []passes.Gradient, steps []passes.Step) (_ *Program, err error) {
	start := time.Now()
	device, err := cfg.device(true)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, device.Close()) }()
	p := &Program{request: request{g, cfg, gradients, steps}, named: map[string]int{},
		unread: map[string]graph.Type{}, own: map[int]*graph.Tensor{}}
	if err = p.obtain(device); err != nil {
		return p, err
	}
	if err = p.agree(); err != nil {
		return p, err
	}
	p.outputs = make(map[string]int, len(p.program.Outputs))
	for _, o := range p.program.Outputs {
		p.outputs[o.Name] = o.Buffer
	}
	read := make([]bool, len(p.program.Buffers))
	for _, l := range p.program.Launches {
		for _, v := range l.Args {
			read[v.Buffer] = true
		}
	}
	for _, u := range p.program.Updates {
		read[u.Target] = true
	}
	for i, b := range p.program.Buffers {
		switch b.Role {
		case lowering.Input, lowering.Param:
			if read[i] {
				p.named[b.Name] = i
			}
		case lowering.State:
			p.named[b.Name] = i
			p.own[i] = graph.NewTensor(p.bound(i))
			if err := p.exe.Bind(i, p.own[i]); err != nil {
				return p, err
			}
		}
	}
	for _, u := range p.program.Updates {
		if _, ok := p.own[u.Target]; !ok {
			p.own[u.Target] = nil
		}
	}
	for _, n := range g.Nodes {
		if _, ok := p.named[n.Name]; !ok && graph.IsSource(n.Op) {
			p.unread[n.Name] = n.Type
		}
	}
	if cfg.optimizer != nil {
		if err := p.startStepper(); err != nil {
			return p, err
		}
	}
	if cfg.watched() {
		integers := lowering.Unowned(p.exe).Rounded // what the executable refers to must not refer to its owner
		p.watcher = &watch.Watcher{Program: p.program, NonFinite: cfg.watchNonFinite, Compare: cfg.compare,
			Rounding: cfg.rounding(), Integers: integers}
		p.watch = p.watcher.Check
		if cfg.shadow > 0 {
			p.watcher.Shadow = &watch.Shadow{Every: cfg.shadow, Folder: cfg.shadowFolder, Target: device.Name(),
				Same: reference(device), Seen: watch.Seen{Launch: -1}}
		}
		if e := p.together(); e != nil { // each participant has values of its own
			e.WatchEach(func() func(*lowering.Launch, func(lowering.View) (*graph.Tensor, error)) error {
				return (&watch.Watcher{Program: p.program, NonFinite: cfg.watchNonFinite}).Check
			})
		} else {
			p.exe.Watch(p.watch)
		}
	}
	p.took = time.Since(start)
	return p, nil
}

// Passes lists the names of the passes in order, as [WithoutPass] takes them and [Program.Trace] has them.
func Passes() []string {
	var names []string
	for _, p := range passes.All() {
		names = append(names, p.Name)
	}
	return names
}

// errClosed is returned by a machine that has been closed.
var errClosed = errors.New("the machine is closed")
